"""Kernels measured one by one: their cases, their rows, and what is said of them."""

from pathlib import Path

import pytest

from scripts.compare_kernels import ratios, report
from scripts.kernel_cases import CASES
from scripts.measure_kernels import MeasuredKernels, is_work
from scripts.measure_steps import Kernel
from scripts.tables import kept_rows


ROWS = Path("scripts/data/kernels_h100.jsonl")


def test_what_was_measured_are_the_cases():
    measured = [MeasuredKernels.from_row(row) for row in kept_rows(ROWS)]
    assert [row.name for row in measured] == [case.name for case in CASES]
    # Kernels that are short beside the longest are in the sum only.
    assert all(0 < sum(row.kernels.values()) <= row.seconds * (1 + 1e-3) for row in measured)


def test_copies_are_no_work():
    kernels = [
        Kernel(name=name, instruction="", runs=1.0, seconds=1.0) for name in ("Memset 3", "a")
    ]
    assert [is_work(kernel) for kernel in kernels] == [False, True]


def test_cases_of_a_group_are_of_both_halves_by_turns():
    cases = [case for case in CASES if case.group == "x y"][:3]
    row = MeasuredKernels.from_row(kept_rows(ROWS)[0])
    each = list(ratios(cases, {case.name: row for case in cases}))
    assert [(group, half) for group, half, _ in each] == [
        ("x y", "fitted"),
        ("x y", "judged"),
        ("x y", "fitted"),
    ]
    assert each[0][2] == pytest.approx(1.0, abs=0.2)


def test_the_table_has_each_half():
    table = report([("sums", "fitted", 0.5), ("sums", "judged", 2.0), ("sums", "judged", 1.0)])
    assert "| sums | fitted | 1 | 0.50 | 0.5, 0.5 |" in table
    assert "| sums | judged | 2 | 1.50 | 1, 2 |" in table
