"""Rules as text: read back what is printed, and what users write."""

import pytest

from hlo_tools.errors import HloError
from hlo_tools.rules import FactorKind, Work, parse_notation
from tests.hlo_tools.rules.test_rules import GOLDEN, rules_and_shapes


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: f"{row[0]} {row[3]}")
def test_a_printed_rule_is_read_back(row):
    for rule, operands, results in rules_and_shapes(*row[:3]):
        if _needs_no_window(rule, operands, results):
            again = parse_notation(_with_new_dimensions(rule)).rule("op", operands, results)
            assert str(again) == str(rule)
            assert [f.size for f in again.factors] == [f.size for f in rule.factors]


def _needs_no_window(rule, operands, results):
    """Whether every factor has one size: text says nothing of strides."""
    tensors = zip((*rule.operands, *rule.results), (*operands, *results))
    places = [
        (dim[0], n) for dims, shape in tensors for dim, n in zip(dims, shape) if len(dim) == 1
    ]
    return all(
        rule.factors[f].size == n or rule.factors[f].kind is not FactorKind.PASSTHROUGH
        for f, n in places
    ) and all(factor.halo is None for factor in rule.factors)


def _with_new_dimensions(rule):
    """The text, with dimensions that an op makes freely (a broadcast's) said to be so."""
    left, right = (
        {f for t in side for d in t for f in d} for side in (rule.operands, rule.results)
    )
    new = [f for f in right - left if rule.factors[f].kind is FactorKind.PASSTHROUGH]
    return f"{rule} passthrough={','.join('abcdefghi'[f] for f in new)}" if new else str(rule)


@pytest.mark.parametrize(
    ("text", "operands", "results", "printed"),
    [
        ("ij,jk->ik", [(4, 6), (6, 8)], [(4, 8)], "ab,bc->ac reduce=b"),
        ("ij,jk->ik replicate=j", [(4, 6), (6, 8)], [(4, 8)], "ab,bc->ac replicate=b"),
        ("b(hd),h->bd", [(2, 12), (3,)], [(2, 4)], "a(bc),b->ac reduce=b"),
        ("x,.->xy", [(4,), ()], [(4, 5)], "a,.->ab replicate=b"),
        ("xy->xy permute=y", [(4, 6)], [(4, 3)], "ab->ab permute=b"),
        ("->xy", [], [(4, 6)], "->ab replicate=a,b"),
        ("xy->xy", [(1, 6)], [(1, 6)], "1a->1a"),
    ],
)
def test_users_rules(text, operands, results, printed):
    assert str(parse_notation(text).rule("op", operands, results)) == printed


@pytest.mark.parametrize(
    ("stated", "operands", "expected"),
    [
        ("", [(4, 6), (6, 8)], None),
        ("flops=2ijk", [(4, 6), (6, 8)], Work(2 * 4 * 6 * 8)),
        ("flops=2.5ijk efficiency=0.6", [(4, 6), (6, 8)], Work(480, 0.6)),
        ("efficiency=1 flops=7iik", [(4, 6), (6, 8)], Work(7 * 4 * 4 * 8, 1.0)),
        # A dimension of size one.
        ("flops=2ijk", [(1, 6), (6, 8)], Work(2 * 6 * 8)),
    ],
)
def test_stated_work_is_a_number_times_the_sizes_of_letters(stated, operands, expected):
    results = [(operands[0][0], operands[1][1])]
    rule = parse_notation(f"ij,jk->ik replicate=j {stated}").rule("op", operands, results)
    assert rule.work == expected
    # What a kernel does says nothing of how it is split.
    plain = parse_notation("ij,jk->ik replicate=j").rule("op", operands, results)
    assert str(rule) == str(plain)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "expected operands->results"),
        ("ik,kj", "expected operands->results"),
        ("i-k->ik", "cannot read 'i-k'"),
        ("(ik->ik", "cannot read '(ik'"),
        ("ik->ik sum=k", "cannot read 'sum=k'; allowed: passthrough, reduce, permute, replicate"),
        ("ik->ik reduce=z", "letters that the tensors do not have"),
        ("ik->ik flops=2iz", "expected flops=NUMBER and letters of the tensors"),
        ("ik->ik flops=ik", "expected flops=NUMBER and letters of the tensors"),
        ("1k->1k flops=2k1", "expected flops=NUMBER and letters of the tensors"),
        ("ik->ik efficiency=0.5", "which efficiency= needs too"),
        ("ik->ik flops=2ik efficiency=1.5", "cannot read efficiency=1.5"),
        ("ik->ik flops=2ik efficiency=0.0", "above 0 and up to 1"),
        ("ik->ik flops=2ik efficiency=", "above 0 and up to 1"),
    ],
)
def test_text_that_is_no_rule(text, part):
    with pytest.raises(HloError, match="rule") as error:
        parse_notation(text)
    assert part in str(error.value)


@pytest.mark.parametrize(
    ("text", "operands", "results", "part"),
    [
        ("ik->ik", [(4, 6), (6,)], [(4, 6)], "other numbers of tensors or dimensions"),
        ("ik->ik", [(4, 6)], [(4, 5)], "k is 6 in one place and 5 in another"),
        ("(ab)->(ab)", [(6,)], [(6,)], "(ab)"),
        ("a(ab)->b", [(4, 6)], [(2,)], "does not make a dimension of 6"),
        ("1k->k", [(4, 6)], [(6,)], "1 does not make a dimension of 4"),
    ],
)
def test_rules_that_do_not_fit_the_shapes(text, operands, results, part):
    with pytest.raises(HloError) as error:
        parse_notation(text).rule("my_kernel", operands, results)
    assert "my_kernel" in str(error.value)
    assert part.strip("()") in str(error.value)
