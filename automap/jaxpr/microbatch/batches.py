"""Which leaves of a call may be its batch, as numbers in the order of its leaves.

The arguments do not say which arrays hold the samples. All of one leading size are taken together
                                                                         -> in: `candidates`
Some of that size may be weights, and the state may hold samples of its own where the step cannot be
traced else                                         -> in: `without_one_part`, `with_state`
Where nothing is trained the state may hold all of them                  -> in: `carried`
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import jax
from jax import numpy as jnp

from automap.errors import InputError
from automap.jaxpr.flatten import flatten
from automap.step.call import TracedCall


Leaves = tuple[int, ...]
"""Numbers of a call's leaves."""

# JAX names so what it transposes for gradients.
_BACKWARD: Final = "transpose("
# How many keys of a leaf's path in `TracedCall.args` name its argument.
_ARGUMENT: Final = 2


def sample_count(call: TracedCall, batch: Leaves) -> int:
    """How many samples the leaves of a batch hold."""
    size: int = call.jaxpr.in_avals[batch[0]].shape[0]
    return size


def candidates(call: TracedCall) -> list[Leaves]:
    """The arrays that may be the batch, those of one leading size together; most arrays first."""
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
    if not free and not carried(call):
        raise InputError(
            "microbatches: no argument holds a batch; an array that is neither state nor a random "
            "key must have the samples in its first dimension"
        )
    return _by_size(call, free)


def carried(call: TracedCall) -> list[Leaves]:
    """State that may be the batch, as those of `candidates`, of a step without gradients: of a size
    that something has which it returns besides, as the tokens of requests whose caches it carries;
    of a size that several share where it returns nothing besides, as of requests that are carried
    whole.
    """
    if any(
        _BACKWARD in str(each.eqn.source_info.name_stack)
        for each in flatten(call.jaxpr, {}).equations
    ):
        return []
    avals = call.jaxpr.in_avals
    results = enumerate(call.jaxpr.out_avals)
    sizes = {aval.shape[:1] for number, aval in results if aval.shape and number not in call.state}
    carried = sorted(n for n in set(call.state.values()) if avals[n].shape)
    if not sizes:
        shared = Counter(avals[n].shape[:1] for n in carried)
        sizes = {size for size, count in shared.items() if count > 1}
    state = [n for n in carried if avals[n].shape[:1] in sizes]
    return _by_size(call, [n for n in state if not _is_key(avals[n])])


def with_state(call: TracedCall, leaves: Leaves) -> Iterator[Leaves]:
    """The leaves and the state that has as many entries, if there is some."""
    avals = call.jaxpr.in_avals
    size = sample_count(call, leaves)
    state = {n for n in call.state.values() if avals[n].shape[:1] == (size,)}
    if not state <= set(leaves):
        yield tuple(sorted({*leaves, *state}))


def without_one_part(call: TracedCall, leaves: Leaves) -> Iterator[Leaves]:
    """The leaves but for those of each argument that has any, then of each part of an argument."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(call.args)]
    # A path begins with whether the argument is positional, and which it is.
    for depth in (_ARGUMENT, _ARGUMENT + 1):
        for left_out in dict.fromkeys(paths[leaf][:depth] for leaf in leaves):
            rest = tuple(leaf for leaf in leaves if paths[leaf][:depth] != left_out)
            if rest:
                yield rest


def _by_size(call: TracedCall, leaves: Sequence[int]) -> list[Leaves]:
    avals = call.jaxpr.in_avals
    sizes = Counter(avals[n].shape[0] for n in leaves)
    return [tuple(n for n in leaves if avals[n].shape[0] == s) for s, _ in sizes.most_common()]


def _is_key(aval: Any) -> bool:
    is_old = aval.dtype == "uint32" and aval.shape in ((2,), (4,))
    return is_old or jnp.issubdtype(aval.dtype, jax.dtypes.prng_key)
