"""How often values change: carries that a loop passes on, and what is made of them; constant
indices against what JAX computes.
"""

from hypothesis import given, settings, strategies as st
import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from hlo_tools.analyses.invariants import Constants, changes, counts_up, passed_on
from hlo_tools.opcodes import LOOP_ENTER
from tests.hlo_tools.graphs import step_graph
from tests.steps import problem_of


STEPS = {
    "add": lambda x: x + 3,
    "subtract": lambda x: 5 - x,
    "multiply": lambda x: x * 2,
    "wrap": lambda x: jnp.where(x < 0, x + 4, x),
    "select": lambda x: jnp.where((x >= 2) & (x != 3), x, 7 - x),
    "narrow": lambda x: x.astype(jnp.uint32).astype(jnp.int32),
    "column": lambda x: x[..., None],
    "repeat": lambda x: jnp.broadcast_to(x, (2, *x.shape)),
    "flat": lambda x: x.reshape(-1),
}


def _counts(graph, opcode):
    counts = changes(graph)
    return [counts[op.outputs[0]] for op in graph.ops if op.opcode == opcode]


def test_a_weight_that_a_loop_only_reads_never_changes():
    def run(w, x):
        return lax.scan(lambda c, _: (jnp.tanh(c @ jnp.sin(w)), None), x, None, length=5)[0]

    graph = step_graph(run, (4, 4), (2, 4))
    assert _counts(graph, "sine") == [1]
    assert _counts(graph, "dot") == [5]
    (loop,) = (i for i, op in enumerate(graph.ops) if op.opcode == LOOP_ENTER)
    weights = [v for v in passed_on(graph, loop) if graph.values[v].dims == (4, 4)]
    assert len(weights) == 1


def test_nested_loops_multiply():
    def inner(c, w):
        return lax.fori_loop(0, 3, lambda i, y: jnp.tanh(y @ jnp.sin(w)), c), None

    graph = step_graph(lambda ws, x: lax.scan(inner, x, ws)[0], (5, 4, 4), (2, 4))
    # A layer's weight changes with the layer, not with the steps inside it.
    assert _counts(graph, "sine") == [5]
    assert _counts(graph, "tanh") == [15]


def test_a_step_without_loops_changes_once():
    graph = step_graph(lambda x: jnp.sin(x) + 1, (4,))
    assert set(changes(graph)) == {1}


def _constants(make):
    """The graph of a step with the array that `make` makes as its only result, and the array's
    value there.
    """
    graph = problem_of(lambda x: make(), (jax.ShapeDtypeStruct((), "float32"),)).graph
    return Constants(graph), graph.outputs[0]


@given(st.integers(2, 6), st.lists(st.sampled_from(sorted(STEPS)), max_size=6))
@settings(max_examples=20)
def test_what_is_known_is_right(size, names):
    def make():
        x = lax.iota(jnp.int32, size)
        for name in names:
            x = STEPS[name](x)
        return x

    constants, value = _constants(make)
    elements, want = constants.elements(value), np.asarray(make())
    # "and" of two masks is the one step that is not evaluated.
    assert (elements is None) == ("select" in names)
    if elements is not None:
        np.testing.assert_array_equal(elements, want)
        assert counts_up(constants, value) == (want.ravel() == np.arange(want.size)).all()


def test_data_and_large_arrays_are_not_known():
    graph = problem_of(lambda x: x + 1, (jax.ShapeDtypeStruct((4,), "int32"),)).graph
    assert Constants(graph).elements(graph.outputs[0]) is None
    constants, value = _constants(lambda: lax.iota(jnp.int32, (1 << 20) + 1))
    assert constants.elements(value) is None
