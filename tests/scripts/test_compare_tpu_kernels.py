"""The table of single kernels for TPUs, of ratios made up, and the cases' names."""

from collections import Counter

from scripts.compare_tpu_kernels import report
from scripts.joined_cases import joined
from scripts.kernel_cases import CASES, convolutions, moves, outer, vectors
from scripts.product_cases import made
from scripts.sequence_cases import sequences


def test_the_table_has_the_median_and_the_worst_of_each_group():
    text = report([("sums", 0.9), ("sums", 1.0), ("sums", 1.4), ("casts", 1.05)])
    assert text.startswith("4 steps of few kernels: off by 7.5% in the median, 75% within 15%.")
    assert "| sums | 3 | 1.00 | 0.90, 1.40 |" in text
    assert "| casts | 1 | 1.05 | 1.05, 1.05 |" in text


def test_no_two_cases_have_one_name():
    alone = (*CASES, *vectors(), *outer(), *moves(), *convolutions(), *made())
    cases = (*alone, *sequences(), *joined())
    assert max(Counter(case.name for case in cases).values()) == 1
