"""Which arguments of a call are the batch, and the same call with a smaller one.

The batch are the arrays that are no state (no output is their new version), no random keys and no
scalars, and share their leading size with most of the others.
"""

from collections import Counter
from typing import Any

import jax
from jax import numpy as jnp

from automap.errors import InputError, NotSeparableError
from automap.jax_compat import weak_shape
from automap.step.call import TracedCall


def batch_leaves(call: TracedCall) -> tuple[int, ...]:
    """Numbers of a call's leaves that hold one entry per sample in their first dimension.

    Raises `InputError` if there are none.
    """
    state = set(call.state.values())
    avals = call.jaxpr.in_avals
    free = [
        number
        for number, aval in enumerate(avals)
        if number not in state and aval.shape and not _is_key(aval)
    ]
    if not state:
        # Without state, as in inference, a parameter is what shares its leading size with no
        # result.
        leading = {leaf.shape[0] for leaf in jax.tree.leaves(call.result) if leaf.shape}
        free = [n for n in free if avals[n].shape[0] in leading] or free
    if not free:
        raise InputError(
            "microbatches: no argument holds a batch; an array that is neither state nor a random "
            "key must "
            "have the samples in its first dimension"
        )
    size, _ = Counter(avals[n].shape[0] for n in free).most_common(1)[0]
    return tuple(n for n in free if avals[n].shape[0] == size)


def other_call(call: TracedCall, batch: tuple[int, ...], samples: int) -> TracedCall:
    """A call with another number of samples in its batch.

    Raises `NotSeparableError` if the step cannot be traced with it.
    """
    size = call.jaxpr.in_avals[batch[0]].shape[0]
    arrays = [weak_shape(aval) for aval in call.jaxpr.in_avals]
    for number in batch:
        whole = arrays[number]
        shape = (samples, *whole.shape[1:])
        arrays[number] = jax.ShapeDtypeStruct(shape, whole.dtype, weak_type=whole.weak_type)
    try:
        return call.with_arrays(arrays)
    except InputError as error:
        raise NotSeparableError(
            f"the step cannot be traced with {samples} samples instead of {size}: {error}; it "
            "cannot be "
            "run in microbatches if its code depends on the size of the batch"
        ) from error


def _is_key(aval: Any) -> bool:
    is_old = aval.dtype == "uint32" and aval.shape in ((2,), (4,))
    return is_old or jnp.issubdtype(aval.dtype, jax.dtypes.prng_key)
