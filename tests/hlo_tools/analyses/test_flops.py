"""Floating point operations of one op, worked out by hand."""

import pytest

from hlo_tools.analyses.flops import flops
from hlo_tools.analyses.linkage import op_rules
from tests.hlo_tools.graphs import text_graph


COMBINE = "sum { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT s = f32[] add(a, b) }"
CASES = {
    # (a + ib)(c + id) has four products of real numbers, added up in pairs.
    "complex dot": (
        "c64[8,16]",
        "c64[16,32]",
        "c64[8,32] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        4 * 2 * 8 * 16 * 32,
    ),
    # Each of 8 * 32 results is a sum of 16 products.
    "dot": (
        "f32[8,16]",
        "f32[16,32]",
        "f32[8,32] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        2 * 8 * 16 * 32,
    ),
    # One image row of 5, a kernel of 3, padded by one: the taps at both ends meet one zero each.
    "convolution": (
        "f32[1,5,2]",
        "f32[3,2,4]",
        "f32[1,5,4] convolution(x, w), window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f",
        2 * 2 * 4 * (5 * 3 - 2),
    ),
    "add": ("f32[8,16]", "f32[8,16]", "f32[8,16] add(x, w)", 8 * 16),
    "reduce": ("f32[8,16]", "f32[]", "f32[8] reduce(x, w), dimensions={1}, to_apply=sum", 8 * 16),
    "transpose": ("f32[8,16]", "f32[]", "f32[16,8] transpose(x), dimensions={1,0}", 0),
}


@pytest.mark.parametrize("name", CASES)
def test_operations(name):
    left, right, op, expected = CASES[name]
    graph = text_graph(
        f"{COMBINE}\nENTRY main {{\n x = {left} parameter(0)\n w = {right} parameter(1)\n "
        f"ROOT y = {op}\n}}"
    )
    (rule,) = op_rules(graph, {})
    assert flops(graph, graph.ops[0], rule) == expected
