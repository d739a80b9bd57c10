"""How often values change: carries that a loop passes on, and what is made of them."""

import jax
from jax import lax
import jax.numpy as jnp

from hlo_tools.analyses.invariants import changes, passed_on
from hlo_tools.graph import flatten
from hlo_tools.opcodes import LOOP_ENTER
from hlo_tools.read.proto import decode_module


def _graph(function, *shapes):
    args = [jax.ShapeDtypeStruct(s, "float32") for s in shapes]
    lowered = jax.jit(function, keep_unused=True).lower(*args)
    return flatten(decode_module(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()))


def _of_opcode(graph, opcode):
    counts = changes(graph)
    return [counts[op.outputs[0]] for op in graph.ops if op.opcode == opcode]


def test_a_weight_that_a_loop_only_reads_never_changes():
    def run(w, x):
        return lax.scan(lambda c, _: (jnp.tanh(c @ jnp.sin(w)), None), x, None, length=5)[0]

    graph = _graph(run, (4, 4), (2, 4))
    assert _of_opcode(graph, "sine") == [1]
    assert _of_opcode(graph, "dot") == [5]
    (loop,) = (i for i, op in enumerate(graph.ops) if op.opcode == LOOP_ENTER)
    weights = [v for v in passed_on(graph, loop) if graph.values[v].dims == (4, 4)]
    assert len(weights) == 1


def test_nested_loops_multiply():
    def inner(c, w):
        return lax.fori_loop(0, 3, lambda i, y: jnp.tanh(y @ jnp.sin(w)), c), None

    graph = _graph(lambda ws, x: lax.scan(inner, x, ws)[0], (5, 4, 4), (2, 4))
    # A layer's weight changes with the layer, not with the steps inside it.
    assert _of_opcode(graph, "sine") == [5]
    assert _of_opcode(graph, "tanh") == [15]


def test_a_step_without_loops_changes_once():
    graph = _graph(lambda x: jnp.sin(x) + 1, (4,))
    assert set(changes(graph)) == {1}
