"""Trips of loops against Python's `range`."""

from hypothesis import example, given, settings, strategies as st
import jax
import jax.numpy as jnp
import pytest

from hlo_tools.graph import Graph, flatten
from hlo_tools.jax_compat import text_to_proto
from hlo_tools.opcodes import LOOP_ENTER, LOOP_EXIT
from hlo_tools.read.proto import decode_module


def _graph(start, limit, body, carried) -> Graph:
    def step(x):
        state = jax.lax.while_loop(lambda c: c[0] < limit, body, (start, x, *carried))
        return state[1]

    lowered = jax.jit(step).lower(jax.ShapeDtypeStruct((4, 4), jnp.float32))
    return flatten(decode_module(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()))


def _dots(graph: Graph) -> set[int]:
    return {op.trip_count for op in graph.ops if op.opcode == "dot"}


@settings(max_examples=15)
@given(start=st.integers(-5, 5), trips=st.integers(0, 20), step=st.integers(1, 7))
@example(start=0, trips=4, step=2)
def test_counters_that_go_by_any_step(start, trips, step):
    limit = start + trips
    graph = _graph(start, limit, lambda c: (c[0] + step, c[1] @ c[1]), ())
    assert _dots(graph) == {len(range(start, limit, step))}
    assert graph.assumptions == ()


def test_a_step_that_the_loop_carries_along():
    graph = _graph(0, 12, lambda c: (c[0] + c[2], c[1] @ c[1], c[2]), (3,))
    assert _dots(graph) == {4}


def test_a_counter_that_is_no_sum_is_taken_to_go_by_one_and_named():
    graph = _graph(1, 9, lambda c: (c[0] * 2, c[1] @ c[1]), ())
    assert _dots(graph) == {8}
    assert any("taken to go by one" in text for text in graph.assumptions)


FUSED = """HloModule m
f { p = s32[] parameter(0)
  two = s32[] constant(2)
  ROOT s = s32[] add(p, two) }
body { c = (s32[], f32[4,4]) parameter(0)
  i = s32[] get-tuple-element(c), index=0
  x = f32[4,4] get-tuple-element(c), index=1
  next = s32[] fusion(i), kind=kLoop, calls=f
  y = f32[4,4] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT t = (s32[], f32[4,4]) tuple(next, y) }
condition { c = (s32[], f32[4,4]) parameter(0)
  i = s32[] get-tuple-element(c), index=0
  limit = s32[] constant(7)
  ROOT less = pred[] compare(i, limit), direction=LT }
ENTRY e { x = f32[4,4] parameter(0)
  zero = s32[] constant(0)
  s = (s32[], f32[4,4]) tuple(zero, x)
  w = (s32[], f32[4,4]) while(s), condition=condition, body=body
  ROOT r = f32[4,4] get-tuple-element(w), index=1 }
"""


@pytest.mark.parametrize("fusions", ["inlined", "kept"])
def test_a_counter_that_the_compiler_fused(fusions):
    assert _dots(flatten(decode_module(text_to_proto(FUSED)), fusions=fusions)) == {4}


def test_a_loop_of_one_trip_is_no_loop_and_its_stacks_are_no_ops():
    def step(x, kernels):
        return jax.lax.scan(lambda c, k: (c @ k, c), x, kernels)

    shapes = (4, 4), (1, 4, 4)
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    lowered = jax.jit(step).lower(*arrays)
    graph = flatten(decode_module(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()))
    opcodes = {op.opcode for op in graph.ops}
    assert _dots(graph) == {1}
    assert not opcodes & {LOOP_ENTER, LOOP_EXIT, "dynamic-slice", "dynamic-update-slice"}
    assert graph.ties  # It is partitioned as one.
    assert [graph.values[v].dims for v in graph.outputs] == [(4, 4), (1, 4, 4)]
