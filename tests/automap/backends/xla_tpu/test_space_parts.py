"""Convolutions: what libtpu 0.0.51 gives the kernels of chains of three for v5e, in microseconds,
of few examples and of many, of few features and of many.
"""

import jax
from jax import lax
import jax.numpy as jnp
import pytest

from tests.automap.backends.xla_tpu.test_padded_arrays import microseconds


def _chain(x, *kernels):
    space = "HW" if x.ndim == 4 else "W"
    for kernel in kernels:
        dims = (f"N{space}C", f"{space}IO", f"N{space}C")
        x = lax.conv_general_dilated(x, kernel, (1,) * len(space), "SAME", dimension_numbers=dims)
        x = jax.nn.relu(x)
    return x


def _gradients(x, *kernels):
    def loss(kernels):
        return (_chain(x, *kernels).astype("float32") ** 2).sum()

    return jax.grad(loss)(kernels)


def _args(examples, space, features, taps=3):
    kernel = (*(taps,) * len(space), features, features)
    dims = (examples, *space, features)
    return [jax.ShapeDtypeStruct(d, "bfloat16") for d in (dims, *[kernel] * 3)]


@pytest.mark.parametrize(
    ("examples", "space", "features", "compiled"),
    [
        (8, (64, 64), 64, 176.1),
        (16, (64, 64), 64, 364.7),
        (64, (64, 64), 64, 1510.6),
        (8, (64, 64), 128, 208.9),
        (16, (64, 64), 128, 433.4),
        (8, (128, 128), 256, 2723.8),
    ],
)
def test_few_features_take_tiles_of_many(examples, space, features, compiled):
    predicted = microseconds(_chain, _args(examples, space, features))
    assert predicted == pytest.approx(compiled, rel=0.25)


def test_many_examples_lie_along_tiles_in_place_of_features():
    few, many = (microseconds(_chain, _args(n, (32, 32), 64)) / n for n in (48, 128))
    # Both sides are padded to twice their features, or one of them.
    assert many < 0.7 * few


def test_taps_of_few_features_lie_side_by_side():
    # Padded on both sides 32 features would take four times the flops of 64 for each that counts.
    few, many = (microseconds(_chain, _args(16, (64, 64), n)) for n in (32, 64))
    assert few < 0.45 * many


@pytest.mark.parametrize(("images", "compiled"), [(64, 87.9), (128, 106.5), (256, 207.4)])
def test_gradients_of_filters_are_padded_by_what_they_make(images, compiled):
    x = jax.ShapeDtypeStruct((images, 32, 32, 64), "float32")

    def gradient(x, g):
        def convolved(kernel):
            dims = ("NHWC", "HWIO", "NHWC")
            return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=dims)

        return jax.vjp(convolved, jnp.zeros((3, 3, 64, 64), x.dtype))[1](g)[0]

    assert microseconds(gradient, (x, x)) == pytest.approx(compiled, rel=0.35)


@pytest.mark.parametrize(
    ("step", "examples", "space", "compiled"),
    [
        (_gradients, 1, (64, 64), 275.4),
        (_gradients, 2, (64, 64), 511.9),
        (_gradients, 4, (64, 64), 1059.1),
        (_gradients, 7, (64, 64), 1801.2),
        (_gradients, 8, (64, 64), 458.8),
        (_gradients, 2, (1024,), 132.3),
        (_chain, 4, (32, 32), 81.6),
        (_chain, 3, (64, 64), 202.7),
        (_chain, 7, (64, 64), 482.3),
    ],
)
def test_images_of_few_examples_are_cut_and_copied(step, examples, space, compiled):
    predicted = microseconds(step, _args(examples, space, 128))
    assert predicted == pytest.approx(compiled, rel=0.3)


def test_what_a_plan_leaves_of_the_examples_decides():
    args = _args(16, (64, 64), 128)
    whole, parts = microseconds(_chain, args), microseconds(_chain, args, 8)
    # Two examples on each device take longer than the sixteen together by what is copied.
    assert 8 * parts > 2 * whole
    assert microseconds(_chain, args, 2) == pytest.approx(whole / 2, rel=0.05)
    # Eight columns, or windows of one element, are not cut.
    narrow = microseconds(_chain, _args(4, (64, 8), 128))
    assert narrow == pytest.approx(microseconds(_chain, _args(8, (64, 8), 128)) / 2, rel=0.25)
    # Sixteen columns on a device are cut, eight are not.
    cut, whole = (microseconds(_chain, _args(4, (64, n), 128), 8, 2) / n for n in (128, 64))
    assert cut > 2 * whole
