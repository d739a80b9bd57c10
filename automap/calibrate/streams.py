"""Loops of kernels that memory bounds, one per family; the bytes are those that the kernel reads
and writes.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import jax
from jax import lax, numpy as jnp
import numpy as np

from automap.calibrate.loops import Arrays, Program, poked, shape
from automap.cost.profile.signatures import ElementClass, Family, StreamSignature


_DTYPE_OF_CLASS: Final[Mapping[ElementClass, str]] = {
    "wide float": "float32",
    "narrow float": "bfloat16",
    "integer": "int32",
}
_ROW: Final = 256


def stream_program(signature: StreamSignature) -> Program:
    """The loop that measures a streaming kernel."""
    dtype = jnp.dtype(_DTYPE_OF_CLASS[signature.elements])
    return _STREAMS[signature.family](signature.n_bytes // dtype.itemsize, dtype)


def _elementwise(elements: int, dtype: Any) -> Program:
    leaf = shape(max(elements // 3, 1), dtype=dtype)
    half = 0.5 if jnp.issubdtype(dtype, jnp.floating) else 3

    def trip(carry: Arrays) -> Arrays:
        x, y = carry
        return x * jnp.asarray(half, x.dtype) + y, y

    return Program((leaf, leaf), trip)


def _reduce(elements: int, dtype: Any) -> Program:
    rows = max(elements // (_ROW + 1), 1)

    def trip(carry: Arrays) -> Arrays:
        x, sums = carry
        x = poked(x, sums)
        return x, x.sum(axis=1, dtype=x.dtype)

    return Program((shape(rows, _ROW, dtype=dtype), shape(rows, dtype=dtype)), trip)


def _gather(elements: int, dtype: Any) -> Program:
    rows = max(elements // (2 * _ROW), 1)
    table = shape(4 * rows, _ROW, dtype=dtype)

    def trip(carry: Arrays) -> Arrays:
        table, index, result = carry
        table = poked(table, result)
        return table, index, table.at[index].get(mode="promise_in_bounds")

    return Program((table, shape(rows, dtype="int32"), shape(rows, _ROW, dtype=dtype)), trip)


def _scatter(elements: int, dtype: Any) -> Program:
    rows = max(elements // (3 * _ROW), 1)
    table = shape(4 * rows, _ROW, dtype=dtype)

    def trip(carry: Arrays) -> Arrays:
        table, index, updates = carry
        return table.at[index].add(updates, mode="promise_in_bounds"), index, updates

    return Program((table, shape(rows, dtype="int32"), shape(rows, _ROW, dtype=dtype)), trip)


def _pool(x: jax.Array) -> jax.Array:
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    least = np.asarray(-np.inf if is_float else np.iinfo(x.dtype).min, x.dtype)
    return lax.reduce_window(x, least, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def _window(elements: int, dtype: Any) -> Program:
    images = max(elements * 4 // (5 * 16 * _ROW), 1)

    def trip(carry: Arrays) -> Arrays:
        x, pooled = carry
        x = poked(x, pooled)
        return x, _pool(x)

    x = shape(images, 4, 4, _ROW, dtype=dtype)
    return Program((x, shape(images, 2, 2, _ROW, dtype=dtype)), trip)


def _select_and_scatter(elements: int, dtype: Any) -> Program:
    images = max(elements * 4 // (9 * 16 * _ROW), 1)

    def trip(carry: Arrays) -> Arrays:
        x, gradient, result = carry
        x = poked(x, result)
        return x, gradient, jax.vjp(_pool, x)[1](gradient)[0]

    x = shape(images, 4, 4, _ROW, dtype=dtype)
    return Program((x, shape(images, 2, 2, _ROW, dtype=dtype), x), trip)


def _sort(elements: int, dtype: Any) -> Program:
    rows = max(elements // (2 * _ROW), 1)

    def trip(carry: Arrays) -> Arrays:
        x, result = carry
        x = poked(x, result)
        return x, lax.sort(x, dimension=1)

    x = shape(rows, _ROW, dtype=dtype)
    return Program((x, x), trip)


_STREAMS: Final[Mapping[Family, Callable[[int, Any], Program]]] = {
    "elementwise": _elementwise,
    "reduce": _reduce,
    "gather": _gather,
    "scatter": _scatter,
    "window": _window,
    "select-and-scatter": _select_and_scatter,
    "sort": _sort,
}
