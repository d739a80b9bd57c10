"""A step with numbers in its arguments, and what the tests of `parallelize` ask of its results."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import automap
from tests.steps import mlp


def filled_mlp(batch=16, width=32):
    step, (state, data) = mlp(batch=batch, width=width)
    make = partial(_filled, state, data)
    return step, make


def _filled(state, data, rng):
    draw = lambda leaf: jax.random.normal(rng, leaf.shape) * 0.1  # noqa: E731
    state = jax.tree.map(draw, state)
    return {**state, "v": jax.tree.map(jnp.ones_like, state["v"])}, jax.tree.map(draw, data)


def check_equal(ours, theirs):
    # Sums over devices associate differently: a few float32 roundings of values of order one.
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def parallelized(step, **options):
    return automap.parallelize(step, topology="cpu:8", budget=2, **options)
