"""What is joined, cut or padded after it was computed, and ops by themselves: steps of
`scripts.compare_tpu_kernels`.
"""

from collections.abc import Iterator

import jax
from jax import Array, numpy as jnp

from scripts.kernel_cases import BF, F32, KernelCase, kernel_case


def joined() -> Iterator[KernelCase]:
    """Of each kind two sizes, in float32 and bfloat16."""
    for dtype in (F32, BF):
        name = jnp.dtype(dtype).name
        for rows, width in ((16384, 512), (65536, 1024)):
            array, sizes = ((rows, width), dtype), f"{rows} x {width} {name}"
            yield kernel_case("one op", sizes, jnp.tanh, array)
            yield kernel_case("one op of two", sizes, jnp.multiply, array, array)
            yield kernel_case("computed, joined", sizes, _joined, array, array)
            yield kernel_case("computed, cut twice", sizes, _cut, array)
            yield kernel_case("computed, padded", sizes, _padded, array)
            yield kernel_case("computed, reversed", sizes, lambda x: jnp.tanh(x)[::-1] * 2, array)
        for length, heads, d in ((2048, 16, 128), (1024, 8, 256)):
            array, sizes = ((4, length, heads, d), dtype), f"{length} x {heads} x {d} {name}"
            yield kernel_case("rotary, halves", sizes, _rotary, array)
            yield kernel_case("rotary, rotated", sizes, _rotated, array)


def _joined(x: Array, y: Array) -> Array:
    return jnp.concatenate([jnp.tanh(x) * 2, jnp.exp(y) + 1], -1)


def _cut(x: Array) -> Array:
    gate, value = jnp.split(jnp.tanh(x) * 2 + 1, 2, -1)
    return jax.nn.sigmoid(gate) * value


def _padded(x: Array) -> Array:
    return jnp.pad(jnp.tanh(x) * 2, ((8, 8), (0, 0))) + 1


def _angles(x: Array) -> tuple[Array, Array]:
    _, length, _, d = x.shape
    angles = jnp.arange(length)[:, None] / 10_000 ** (jnp.arange(0, d, 2) / d)
    return jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]


def _rotary(x: Array) -> Array:
    cos, sin = _angles(x)
    a, b = jnp.split(x.astype(F32), 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


def _rotated(x: Array) -> Array:
    cos, sin = (jnp.concatenate([half, half], -1) for half in _angles(x))
    wide = x.astype(F32)
    a, b = jnp.split(wide, 2, -1)
    return (wide * cos + jnp.concatenate([-b, a], -1) * sin).astype(x.dtype)
