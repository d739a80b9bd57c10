"""Where a parameter and its optimizer's state can be kept split, on a step by hand.

w' = m' = ...      w is multiplied as bfloat16, its gradient is added to the momentum m
"""

from hlo_tools.analyses.folding import fold, fold_storage, update_groups
from hlo_tools.analyses.linkage import link, op_rules
from hlo_tools.analyses.phases import Phase
from hlo_tools.analyses.roles import Role
from hlo_tools.analyses.storage import Side, storage
from tests.hlo_tools.graphs import text_graph


STEP = """
ENTRY main {
  w = f32[16,32] parameter(0)
  m = f32[16,32] parameter(1)
  x = bf16[8,16] parameter(2)
  g = bf16[8,32] parameter(3)
  cast = bf16[16,32] convert(w)
  y = bf16[8,32] dot(x, cast), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  dw = bf16[16,32] dot(x, g), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  wide = f32[16,32] convert(dw)
  new_m = f32[16,32] add(m, wide)
  new_w = f32[16,32] subtract(w, new_m)
  ROOT out = (f32[16,32], f32[16,32], bf16[8,32]) tuple(new_w, new_m, y)
}
"""
STATE = {0: 0, 1: 1}
F, B, U = Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE
PHASES = [F, F, B, U, U, U]
ROLES = [Role.PARAMETER, Role.OPTIMIZER, Role.BATCH, Role.BATCH]


def _stored():
    graph = text_graph(STEP)
    linkage = link(graph, op_rules(graph, {}))
    return linkage, storage(linkage, PHASES, ROLES, STATE)


def _groups(linkage, stored, value):
    start, end = linkage.node_offset[value : value + 2]
    return tuple(stored.group_of_node[start:end].tolist())


def test_each_value_is_on_the_side_that_it_serves():
    _, stored = _stored()
    w, m, x, g, cast, y, dw, wide, new_m, new_w = (Side(s) for s in stored.side.tolist())
    assert w is cast is new_w is Side.PARAMETER  # stored, cast before it is gathered, stored anew
    assert m is new_m is wide is dw is Side.OPTIMIZER  # back to the product that makes the gradient
    assert x is g is y is Side.NONE


def test_each_side_has_a_group_for_each_dimension():
    linkage, stored = _stored()
    w, m, x, _, cast, y, dw, wide, new_m, new_w = range(10)
    parameter = _groups(linkage, stored, w)
    optimizer = _groups(linkage, stored, m)
    assert len({*parameter, *optimizer}) == 4 and -1 not in (*parameter, *optimizer)
    assert _groups(linkage, stored, cast) == _groups(linkage, stored, new_w) == parameter
    for value in (dw, wide, new_m):
        assert _groups(linkage, stored, value) == optimizer
    assert _groups(linkage, stored, x) == _groups(linkage, stored, y) == (-1, -1)
    assert stored.limits.tolist() == [16, 32, 16, 32]


def test_the_op_that_makes_a_new_leaf_is_of_the_optimizers_side():
    linkage, stored = _stored()
    optimizer = _groups(linkage, stored, 1)
    for output in linkage.graph.outputs[:2]:
        assert update_groups(linkage, stored, output) == optimizer


def test_groups_of_different_dimensions_and_sides_stay_apart_when_folded():
    linkage, stored = _stored()
    classes = fold_storage(linkage, stored, fold(linkage), STATE)
    assert sorted(classes.tolist()) == [0, 1, 2, 3]
