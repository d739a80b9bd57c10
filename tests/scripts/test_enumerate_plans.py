"""All plans of a space, held to what moves come to."""

import jax
import jax.numpy as jnp
import pytest


pytest.importorskip("torch")

from automap.search.exhaustive import size
from automap.search.moves import moves
from scripts.enumerate_plans import all_points
from tests.automap.search.contexts import search_context
from tests.steps import mlp


def square():
    """A parameter whose dimensions are one class, so that it has two sides."""

    def loss(w, x):
        return (jnp.tanh(x @ w) @ w).sum() + ((x @ w @ w.T) ** 2).mean()

    def step(w, x):
        value, gradient = jax.value_and_grad(loss)(w, x)
        return w - 0.1 * gradient, value

    return step, (
        jax.ShapeDtypeStruct((32, 32), "float32"),
        jax.ShapeDtypeStruct((16, 32), "float32"),
    )


@pytest.mark.parametrize(("make", "has_sides"), [(mlp, False), (square, True)])
def test_no_move_leaves_the_points_that_are_enumerated(make, has_sides):
    context = search_context(*make(), topology="2xh100")
    space = context.space
    listed = list(all_points(context))
    points = set(listed)
    assert len(listed) == len(points)
    # Without sides as many as the closed form of `automap.search.exhaustive`; sides make more.
    without = [p for p in listed if not p.last_dim_classes and not p.small_whole_classes]
    assert len(without) == size(context, 10**6)
    assert (len(without) < len(listed)) == has_sides
    reached = {move.apply(space, p) for p in listed for move in moves(space, p)}
    assert {p for p in reached if space.is_valid(p)} <= points
