"""Loops of one collective over one axis of a mesh; all groups of the mesh exchange at the same
time.

The sizes are those of `automap.cost.collectives`: the operand of all-reduce, all-to-all,
reduce-scatter and collective-permute, the gathered result of all-gather.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import jax
from jax import lax

from automap.calibrate.loops import Arrays, KernelLoop, made_dependent
from automap.cost.collectives import CollectiveKind
from automap.cost.profile import Transfer


_ITEM_BYTES: Final = 4
_Exchange = Callable[[jax.Array, str, int], Any]

_EXCHANGES: Final[Mapping[str, _Exchange]] = {
    CollectiveKind.ALL_REDUCE: lambda x, axis, n: lax.psum(x, axis),
    CollectiveKind.ALL_GATHER: lambda x, axis, n: lax.all_gather(x, axis, tiled=True),
    CollectiveKind.REDUCE_SCATTER: lambda x, axis, n: lax.psum_scatter(x, axis, tiled=True),
    CollectiveKind.ALL_TO_ALL: lambda x, axis, n: lax.all_to_all(x, axis, 0, 0, tiled=True),
    # To the next rank of a ring: every link of a ring or line is used in one direction.
    CollectiveKind.PERMUTE: lambda x, axis, n: lax.ppermute(
        x, axis, [(i, (i + 1) % n) for i in range(n)]
    ),
}


def axis_names(sizes: tuple[int, ...]) -> tuple[str, ...]:
    """Names for the axes of a mesh of these sizes."""
    return tuple(f"axis{index}" for index in range(len(sizes)))


def transfer_loop(transfer: Transfer) -> KernelLoop:
    """The loop that measures a collective, on a mesh with the axes `axis_names`."""
    ranks = transfer.sizes[transfer.axis]
    axis = axis_names(transfer.sizes)[transfer.axis]
    # Bytes are those of the whole buffer, of which each rank holds or receives a share.
    share = max(transfer.n_bytes // _ITEM_BYTES // ranks, 1)
    is_gather = transfer.kind == CollectiveKind.ALL_GATHER
    is_scatter = transfer.kind == CollectiveKind.REDUCE_SCATTER
    operand = share if is_gather else share * ranks
    result = share if is_scatter else share * ranks

    def trip(carry: Arrays) -> Arrays:
        x, y = carry
        x = made_dependent(x, y)
        return x, _EXCHANGES[transfer.kind](x, axis, ranks)

    return KernelLoop(tuple(jax.ShapeDtypeStruct((n,), "float32") for n in (operand, result)), trip)
