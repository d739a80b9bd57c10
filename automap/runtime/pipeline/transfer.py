"""How a value comes to another stage: the one place that moves data between devices.

    devices of one process      `jax.device_put`, which is called in that process alone
    of several                  a program of permutations on the devices of both sides    -> in: `routes.carry`
    a process's own copy        each process puts what its devices are to have

Every process that holds devices of a plan sends in the same order, so that what must meet does.
"""

from typing import Any

import jax
from jax import numpy as jnp
from jax.sharding import NamedSharding
import numpy as np

from automap.runtime.pipeline.routes import carry
from automap.runtime.processes import absent, is_own, one_device_each, process_numbers


def send(value: Any, to: NamedSharding, *, donate: bool = False) -> jax.Array:
    """The value with sharding `to`; nothing moves if it lies so already.

    `value` is an array of the host or of devices; within one process its memory may be used if it
    is donated. The call returns at once.
    """
    if isinstance(value, jax.Array) and value.sharding.is_equivalent_to(to, value.ndim):
        return value
    if jax.process_count() == 1:
        return jax.device_put(value, to, donate=donate)
    if _is_key(value):
        # Keys are numbers on their way.
        numbers = send(jax.random.key_data(value), to)
        return jax.random.wrap_key_data(numbers, impl=jax.random.key_impl(value))
    if is_own(value):
        return _placed(value, to)
    numbers = process_numbers((*value.sharding.device_set, *to.device_set))
    if jax.process_index() not in numbers:
        return absent(value, to)
    return carry(value, to) if len(numbers) > 1 else jax.device_put(value, to)


def fetch(tree: Any) -> Any:
    """The arrays of a tree as numpy's, whole, wherever they lie; keys are keys of this process.

    Each array is for a while on a device of every process. All processes that JAX knows have to
    call it, with the same tree; a single process has it of `jax.device_get`.
    """
    if jax.process_count() == 1:
        return jax.device_get(tree)
    whole = one_device_each(jax.devices())
    return jax.tree.map(lambda leaf: _fetched(leaf, whole), tree)


def _fetched(leaf: Any, whole: NamedSharding) -> Any:
    if _is_key(leaf):
        numbers = _fetched(jax.random.key_data(leaf), whole)
        return jax.random.wrap_key_data(numbers, impl=jax.random.key_impl(leaf))
    return np.asarray(leaf if is_own(leaf) else send(leaf, whole))


def _is_key(value: Any) -> bool:
    return jnp.issubdtype(jax.typeof(value).dtype, jax.dtypes.prng_key)


def _placed(value: Any, to: NamedSharding) -> jax.Array:
    """A global array of what every process has a copy of."""
    if to.is_fully_addressable:
        return jax.device_put(value, to)
    aval = jax.typeof(value)
    array = value if isinstance(value, jax.Array) else np.asarray(value, aval.dtype)
    places = to.addressable_devices_indices_map(aval.shape)
    shards = [jax.device_put(array[index], device) for device, index in places.items()]
    return jax.make_array_from_single_device_arrays(aval.shape, to, shards, dtype=aval.dtype)
