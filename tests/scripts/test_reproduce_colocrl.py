"""ColocRL's general rule on the equations of a forward pass, on steps whose groups are plain: for
the gradient of what is linear, or a product, nothing is computed beside the pass.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import numpy as jnp
import pytest

from scripts.reproduce_colocrl import forward_groups, traced


ARRAY = jax.ShapeDtypeStruct((4, 4), "float32")


def chain(w: jax.Array, x: jax.Array) -> jax.Array:
    """Everything is read once, so all goes to the loss."""
    return (2.0 * (x @ w)).sum()


def meeting(w: jax.Array, x: jax.Array) -> jax.Array:
    """A product that is read twice, by what meets again: one group is left in the end."""
    y = x @ w
    return ((2.0 * y) * (y + 1.0)).sum()


def shared(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two results read one product: that, with its inputs, and each of the results."""
    y = x @ w
    return (2.0 * y).sum(), (y + 1.0).sum()


def shared_input(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two results read one input, which is a group by itself."""
    return (x @ w).sum(), (2.0 * x).sum()


def learning(loss: Callable[..., Any]) -> Callable[..., Any]:
    """A step of descent on the first result."""

    def step(w: jax.Array, x: jax.Array) -> Any:
        results, pull = jax.vjp(lambda w: loss(w, x), w)
        first = jax.tree.leaves(results)[0]
        ones = [jnp.ones_like(first), *map(jnp.zeros_like, jax.tree.leaves(results)[1:])]
        (gradient,) = pull(jax.tree.unflatten(jax.tree.structure(results), ones))
        return results, w - 0.1 * gradient

    return jax.jit(step)


@pytest.mark.parametrize(
    ("loss", "groups"), [(chain, 1), (meeting, 1), (shared, 3), (shared_input, 3)]
)
def test_what_one_other_alone_reads_goes_to_that(loss: Callable[..., Any], groups: int) -> None:
    target: Any = (learning(loss), (ARRAY, ARRAY))
    assert forward_groups(traced(lambda: target)) == groups
