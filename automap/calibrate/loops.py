"""Loops of one kernel: what is compiled and timed for a signature.

    carry -> carry, n times; the kernel's first result element is put in its first operand

so that no trip can start before the one before it, be hoisted out of the loop, or be dropped. Every
device of the mesh runs the same loop on its own data at the same time: a kernel's time is what it
is while the other devices work too, as in a plan. What puts the element back is one small kernel,
whose time the caller takes off.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
import math
from typing import Any

import jax
from jax import lax, numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from automap.calibrate.timing import Compile, Run


Arrays = tuple[jax.Array, ...]


@dataclass(frozen=True)
class KernelLoop:
    """The loop of one kernel on one device: shapes and types of the carry, and a trip."""

    carry: tuple[jax.ShapeDtypeStruct, ...]
    trip: Callable[[Arrays], Arrays]

    @property
    def n_bytes(self) -> int:
        """Bytes of the carry on one device."""
        return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in self.carry)


def made_dependent(target: jax.Array, source: jax.Array) -> jax.Array:
    """`target` with its first element from `source`, so that it cannot be there before it."""
    # Within [0, 1]: what is fed back must not grow from trip to trip until it is infinite.
    first = lax.slice(source, (0,) * source.ndim, (1,) * source.ndim)
    first = jnp.clip(first, 0, 1).astype(target.dtype).reshape((1,) * target.ndim)
    return lax.dynamic_update_slice(target, first, (0,) * target.ndim)


def compiled_loop(program: KernelLoop, mesh: Mesh) -> Compile:
    """Compiles loops of `program` that all devices of the mesh run at the same time.

    The first axis of every array of the carry is added here: one entry per device. The carry is
    handed from run to run, so that no run allocates or copies it.
    """
    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    # In a list, as runs replace what the one before has donated.
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
            # Different numbers, as sorting equal ones is no work. As indices they jump by 7 rows:
            # no row is read beside the last one.
            place = lax.broadcasted_iota(jnp.int32, (devices, *leaf.shape), len(leaf.shape))
            is_float = jnp.issubdtype(leaf.dtype, jnp.floating)
            values = (place % 97) / 97 + 0.5 if is_float else place * 7 % max(leaf.shape[0], 1)
            arrays.append(values.astype(leaf.dtype))
        return tuple(arrays)

    return jax.jit(fill, out_shardings=sharding)()


def shape(*dims: int, dtype: Any) -> jax.ShapeDtypeStruct:
    """An array of a carry."""
    return jax.ShapeDtypeStruct(dims, dtype)
