"""Which arguments of a call are the batch, and the same call with a smaller one.

The batch are the arrays that are no state (no output is their new version), no random keys and no
scalars, and share their leading size with most of the others.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
from jax import numpy as jnp

from automap.errors import InputError, NotSeparableError
from automap.jax_compat import weak_shape
from automap.workload.call import TracedCall, trace_call
from automap.workload.state import match_state


def batch_leaves(call: TracedCall) -> tuple[int, ...]:
    """Numbers of a call's leaves that hold one entry per sample in their first dimension.

    Raises `InputError` if there are none.
    """
    state = set(match_state(call.args, call.result, call.donated).values())
    avals = call.jaxpr.in_avals
    free = [
        number
        for number, aval in enumerate(avals)
        if number not in state and aval.shape and not _is_key(aval)
    ]
    if not state:
        # Without state, as in inference, a parameter is what shares its leading size with no result.
        leading = {leaf.shape[0] for leaf in jax.tree.leaves(call.result) if leaf.shape}
        free = [n for n in free if avals[n].shape[0] in leading] or free
    if not free:
        raise InputError(
            "microbatches: no argument holds a batch; an array that is neither state nor a random key must "
            "have the samples in its first dimension"
        )
    size, _ = Counter(avals[n].shape[0] for n in free).most_common(1)[0]
    return tuple(n for n in free if avals[n].shape[0] == size)


def other_call(
    step: Callable[..., Any], call: TracedCall, batch: tuple[int, ...], samples: int
) -> TracedCall:
    """The call of a jitted step with another number of samples in its batch.

    Raises `NotSeparableError` if the step cannot be traced with it.
    """
    size = call.jaxpr.in_avals[batch[0]].shape[0]
    leaves, tree = jax.tree.flatten(call.args)
    for number, aval in enumerate(call.jaxpr.in_avals):
        leaf = weak_shape(aval)
        if number in batch:
            shape = (samples, *aval.shape[1:])
            leaf = jax.ShapeDtypeStruct(shape, aval.dtype, weak_type=leaf.weak_type)
        leaves[number] = leaf
    traced, named = jax.tree.unflatten(tree, leaves)
    positional = dict(zip(call.positions, traced, strict=True))
    fixed = {key: value for key, value in call.static.items() if isinstance(key, int)}
    args = [value for _, value in sorted({**positional, **fixed}.items())]
    kwargs = named | {k: v for k, v in call.static.items() if isinstance(k, str)}
    try:
        return trace_call(step, args, kwargs)
    except InputError as error:
        raise NotSeparableError(
            f"the step cannot be traced with {samples} samples instead of {size}: {error}; it cannot be "
            "run in microbatches if its code depends on the size of the batch"
        ) from error


def _is_key(aval: Any) -> bool:
    is_old = aval.dtype == "uint32" and aval.shape in ((2,), (4,))
    return is_old or jnp.issubdtype(aval.dtype, jax.dtypes.prng_key)
