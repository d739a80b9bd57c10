"""Every kind of convolution with its gradients, split at random, computes what one device computes.

XLA's partitioner does not by itself: see `hlo_tools.rules.convolution`.
"""

from random import Random

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import pytest

from automap.api.plan import Plan
from automap.planner.records import build_plan
from automap.program import trace_step
from tests.automap.runtime.random_outcomes import random_outcome


NUMBERS = ("NWHC", "WHIO", "NWHC")
OPTIONS = {
    "plain": ((3, 3, 8, 8), {}),
    "one tap": ((1, 1, 8, 8), {}),
    "strided": ((3, 3, 8, 8), {"window_strides": (2, 2)}),
    "strided tap": ((1, 1, 8, 8), {"window_strides": (2, 2)}),
    "patches": ((4, 4, 8, 8), {"window_strides": (4, 4), "padding": "VALID"}),
    "dilated": ((3, 3, 8, 8), {"rhs_dilation": (2, 2)}),
    "transposed": ((3, 3, 8, 8), {"lhs_dilation": (2, 2), "padding": ((1, 2), (1, 2))}),
    "valid": ((3, 3, 8, 8), {"padding": "VALID"}),
    "groups": ((3, 3, 4, 8), {"feature_group_count": 2}),
    "strided groups": ((3, 3, 4, 8), {"feature_group_count": 2, "window_strides": (2, 2)}),
    "groups of one tap": ((1, 1, 4, 8), {"feature_group_count": 2}),
    "depthwise": ((3, 3, 1, 16), {"feature_group_count": 8}),
    "depthwise tap": ((1, 1, 1, 16), {"feature_group_count": 8}),
    "depthwise along one": ((3, 1, 1, 8), {"feature_group_count": 8}),
    "whole image": ((16, 16, 8, 8), {"padding": "VALID"}),
    "whole image in groups": ((16, 16, 4, 8), {"feature_group_count": 2, "padding": "VALID"}),
}
SEEDS = 3


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", ["plain", "strided", "depthwise"])
def test_one_operand_may_be_a_constant(name, seed):
    shape, options = OPTIONS[name]
    options = {"window_strides": (1, 1), "padding": "SAME", **options}
    rng, keys = Random(f"{name} {seed}"), jax.random.split(jax.random.key(seed))
    image = jax.random.normal(keys[0], (8, 16, 16, 8))

    def step(kernel, target):
        def loss(kernel):
            y = lax.conv_general_dilated(image, kernel, dimension_numbers=NUMBERS, **options)
            return jnp.mean((y - target) ** 2)

        return jax.value_and_grad(loss)(kernel)

    kernel = jax.random.normal(keys[1], shape)
    made = jax.eval_shape(
        lambda k: lax.conv_general_dilated(image, k, dimension_numbers=NUMBERS, **options), kernel
    )
    inputs = kernel, jax.random.normal(keys[0], made.shape)
    outcome = random_outcome(trace_step(step, inputs), rng)
    got, want = jax.device_get(
        (Plan.from_record(build_plan(outcome)).jit(step)(*inputs), step(*inputs))
    )
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(b).max())


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", OPTIONS)
def test_a_split_convolution_and_its_gradients(name, seed):
    shape, options = OPTIONS[name]
    options = {"window_strides": (1, 1), "padding": "SAME", **options}
    rng = Random(f"{name} {seed}")

    def step(x, kernel):
        def loss(x, kernel):
            y = lax.conv_general_dilated(x, kernel, dimension_numbers=NUMBERS, **options)
            return jnp.sum(y**2), y

        (_, y), gradients = jax.value_and_grad(loss, (0, 1), has_aux=True)(x, kernel)
        return y, gradients

    keys = jax.random.split(jax.random.key(seed))
    inputs = jax.random.normal(keys[0], (8, 16, 16, 8)), jax.random.normal(keys[1], shape)
    outcome = random_outcome(trace_step(step, inputs), rng)
    got, want = jax.device_get(
        (Plan.from_record(build_plan(outcome)).jit(step)(*inputs), step(*inputs))
    )
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        # Sums of some ten thousand float32 terms in another order, and of squares of them.
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(b).max())


POOLS = {
    "pool": ((1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
    "overlapping": ((1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
    "dense": ((1, 3, 3, 1), (1, 1, 1, 1), "SAME"),
    "wide": ((1, 5, 5, 1), (1, 1, 1, 1), ((0, 0), (2, 2), (2, 2), (0, 0))),
    "valid": ((1, 3, 1, 1), (1, 1, 1, 1), "VALID"),
    "half": ((1, 5, 4, 1), (1, 2, 2, 1), "VALID"),
    "along one": ((1, 4, 1, 1), (1, 4, 1, 1), "VALID"),
}


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("reduce", ["max", "sum"])
@pytest.mark.parametrize("name", POOLS)
def test_a_split_pool_and_its_gradient(name, reduce, seed):
    window, strides, padding = POOLS[name]
    start, combine = (-jnp.inf, lax.max) if reduce == "max" else (0.0, lax.add)

    def step(x):
        def loss(x):
            y = lax.reduce_window(jnp.sin(x), start, combine, window, strides, padding)
            return jnp.mean(y**2), y

        (_, y), gradient = jax.value_and_grad(loss, has_aux=True)(x)
        return y, gradient

    x = jax.random.normal(jax.random.key(seed), (8, 16, 16, 8))
    outcome = random_outcome(trace_step(step, (x,)), Random(f"{name} {reduce} {seed}"))
    got, want = jax.device_get((Plan.from_record(build_plan(outcome)).jit(step)(x), step(x)))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
