"""What flattening makes of calls, tuples, loops, branches and identities, on HLO by hand."""

from jax.experimental.layout import Layout, with_layout_constraint
import jax.numpy as jnp
import pytest

from hlo_tools.errors import HloError
from hlo_tools.graph import HandOver, flatten, sources_by_output
from hlo_tools.jax_compat import text_to_proto
from hlo_tools.read.proto import decode_module
from hlo_tools.rules import parse_notation
from tests.hlo_tools.graphs import step_graph, text_graph


CALLS = """
scale { p = f32[4] parameter(0)  ROOT m = f32[4] multiply(p, p), metadata={op_name="inner"} }
ENTRY main {
  x = f32[4] parameter(0)
  first = f32[4] call(x), to_apply=scale, metadata={op_name="jit(f)/first"}
  second = f32[4] call(first), to_apply=scale, metadata={op_name="jit(f)/second"}
  pair = (f32[4], f32[4]) tuple(second, x)
  again = f32[4] get-tuple-element(pair), index=1
  copied = f32[4] copy(again)
  ROOT sum = f32[4] add(second, copied)
}
"""
LOOP = """
body {
  carried = (s32[], f32[4], f32[4]) parameter(0)
  i = s32[] get-tuple-element(carried), index=0
  x = f32[4] get-tuple-element(carried), index=1
  w = f32[4] get-tuple-element(carried), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  y = f32[4] multiply(x, w)
  ROOT out = (s32[], f32[4], f32[4]) tuple(next, y, w)
}
condition {
  carried = (s32[], f32[4], f32[4]) parameter(0)
  i = s32[] get-tuple-element(carried), index=0
  limit = s32[] constant(5)
  ROOT less = pred[] compare(i, limit), direction=LT
}
ENTRY main {
  x = f32[4] parameter(0)
  w = f32[4] parameter(1)
  zero = s32[] constant(0)
  initial = (s32[], f32[4], f32[4]) tuple(zero, x, w)
  loop = (s32[], f32[4], f32[4]) while(initial), condition=condition, body=body
  ROOT result = f32[4] get-tuple-element(loop), index=1
}
"""
BRANCHES = """
double { p = f32[4] parameter(0)  ROOT d = f32[4] add(p, p) }
same { ROOT p = f32[4] parameter(0) }
ENTRY main {
  which = pred[] parameter(0)
  x = f32[4] parameter(1)
  y = f32[4] parameter(2)
  ROOT one = f32[4] conditional(which, x, y), true_computation=double, false_computation=same
}
"""


def _opcodes(graph):
    return [op.opcode for op in graph.ops]


def test_calls_are_inlined_and_tuples_and_copies_are_no_ops():
    graph = text_graph(CALLS)
    assert _opcodes(graph) == ["multiply", "multiply", "add"]
    assert [op.inputs for op in graph.ops] == [(0, 0), (1, 1), (2, 0)]
    assert graph.inputs == (0,) and graph.outputs == (3,)
    assert [op.op_name for op in graph.ops[:2]] == ["jit(f)/first/inner", "jit(f)/second/inner"]
    assert list(graph.users) == [[0, 2], [1], [2], []]


def test_a_function_that_the_user_has_a_rule_for_is_one_custom_call():
    graph = text_graph(CALLS, {"scale": parse_notation("i->i")})
    assert _opcodes(graph) == ["custom-call", "custom-call", "add"]
    assert graph.ops[0].instruction.attributes.custom_call_target == "scale"


def test_an_order_of_dimensions_that_is_said_is_no_op():
    graph = step_graph(
        lambda x: jnp.tanh(with_layout_constraint(jnp.sin(x), Layout((1, 0)))), (4, 8)
    )
    assert _opcodes(graph) == ["sine", "tanh"]


def test_a_loop_is_two_ops_around_its_body_which_stands_once():
    graph = text_graph(LOOP)
    assert _opcodes(graph) == ["constant", "while", "constant", "add", "multiply", "while-exit"]
    enter, leave = graph.ops[1], graph.ops[5]
    assert [op.trip_count for op in graph.ops] == [1, 1, 5, 5, 5, 1]
    assert graph.exit_by_entry == {1: 5}
    # The weight comes out of each trip as it went in.
    assert leave.inputs[2] == enter.outputs[2] and leave.inputs[1] != enter.outputs[1]
    assert [graph.hand_over(v) for v in enter.outputs] == [
        HandOver.CHANGED,
        HandOver.CHANGED,
        HandOver.KEPT,
    ]
    assert graph.hand_over(leave.outputs[1]) is HandOver.CHANGED
    assert graph.hand_over(graph.inputs[0]) is None
    # Before, inside, at the end of a trip and after it a carry is one tensor.
    first = enter.outputs[1]
    assert {a for a, b in graph.ties if b == first} == {
        graph.inputs[0],
        leave.inputs[1],
        leave.outputs[1],
    }
    assert list(sources_by_output(enter)) == list(zip(enter.outputs, [(v,) for v in enter.inputs]))
    # The counter starts as a constant, but is another number in each trip.
    assert all(graph.varies[v] for v in enter.outputs)
    assert not graph.varies[graph.ops[0].outputs[0]]


def test_both_branches_stand_between_two_ops_and_end_in_one_result():
    graph = text_graph(BRANCHES)
    assert _opcodes(graph) == ["conditional", "add", "conditional-exit"]
    _, x, y = graph.inputs
    doubled = graph.ops[1].outputs[0]
    leave = graph.ops[2]
    assert graph.ops[1].inputs == (x, x)
    assert leave.inputs == (doubled, y)
    assert list(sources_by_output(leave)) == [(leave.outputs[0], (doubled, y))]
    assert set(graph.ties) == {(doubled, leave.outputs[0]), (y, leave.outputs[0])}


def test_a_fusion_is_inlined_or_kept_as_it_runs():
    text = CALLS.replace("call(x), to_apply=scale", "fusion(x), kind=kLoop, calls=scale")
    module = decode_module(text_to_proto(f"HloModule test\n{text}"))
    assert _opcodes(flatten(module)) == ["multiply", "multiply", "add"]
    # A copy takes time where fusions are looked at as they run.
    assert _opcodes(flatten(module, fusions="kept")) == ["fusion", "multiply", "copy", "add"]


@pytest.mark.parametrize(("dims", "opcodes"), [("4,8", []), ("2,8", ["constant", "dynamic-slice"])])
def test_a_slice_of_all_there_is_is_no_op(dims, opcodes):
    graph = text_graph(f"""
ENTRY main {{
  x = f32[4,8] parameter(0)
  zero = s32[] constant(0)
  ROOT s = f32[{dims}] dynamic-slice(x, zero, zero), dynamic_slice_sizes={{{dims}}}
}}
""")
    assert [o for o in _opcodes(graph) if o != "constant" or opcodes] == opcodes


@pytest.mark.parametrize(
    ("numbers", "result", "opcode"),
    [
        ("lhs_contracting_dims={}, rhs_contracting_dims={}", "4,6,4,6", "outer-product"),
        (
            "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={}, "
            "rhs_contracting_dims={}",
            "4,6,6",
            "outer-product",
        ),
        ("lhs_contracting_dims={1}, rhs_contracting_dims={1}", "4,4", "dot"),
    ],
)
def test_a_dot_that_sums_over_nothing_is_an_outer_product(numbers, result, opcode):
    graph = text_graph(
        f"ENTRY m {{ x = f32[4,6] parameter(0) ROOT y = f32[{result}] dot(x, x), {numbers} }}"
    )
    assert _opcodes(graph) == [opcode]


def test_what_runs_more_often_than_can_be_counted_is_refused():
    text = LOOP.replace("constant(5)", "constant(2000000000)")
    assert max(op.trip_count for op in text_graph(text).ops) == 2_000_000_000
    nested = """
inner_body {
  c = (s32[]) parameter(0)
  i = s32[] get-tuple-element(c), index=0
  one = s32[] constant(1)
  n = s32[] add(i, one)
  ROOT t = (s32[]) tuple(n)
}
inner_condition {
  c = (s32[]) parameter(0)
  i = s32[] get-tuple-element(c), index=0
  limit = s32[] constant(2000000)
  ROOT less = pred[] compare(i, limit), direction=LT
}
outer_body {
  c = (s32[]) parameter(0)
  i = s32[] get-tuple-element(c), index=0
  zero = s32[] constant(0)
  start = (s32[]) tuple(zero)
  loop = (s32[]) while(start), condition=inner_condition, body=inner_body
  one = s32[] constant(1)
  n = s32[] add(i, one)
  ROOT t = (s32[]) tuple(n)
}
ENTRY main {
  x = s32[] constant(0)
  start = (s32[]) tuple(x)
  ROOT loop = (s32[]) while(start), condition=inner_condition, body=outer_body
}
"""
    with pytest.raises(HloError, match="runs 4000000000000 times in a step"):
        text_graph(nested)
