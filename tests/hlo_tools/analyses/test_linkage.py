"""Which dimensions one decision forces together, on HLO with the groups worked out by hand."""

from hypothesis import given, strategies as st
import numpy as np
import pytest

from hlo_tools.analyses.conflicts import PairConflict, SelfConflict, pair_conflicts, self_conflicts
from hlo_tools.analyses.folding import fold
from hlo_tools.analyses.linkage import components, link, op_rules
from tests.hlo_tools.graphs import text_graph


def _linkage(body):
    graph = text_graph(f"ENTRY main {{\n{body}\n}}")
    return link(graph, op_rules(graph, {}))


PRODUCT = """
  x = f32[8,16] parameter(0)
  w = f32[16,32] parameter(1)
  y = f32[8,32] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT z = f32[8,32] tanh(y)
"""


def test_a_product_has_one_group_for_each_of_its_indices():
    linkage = _linkage(PRODUCT)
    x, w, y, z = range(4)
    assert linkage.groups(x) == (0, 1)
    assert linkage.groups(w) == (1, 2)
    assert linkage.groups(y) == linkage.groups(z) == (0, 2)
    assert linkage.limits.tolist() == [8, 16, 32]
    # Indices of the product in order of first appearance: rows, summed, columns.
    assert linkage.factor_groups.tolist() == [[0, 1, 2], [0, 2, -1]]


@pytest.mark.parametrize(
    ("before", "after", "groups_before", "groups_after", "limits"),
    [
        # Of what is merged only the major dimension is split in contiguous parts.
        ("4,6", "24", (0, 1), (0,), [4, 6]),
        ("24", "4,6", (0,), (0, 1), [4, 6]),
        # The sizes 6 and 4 do not divide each other: no part of one is a part of the other.
        ("6,4", "4,6", (0, 1), (2, 3), [6, 4, 4, 6]),
        ("8,6", "8,2,3", (0, 1), (0, 1, 2), [8, 2, 3]),
        ("1,8", "8", (-1, 0), (0,), [8]),
    ],
)
def test_a_reshape_links_major_factors(before, after, groups_before, groups_after, limits):
    linkage = _linkage(f"x = f32[{before}] parameter(0)\nROOT y = f32[{after}] reshape(x)")
    assert linkage.groups(0) == groups_before
    assert linkage.groups(1) == groups_after
    assert linkage.limits.tolist() == limits


def test_constants_and_what_is_cut_link_nothing():
    linkage = _linkage("""
  x = f32[8,16] parameter(0)
  half = f32[8,8] slice(x), slice={[0:8], [0:8]}
  zero = f32[] constant(0)
  zeros = f32[8,8] broadcast(zero), dimensions={}
  ROOT y = f32[8,8] add(half, zeros)
""")
    x, half, zero, zeros, y = range(5)
    assert linkage.groups(x) == (0, 1)
    assert linkage.groups(half) == linkage.groups(y) == (0, 2)
    assert linkage.groups(zeros) == (-1, -1)
    assert linkage.groups(zero) == ()


def test_what_meets_itself_and_what_meets_another_group():
    linkage = _linkage("""
  x = f32[8,16] parameter(0)
  s = f32[8,8] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  ROOT t = f32[8,8] exponential(s)
""")
    assert linkage.groups(1) == (0, 0)
    classes = fold(linkage)
    # In both scores, and in the iteration spaces of both ops; first where the product is made.
    assert self_conflicts(linkage, classes) == (SelfConflict(group_class=0, value=1, count=4),)
    assert pair_conflicts(linkage, classes) == (PairConflict(first=0, second=1, op=0, count=1),)


LAYERS = """
  x = f32[8,16] parameter(0)
  up1 = f32[16,64] parameter(1)
  down1 = f32[64,16] parameter(2)
  up2 = f32[16,64] parameter(3)
  down2 = f32[64,16] parameter(4)
  last = f32[16,128] parameter(5)
  a1 = f32[8,64] dot(x, up1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  b1 = f32[8,16] dot(a1, down1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  a2 = f32[8,64] dot(b1, up2), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  b2 = f32[8,16] dot(a2, down2), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT c = f32[8,128] dot(b2, last), lhs_contracting_dims={1}, rhs_contracting_dims={0}
"""


def test_equal_layers_fold_to_one_class():
    linkage = _linkage(LAYERS)
    x, up1, down1, up2, down2, last = (linkage.groups(v) for v in range(6))
    assert up1[1] == down1[0] != up2[1] == down2[0]
    # What a layer reads is summed over there: the widths between layers are groups of their own.
    assert len({x[1], down1[1], down2[1]}) == 3
    classes = fold(linkage)
    assert classes[up1[1]] == classes[up2[1]]
    # Both are made by a dot of 8 rows, and read by a weight of the same shape.
    assert classes[up1[1]] != classes[last[1]]
    assert classes[x[1]] != classes[down1[1]]


@given(
    st.integers(1, 12).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=20),
        )
    )
)
def test_components_are_what_a_search_reaches(case):
    n, edges = case
    first, second = (np.array([e[i] for e in edges], np.int64) for i in (0, 1))
    near = {node: {node} for node in range(n)}
    for a, b in edges:
        near[a].add(b)
        near[b].add(a)
    expected = []
    for node in range(n):
        seen, todo = {node}, [node]
        while todo:
            for other in near[todo.pop()] - seen:
                seen.add(other)
                todo.append(other)
        expected.append(min(seen))
    assert components(n, first, second).tolist() == expected
