"""Loops over steps that lie side by side: what libtpu 0.0.51 gives them, and closed forms."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

from automap.topology import get_topology
from hlo_tools.analyses.rearranged import lane_stacks, parts_of_lane_stacks
from scripts.compare_measured import predicted_alone
from tests.hlo_tools.graphs import step_graph


FEATURES = 512


def _recurrent(heads, x, w):
    entered = (x @ w).reshape(*x.shape[:2], heads, -1)

    def token(state, at):
        state = jnp.tanh(state + at)
        return state, state

    steps = jnp.moveaxis(entered, 1, 0)
    states = jax.lax.scan(token, jnp.zeros(steps.shape[1:], x.dtype), steps)[1]
    return jnp.moveaxis(states, 0, 1).reshape(x.shape) @ w.T


# Microseconds by examples, steps and heads, in float32 and bfloat16 (v5e, 2026-12-01).
COMPILED = {
    (8, 256, 8): (2181.2, 1826.4),
    (8, 256, 16): (2207.2, 1852.8),
    (32, 256, 8): (7492.3, 5601.7),
    # Heads of 128 features lie as any other array.
    (8, 256, 4): (353.7, 356.3),
}


@pytest.mark.parametrize(("batch", "steps", "heads"), COMPILED)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_loops_over_heads_take_what_the_compiler_says(batch, steps, heads, dtype):
    shapes = ((batch, steps, FEATURES), (FEATURES, FEATURES))
    arrays = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    step = partial(_recurrent, heads)
    predicted = predicted_alone(step, arrays, get_topology("v5e:1x1")).step_seconds * 1e6
    compiled = COMPILED[batch, steps, heads][dtype == "bfloat16"]
    assert predicted == pytest.approx(compiled, rel=0.06)


def _graph(step):
    return step_graph(step, (2, 8, 64), (64, 64))


def test_a_lane_stack_is_followed_through_what_is_computed_of_it():
    def step(x, w):
        gates, values = jnp.split(x @ w, 2, -1)
        made = jnp.tanh((gates * values).reshape(2, 8, 4, 8))
        return jax.lax.scan(lambda c, v: (c + v, None), made[:, 0], jnp.moveaxis(made, 1, 0))[0]

    graph = _graph(step)
    (part,) = parts_of_lane_stacks(graph)
    assert graph.values[part].dims == (1, 2, 4, 8)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda x, w: jnp.moveaxis(x.reshape(2, 8, 8, 8), 1, 0), id="of no product"),
        pytest.param(lambda x, w: jnp.moveaxis(x @ w, 1, 0), id="without heads"),
        pytest.param(lambda x, w: (x @ w).reshape(2, 8, 8, 8), id="not by steps"),
    ],
)
def test_other_stacks_lie_as_they_are(make):
    def step(x, w):
        steps = make(x, w)
        return jax.lax.scan(lambda c, v: (c + v, None), jnp.zeros(steps.shape[1:]), steps)[0]

    graph = _graph(step)
    assert not lane_stacks(graph)
    assert not parts_of_lane_stacks(graph)
