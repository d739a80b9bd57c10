"""What new memory costs where a runtime takes it from its operating system in every step.

The processor's runtime gives back what a step allocates, so that the next one touches every page
for the first time:

    fresh = (T(results in new memory) - T(results in the operands' memory)) / bytes

of one elementwise kernel on all devices at once. Accelerators keep a pool of memory: 0.
"""

from collections.abc import Callable
from statistics import median
import time
from typing import Final

import jax
from jax import numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from automap.calibrate.machine import Machine


# Larger than what C libraries keep for themselves; memory for both arrays of all devices is a small
# part.
_MOST_BYTES: Final = 64 * 2**20
_SHARE: Final = 1 / 8
_SAMPLES: Final = 7


def fresh_seconds_per_byte(machine: Machine) -> float:
    """Seconds a byte of new memory costs on each device while all of them allocate."""
    if machine.platform != "cpu":
        return 0.0
    count = len(machine.devices)
    n_bytes = min(_MOST_BYTES, int(machine.memory_bytes * _SHARE))
    mesh = machine.mesh((count,))
    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    shape = jax.ShapeDtypeStruct((count, n_bytes // 4), "float32", sharding=sharding)

    def add(array: jax.Array) -> jax.Array:
        return array + 1

    fresh = jax.jit(add).lower(shape).compile()
    reused = jax.jit(add, donate_argnums=0).lower(shape).compile()
    array = jax.device_put(jnp.zeros(shape.shape, shape.dtype), sharding)
    new_seconds = _median_seconds(lambda: jax.block_until_ready(fresh(array)))
    held = [array]

    def again() -> None:
        held[0] = jax.block_until_ready(reused(held[0]))

    return max(new_seconds - _median_seconds(again), 0.0) / n_bytes


def _median_seconds(run: Callable[[], object]) -> float:
    run()
    seconds = []
    for _ in range(_SAMPLES):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return median(seconds)
