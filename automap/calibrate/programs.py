"""The loop that measures a signature: its kernel as JAX writes it.

Kernels that memory bounds have one loop for each family; their bytes are those that the kernel
reads and writes, so each loop sizes its arrays by them.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import jax
from jax import lax, numpy as jnp
import numpy as np

from automap.calibrate.loops import Arrays, KernelLoop, made_dependent, shape
from automap.cost.profile.signatures import (
    ConvolutionSignature,
    DotSignature,
    ElementClass,
    Family,
    Signature,
    StreamSignature,
)


_DTYPES: Final = {"pred": "bool", "bf16": "bfloat16"}
_LETTERS: Final = {"f": "float", "s": "int", "u": "uint", "c": "complex"}


def jax_dtype(dtype: str) -> str:
    """JAX's name of an HLO element type, as `float32` for `f32`."""
    if dtype in _DTYPES or dtype.startswith("f8") or dtype.startswith("f4"):
        return _DTYPES.get(dtype, f"float{dtype[1]}_{dtype[2:]}")
    return f"{_LETTERS[dtype[0]]}{dtype[1:]}"


def kernel_loop(signature: Signature) -> KernelLoop:
    """The loop that measures a signature."""
    match signature:
        case DotSignature():
            return _dot(signature)
        case ConvolutionSignature():
            return _convolution(signature)
        case StreamSignature():
            return _stream(signature)


def _dot(s: DotSignature) -> KernelLoop:
    dtype = jax_dtype(s.dtype)
    shapes = ((s.batch, s.m, s.k), (s.batch, s.k, s.n), (s.batch, s.m, s.n))

    def trip(carry: Arrays) -> Arrays:
        left, right, result = carry  # the last result is carried, as this trip depends on it
        left = made_dependent(left, result)
        return left, right, jnp.matmul(left, right)

    return KernelLoop(tuple(shape(*dims, dtype=dtype) for dims in shapes), trip)


def _convolution(s: ConvolutionSignature) -> KernelLoop:
    dtype, letters = jax_dtype(s.dtype), "".join(map(str, range(len(s.spatial))))
    shapes = (
        (s.batch, *(d.read for d in s.spatial), s.in_features),
        (*(d.taps for d in s.spatial), s.in_features // s.feature_groups, s.out_features),
        (s.batch // s.batch_groups, *(d.made for d in s.spatial), s.out_features),
    )

    def trip(carry: Arrays) -> Arrays:
        image, kernel, result = carry
        image = made_dependent(image, result)
        made = lax.conv_general_dilated(
            image,
            kernel,
            [d.stride for d in s.spatial],
            [(d.padding_low, d.padding_high) for d in s.spatial],
            lhs_dilation=[d.base_dilation for d in s.spatial],
            rhs_dilation=[d.window_dilation for d in s.spatial],
            dimension_numbers=(f"N{letters}C", f"{letters}IO", f"N{letters}C"),
            feature_group_count=s.feature_groups,
            batch_group_count=s.batch_groups,
        )
        return image, kernel, made

    return KernelLoop(tuple(shape(*dims, dtype=dtype) for dims in shapes), trip)


_DTYPE_OF_CLASS: Final[Mapping[ElementClass, str]] = {
    "wide float": "float32",
    "narrow float": "bfloat16",
    "integer": "int32",
}
_ROW: Final = 256


def _stream(signature: StreamSignature) -> KernelLoop:
    """The loop that measures a streaming kernel."""
    dtype = jnp.dtype(_DTYPE_OF_CLASS[signature.elements])
    return _STREAMS[signature.family](signature.n_bytes // dtype.itemsize, dtype)


def _elementwise(elements: int, dtype: Any) -> KernelLoop:
    # Two operands are read and one is written: a third of the elements each.
    leaf = shape(max(elements // 3, 1), dtype=dtype)
    # x <- x / 2 + y stays bounded; of integers, 3 x + y wraps around.
    half = 0.5 if jnp.issubdtype(dtype, jnp.floating) else 3

    def trip(carry: Arrays) -> Arrays:
        x, y = carry
        return x * jnp.asarray(half, x.dtype) + y, y

    return KernelLoop((leaf, leaf), trip)


def _reduce(elements: int, dtype: Any) -> KernelLoop:
    # A row is read and one element of sums is written.
    rows = max(elements // (_ROW + 1), 1)

    def trip(carry: Arrays) -> Arrays:
        x, sums = carry
        x = made_dependent(x, sums)
        return x, x.sum(axis=1, dtype=x.dtype)

    return KernelLoop((shape(rows, _ROW, dtype=dtype), shape(rows, dtype=dtype)), trip)


def _gather(elements: int, dtype: Any) -> KernelLoop:
    # Rows are read from a table four times as large, and written: caches do not hold all of it.
    rows = max(elements // (2 * _ROW), 1)
    table = shape(4 * rows, _ROW, dtype=dtype)

    def trip(carry: Arrays) -> Arrays:
        table, index, result = carry
        table = made_dependent(table, result)
        return table, index, table.at[index].get(mode="promise_in_bounds")

    return KernelLoop((table, shape(rows, dtype="int32"), shape(rows, _ROW, dtype=dtype)), trip)


def _scatter(elements: int, dtype: Any) -> KernelLoop:
    # Rows of updates and of the table are read, those of the table are written.
    rows = max(elements // (3 * _ROW), 1)
    table = shape(4 * rows, _ROW, dtype=dtype)

    def trip(carry: Arrays) -> Arrays:
        table, index, updates = carry
        return table.at[index].add(updates, mode="promise_in_bounds"), index, updates

    return KernelLoop((table, shape(rows, dtype="int32"), shape(rows, _ROW, dtype=dtype)), trip)


def _pool(x: jax.Array) -> jax.Array:
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    least = np.asarray(-np.inf if is_float else np.iinfo(x.dtype).min, x.dtype)
    return lax.reduce_window(x, least, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def _window(elements: int, dtype: Any) -> KernelLoop:
    # 16 pixels are read and a quarter of them is written: 5 / 4 of an image.
    images = max(elements * 4 // (5 * 16 * _ROW), 1)

    def trip(carry: Arrays) -> Arrays:
        x, pooled = carry
        x = made_dependent(x, pooled)
        return x, _pool(x)

    x = shape(images, 4, 4, _ROW, dtype=dtype)
    return KernelLoop((x, shape(images, 2, 2, _ROW, dtype=dtype)), trip)


def _select_and_scatter(elements: int, dtype: Any) -> KernelLoop:
    # The image and its pooled gradient are read, an image is written: 9 / 4 of one.
    images = max(elements * 4 // (9 * 16 * _ROW), 1)

    def trip(carry: Arrays) -> Arrays:
        x, gradient, result = carry
        x = made_dependent(x, result)
        return x, gradient, jax.vjp(_pool, x)[1](gradient)[0]

    x = shape(images, 4, 4, _ROW, dtype=dtype)
    return KernelLoop((x, shape(images, 2, 2, _ROW, dtype=dtype), x), trip)


def _sort(elements: int, dtype: Any) -> KernelLoop:
    rows = max(elements // (2 * _ROW), 1)

    def trip(carry: Arrays) -> Arrays:
        x, result = carry
        x = made_dependent(x, result)
        return x, lax.sort(x, dimension=1)

    x = shape(rows, _ROW, dtype=dtype)
    return KernelLoop((x, x), trip)


_STREAMS: Final[Mapping[Family, Callable[[int, Any], KernelLoop]]] = {
    "elementwise": _elementwise,
    "reduce": _reduce,
    "gather": _gather,
    "scatter": _scatter,
    "window": _window,
    "select-and-scatter": _select_and_scatter,
    "sort": _sort,
}
