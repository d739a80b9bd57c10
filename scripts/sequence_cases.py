"""Sequences, heads and windows: steps of `scripts.compare_tpu_kernels` with vectors that meet
matrices, loops over steps, associative scans, attention of one product, and windows of images.
"""

from collections.abc import Callable, Iterator
from functools import partial

import jax
from jax import Array, numpy as jnp

from scripts.kernel_cases import BF, F32, KernelCase, kernel_case


_FEATURES = 512


def sequences() -> Iterator[KernelCase]:
    """Of each kind a few sizes, in float32 and bfloat16."""
    for dtype in (F32, BF):
        name = jnp.dtype(dtype).name
        yield from _vectors(dtype, name)
        yield from _loops(dtype, name)
        for batch, length, d, heads in ((8, 512, 1024, 8), (8, 512, 1024, 16), (64, 64, 256, 8)):
            sizes = f"{batch} x {length} x {d}, {heads} heads, {name}"
            given = (((batch, length, d), dtype), ((d, 3 * d), dtype), ((d, d), dtype))
            yield kernel_case("heads of one product", sizes, partial(_attention, heads), *given)
        for batch, size, side, d in ((8, 32, 8, 256), (8, 56, 7, 96)):
            sizes = f"{batch} x {size} x {size} x {d}, windows of {side}, {name}"
            given = (((batch, size, size, d), dtype), ((d, 3 * d), dtype))
            yield kernel_case("windows, product", sizes, partial(_windows, side), *given)
        yield from _scans(dtype, name)
        for activation in (jax.nn.gelu, jax.nn.silu, jnp.tanh):
            given = (((8192, 1024), dtype), ((1024, 4096), dtype), ((4096, 1024), dtype))
            sizes = f"{activation.__name__}, {name}"
            yield kernel_case("block, gradient", sizes, partial(_gradients, activation), *given)


def _vectors(dtype: jnp.dtype, name: str) -> Iterator[KernelCase]:
    for m, n in ((8192, 4096), (1024, 65536), (65536, 1024), (1024, 1024)):
        given = (((m,), dtype), ((m, n), dtype))
        yield kernel_case("vector, matrix", f"{m} x {n} {name}", lambda x, w: x @ w, *given)
    layers = ((6, 1024, 4096), dtype), ((6, 4096, 1024), dtype)
    yield kernel_case("layers of one row", name, _layers, ((1, 1024), dtype), *layers)
    for batch, heads, d in ((8, 16, 128), (4, 8, 64)):
        cache = (6, batch, 1024, heads, d), dtype
        sizes = f"{batch} x {heads} x {d} {name}"
        given = (((batch, heads, d), dtype), cache, cache)
        yield kernel_case("caches, one query", sizes, _decoded, *given)
    for batch, heads, d in ((8, 16, 128), (4, 8, 64)):
        vectors = ((32, batch, heads, d), dtype)
        state = ((batch, heads, d, d), dtype)
        sizes = f"{batch} x {heads} x {d} x {d} {name}"
        yield kernel_case("states of matrices", sizes, _states, state, vectors, vectors, vectors)


def _loops(dtype: jnp.dtype, name: str) -> Iterator[KernelCase]:
    for batch, length, heads in ((8, 256, 8), (8, 100, 8), (32, 256, 8), (8, 256, 16), (8, 256, 4)):
        sizes = f"{batch} x {length}, {heads} heads {name}"
        given = (((batch, length, _FEATURES), dtype), ((_FEATURES, _FEATURES), dtype))
        yield kernel_case("loop over heads", sizes, partial(_recurrent, heads), *given)


def _scans(dtype: jnp.dtype, name: str) -> Iterator[KernelCase]:
    for batch, length, features in ((8, 1024, 128), (16, 512, 256), (2, 2048, 512)):
        given = (((batch, length, features), dtype),) * 2
        sizes = f"{batch} x {length} x {features} {name}"
        for scan in (_associative, _summed):
            what = f"{scan.__name__.strip('_')} scan"
            yield kernel_case(what, sizes, scan, *given)
            yield kernel_case(f"{what}, gradient", sizes, partial(_scan_gradients, scan), *given)


def _associative(decay: Array, x: Array) -> Array:
    """h_t = decay_t h_{t-1} + x_t."""

    def joined(first: tuple[Array, Array], last: tuple[Array, Array]) -> tuple[Array, Array]:
        return first[0] * last[0], last[0] * first[1] + last[1]

    return jax.lax.associative_scan(joined, (decay, x), axis=1)[1]


def _summed(decay: Array, x: Array) -> Array:
    return jax.lax.associative_scan(jnp.add, decay * x, axis=1)


def _scan_gradients(
    scan: Callable[[Array, Array], Array], decay: Array, x: Array
) -> tuple[Array, ...]:
    def loss(decay: Array, x: Array) -> Array:
        return jnp.sum(jnp.tanh(scan(decay, x)).astype(F32) ** 2)

    return jax.grad(loss, argnums=(0, 1))(decay, x)


def _layers(x: Array, up: Array, down: Array) -> Array:
    def layer(x: Array, w: tuple[Array, Array]) -> tuple[Array, None]:
        return x + jnp.tanh(x @ w[0]) @ w[1], None

    return jax.lax.scan(layer, x, (up, down))[0]


def _decoded(query: Array, keys: Array, values: Array) -> Array:
    def layer(q: Array, cache: tuple[Array, Array]) -> tuple[Array, None]:
        keys, values = cache
        score = jnp.einsum("bhd,bshd->bhs", q, keys).astype(F32)
        share = jax.nn.softmax(score).astype(q.dtype)
        return q + jnp.einsum("bhs,bshd->bhd", share, values), None

    return jax.lax.scan(layer, query, (keys, values))[0]


def _states(state: Array, queries: Array, keys: Array, values: Array) -> Array:
    def token(state: Array, at: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        query, key, value = at
        wrong = value - jnp.einsum("bhkv,bhk->bhv", state, key)
        state = state + jnp.einsum("bhk,bhv->bhkv", key, wrong)
        return state, jnp.einsum("bhkv,bhk->bhv", state, query)

    return jax.lax.scan(token, state, (queries, keys, values))[1]


def _recurrent(heads: int, x: Array, w: Array) -> Array:
    entered = (x @ w).reshape(*x.shape[:2], heads, -1)

    def token(state: Array, at: Array) -> tuple[Array, Array]:
        state = jnp.tanh(state + at)
        return state, state

    steps = jnp.moveaxis(entered, 1, 0)
    states = jax.lax.scan(token, jnp.zeros(steps.shape[1:], x.dtype), steps)[1]
    return jnp.moveaxis(states, 0, 1).reshape(x.shape) @ w.T


def _attention(heads: int, x: Array, qkv: Array, o: Array) -> Array:
    q, k, v = (z.reshape(*z.shape[:-1], heads, -1) for z in jnp.split(x @ qkv, 3, -1))
    score = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(F32)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(score).astype(x.dtype), v)
    return mixed.reshape(x.shape) @ o


def _windows(side: int, x: Array, w: Array) -> Array:
    batch, size, _, d = x.shape
    count = size // side
    parts = x.reshape(batch, count, side, count, side, d).swapaxes(2, 3)
    return parts.reshape(batch, count**2, side**2, d) @ w


def _gradients(
    activation: Callable[[Array], Array], x: Array, w: Array, o: Array
) -> tuple[Array, ...]:
    def loss(x: Array, w: Array, o: Array) -> Array:
        return jnp.sum((activation(x @ w) @ o).astype(F32) ** 2)

    return jax.grad(loss, (0, 1, 2))(x, w, o)
