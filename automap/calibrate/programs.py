"""Loops of one kernel: what is compiled and timed for a signature.

    carry -> carry, n times; the kernel's first result element is put in its first operand

so that no trip can start before the one before it, be hoisted out of the loop, or be dropped. Every device of the
mesh runs the same loop on its own data at the same time: a kernel's time is what it is while the other devices
work too, as in a plan. What puts the element back is one small kernel, whose time the caller takes off.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
import math
from typing import Any, Final

import jax
from jax import lax, numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np

from automap.calibrate.timing import Compile, Run
from automap.cost.signatures import (
    ConvolutionSignature,
    DotSignature,
    ElementClass,
    Family,
    Signature,
    StreamSignature,
)


Arrays = tuple[jax.Array, ...]

_DTYPES: Final = {"pred": "bool", "bf16": "bfloat16"}
_DTYPE_OF_CLASS: Final[Mapping[ElementClass, str]] = {
    "wide float": "float32",
    "narrow float": "bfloat16",
    "integer": "int32",
}
_LETTERS: Final = {"f": "float", "s": "int", "u": "uint", "c": "complex"}
_ROW: Final = 256


@dataclass(frozen=True)
class Program:
    """The loop of one kernel on one device: shapes and types of the carry, and a trip."""

    carry: tuple[jax.ShapeDtypeStruct, ...]
    trip: Callable[[Arrays], Arrays]

    @property
    def n_bytes(self) -> int:
        """Bytes of the carry on one device."""
        return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in self.carry)


def jax_dtype(dtype: str) -> str:
    """JAX's name of an HLO element type, as `float32` for `f32`."""
    if dtype in _DTYPES or dtype.startswith("f8") or dtype.startswith("f4"):
        return _DTYPES.get(dtype, f"float{dtype[1]}_{dtype[2:]}")
    return f"{_LETTERS[dtype[0]]}{dtype[1:]}"


def poked(target: jax.Array, source: jax.Array) -> jax.Array:
    """`target` with its first element from `source`, within [0, 1]."""
    first = lax.slice(source, (0,) * source.ndim, (1,) * source.ndim)
    first = jnp.clip(first, 0, 1).astype(target.dtype).reshape((1,) * target.ndim)
    return lax.dynamic_update_slice(target, first, (0,) * target.ndim)


def program_of(signature: Signature) -> Program:
    """The loop that measures a signature."""
    match signature:
        case DotSignature():
            return _dot(signature)
        case ConvolutionSignature():
            return _convolution(signature)
        case StreamSignature():
            dtype = jnp.dtype(_DTYPE_OF_CLASS[signature.elements])
            return _STREAMS[signature.family](signature.n_bytes // dtype.itemsize, dtype)


def compiled_loop(program: Program, mesh: Mesh) -> Compile:
    """Compiles loops of `program` that all devices of the mesh run at the same time.

    The first axis of every array of the carry is added here: one entry per device. The carry is handed from run to
    run, so that no run allocates or copies it.
    """
    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    state = [_filled(program.carry, sharding, mesh.size)]

    def compile_trips(trips: int) -> Run:
        def on_device(*carry: jax.Array) -> Arrays:
            local = tuple(array[0] for array in carry)
            result = lax.fori_loop(0, trips, lambda _, state: program.trip(state), local)
            return tuple(array[None] for array in result)

        specs = sharding.spec
        step = jax.shard_map(on_device, mesh=mesh, in_specs=specs, out_specs=specs, check_vma=False)
        donated = tuple(range(len(program.carry)))
        loop = jax.jit(step, donate_argnums=donated).lower(*state[0]).compile()

        def run() -> None:
            state[0] = jax.block_until_ready(loop(*state[0]))

        return run

    return compile_trips


def _filled(
    carry: Sequence[jax.ShapeDtypeStruct], sharding: NamedSharding, devices: int
) -> tuple[Any, ...]:
    """Arrays of numbers between 1/2 and 3/2, integers from 0 up to the rows of a table."""

    def fill() -> Arrays:
        arrays = []
        for leaf in carry:
            place = lax.broadcasted_iota(jnp.int32, (devices, *leaf.shape), len(leaf.shape))
            is_float = jnp.issubdtype(leaf.dtype, jnp.floating)
            values = (place % 97) / 97 + 0.5 if is_float else place * 7 % max(leaf.shape[0], 1)
            arrays.append(values.astype(leaf.dtype))
        return tuple(arrays)

    return jax.jit(fill, out_shardings=sharding)()


def _shape(*dims: int, dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype)


def _dot(s: DotSignature) -> Program:
    dtype = jax_dtype(s.dtype)
    shapes = ((s.batch, s.m, s.k), (s.batch, s.k, s.n), (s.batch, s.m, s.n))

    def trip(carry: Arrays) -> Arrays:
        left, right, result = carry
        left = poked(left, result)
        return left, right, jnp.matmul(left, right)

    return Program(tuple(_shape(*dims, dtype=dtype) for dims in shapes), trip)


def _convolution(s: ConvolutionSignature) -> Program:
    dtype, letters = jax_dtype(s.dtype), "".join(map(str, range(len(s.spatial))))
    shapes = (
        (s.batch, *(d.read for d in s.spatial), s.in_features),
        (*(d.taps for d in s.spatial), s.in_features // s.feature_groups, s.out_features),
        (s.batch // s.batch_groups, *(d.made for d in s.spatial), s.out_features),
    )

    def trip(carry: Arrays) -> Arrays:
        image, kernel, result = carry
        image = poked(image, result)
        made = lax.conv_general_dilated(
            image, kernel, [d.stride for d in s.spatial],
            [(d.padding_low, d.padding_high) for d in s.spatial],
            lhs_dilation=[d.base_dilation for d in s.spatial],
            rhs_dilation=[d.window_dilation for d in s.spatial],
            dimension_numbers=(f"N{letters}C", f"{letters}IO", f"N{letters}C"),
            feature_group_count=s.feature_groups, batch_group_count=s.batch_groups,
        )  # fmt: skip
        return image, kernel, made

    return Program(tuple(_shape(*dims, dtype=dtype) for dims in shapes), trip)


def _elementwise(elements: int, dtype: Any) -> Program:
    leaf = _shape(max(elements // 3, 1), dtype=dtype)
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

    return Program((_shape(rows, _ROW, dtype=dtype), _shape(rows, dtype=dtype)), trip)


def _gather(elements: int, dtype: Any) -> Program:
    rows = max(elements // (2 * _ROW), 1)
    table = _shape(4 * rows, _ROW, dtype=dtype)

    def trip(carry: Arrays) -> Arrays:
        table, index, result = carry
        table = poked(table, result)
        return table, index, table.at[index].get(mode="promise_in_bounds")

    return Program((table, _shape(rows, dtype="int32"), _shape(rows, _ROW, dtype=dtype)), trip)


def _scatter(elements: int, dtype: Any) -> Program:
    rows = max(elements // (3 * _ROW), 1)
    table = _shape(4 * rows, _ROW, dtype=dtype)

    def trip(carry: Arrays) -> Arrays:
        table, index, updates = carry
        return table.at[index].add(updates, mode="promise_in_bounds"), index, updates

    return Program((table, _shape(rows, dtype="int32"), _shape(rows, _ROW, dtype=dtype)), trip)


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

    x = _shape(images, 4, 4, _ROW, dtype=dtype)
    return Program((x, _shape(images, 2, 2, _ROW, dtype=dtype)), trip)


def _select_and_scatter(elements: int, dtype: Any) -> Program:
    images = max(elements * 4 // (9 * 16 * _ROW), 1)

    def trip(carry: Arrays) -> Arrays:
        x, gradient, result = carry
        x = poked(x, result)
        return x, gradient, jax.vjp(_pool, x)[1](gradient)[0]

    x = _shape(images, 4, 4, _ROW, dtype=dtype)
    return Program((x, _shape(images, 2, 2, _ROW, dtype=dtype), x), trip)


def _sort(elements: int, dtype: Any) -> Program:
    rows = max(elements // (2 * _ROW), 1)

    def trip(carry: Arrays) -> Arrays:
        x, result = carry
        x = poked(x, result)
        return x, lax.sort(x, dimension=1)

    x = _shape(rows, _ROW, dtype=dtype)
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
