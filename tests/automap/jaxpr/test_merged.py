"""Merged products and convolutions compute what the step computes."""

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import pytest

from automap.errors import PlanError
from automap.jaxpr.flatten import flatten
from automap.jaxpr.merged import staged


def _flat(step, *args):
    return flatten(jax.jit(step).trace(*args).jaxpr, {})


def _sites(flat, primitive):
    return [e.path for e in flat.equations if e.eqn.primitive.name == primitive]


def _convolution(x, w, stride, padding):
    return lax.conv_general_dilated(
        x, w, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


WINDOWS = {
    "1x1 and 3x3": (1, "SAME", [(1, 1), (3, 3)]),
    "equal": (1, "SAME", [(3, 3), (3, 3)]),
    "factorized": (1, "SAME", [(1, 3), (3, 1), (1, 1)]),
    "5x5, 1x1, 3x3": (1, "SAME", [(5, 5), (1, 1), (3, 3)]),
    "stride 2, SAME": (2, "SAME", [(3, 3), (5, 5), (1, 1)]),
    "stride 2, VALID": (2, "VALID", [(3, 3), (3, 3)]),
    "even windows": (1, "SAME", [(2, 2), (4, 4), (3, 2)]),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_convolutions_of_one_image_are_one_with_equal_numbers(name):
    stride, padding, windows = WINDOWS[name]
    x = _normal(0, 2, 9, 8, 3)
    weights = [_normal(n + 1, *window, 3, 4 + n) for n, window in enumerate(windows)]

    def step(x, weights):
        return [jnp.tanh(_convolution(x, w, stride, padding)) for w in weights]

    flat = _flat(step, x, weights)
    run = staged(flat, [(_sites(flat, "conv_general_dilated"), True)])
    made = jax.jit(run)(x, *weights)
    for got, expected in zip(made, step(x, weights), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    text = str(jax.make_jaxpr(run)(x, *weights))
    assert text.count("conv_general_dilated[") == 1


def test_products_of_one_operand_are_one_with_equal_numbers():
    x, weights = _normal(0, 2, 5, 8), [_normal(n, 8, 3 + n) for n in range(3)]

    def step(x, weights):
        # The last weight is made behind the first product: it has to come before the merged one.
        first = x @ weights[0]
        return first, x @ weights[1], x @ (weights[2] * 2)

    flat = _flat(step, x, weights)
    run = staged(flat, [(_sites(flat, "dot_general"), True)])
    for got, expected in zip(run(x, *weights), step(x, weights), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    assert str(jax.make_jaxpr(run)(x, *weights)).count("dot_general[") == 1


def test_equations_stand_in_the_order_of_the_stages():
    def step(x):
        return jnp.sin(x), jnp.cos(x), jnp.exp(jnp.tan(x))

    flat = _flat(step, 1.0)
    (sine,), (cosine,), (exponential,) = (_sites(flat, name) for name in ("sin", "cos", "exp"))
    run = staged(flat, [([exponential], False), ([cosine], False), ([sine], False)])
    names = [eqn.primitive.name for eqn in jax.make_jaxpr(run)(1.0).eqns]
    assert names == ["tan", "exp", "cos", "sin"]


@pytest.mark.parametrize("what", ["two operands", "other primitives", "absent", "dependent"])
def test_what_cannot_be_merged_is_refused(what):
    x, y, w = _normal(0, 4, 4), _normal(1, 4, 4), _normal(2, 4, 4)
    steps = {
        "two operands": lambda x, y, w: (x @ w, y @ w),
        "other primitives": lambda x, y, w: (x @ w, jnp.sin(x)),
        "absent": lambda x, y, w: (x @ w, x @ y),
        "dependent": lambda x, y, w: (x @ (x @ w),),
    }
    flat = _flat(steps[what], x, y, w)
    sites = _sites(flat, "dot_general") + _sites(flat, "sin")
    sites = [*sites, "99"] if what == "absent" else sites
    with pytest.raises(PlanError, match="plan again|reads another"):
        staged(flat, [(sites, True)])


def test_a_step_with_effects_is_refused():
    def step(x):
        jax.debug.print("{}", x, ordered=True)
        return x

    with pytest.raises(PlanError, match="effects"):
        staged(_flat(step, 1.0), [])
