"""What is gathered, moved or exchanged before ops can run (rules: `automap.cost.traffic.step`)."""

import numpy as np

from automap.cost.edges import Edges
from automap.cost.edges.halos import Windows, halo_exchanges
from automap.cost.shardings import Shardings
from automap.cost.traffic.flows import (
    ALL_GATHER,
    ALL_TO_ALL,
    KINDS,
    PERMUTE,
    Entries,
    Flow,
    edge_dims,
    entries,
    gathers_apart,
    holds,
    without_repeats,
)


def operand_traffic(
    edges: Edges, sharding: Shardings, sizes: np.ndarray
) -> tuple[Entries, np.ndarray]:
    """The collectives, and which of `Edges.repeats` find their tensor gathered already."""
    n, rank = edges.factor_of_dim.shape
    masks = np.zeros((len(KINDS), n), np.int64)
    kept = np.ones(n, np.int64)
    # Where an exchange puts the axes, as one number.
    target = np.zeros(n, np.int64)
    gathered_dim = np.full((len(sizes), n), -1, np.int64)
    for axis, size in enumerate(sizes.tolist()):
        dim, own, factor = edge_dims(edges, sharding, axis)
        wrong = (dim >= 0) & ((own != factor) | (factor < 0))
        moved = wrong & holds(edges, factor)
        masks[ALL_TO_ALL] |= np.where(moved, 1 << axis, 0)
        masks[ALL_GATHER] |= np.where(wrong & ~moved, 1 << axis, 0)
        to_dim = (edges.factor_of_dim == factor[:, None]).argmax(axis=1)
        target = target * (rank + 1) + np.where(moved, to_dim + 1, 0)
        gathered_dim[axis] = np.where(wrong & ~moved, dim, -1)
        kept *= np.where((dim >= 0) & ~(wrong & ~moved), size, 1)
    # What is moved and what is gathered both see the tensor with only the kept axes split.
    n_bytes = edges.n_bytes / kept
    is_repeat = without_repeats(masks[ALL_GATHER], edges, n_bytes)
    without_repeats(masks[ALL_TO_ALL], edges, n_bytes, target)
    apart = gathers_apart(masks[ALL_GATHER], n_bytes, gathered_dim, sizes)
    flows = [Flow(ALL_TO_ALL, masks[ALL_TO_ALL], n_bytes), *apart]
    return entries(edges, flows), is_repeat


def exchanged(edges: Edges, windows: Windows, sharding: Shardings) -> tuple[Entries, np.ndarray]:
    """The permutes of halos, and the bytes of the operands with them, [edges]: 0 where there are
    none.
    """
    local = edges.n_bytes.astype(float)
    for axis, size in enumerate(sharding.sizes):
        factor = sharding.factor_of_axis[edges.op_row, axis]
        local /= np.where(holds(edges, factor), size, 1)
    found = halo_exchanges(windows, edges, sharding.factor_of_axis, sharding.sizes, local)
    edge = found.edge
    permutes = Entries(
        kind=np.full(len(edge), PERMUTE),
        mask=found.mask,
        n_bytes=found.n_bytes,
        count=edges.count[edge] * found.times,
        phase=edges.phase[edge],
        combinable=np.zeros(len(edge), bool),
        edge=edge,
    )
    return permutes, np.where(found.grown > 1, local * found.grown, 0)
