"""Flows: what happens at all edges at once, and how it is listed.

A flow is one kind of collective with its axes (a bit mask, 0 for none) and bytes at every edge of a
table.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from automap.cost.collectives import KINDS as KINDS
from automap.cost.edges import Edges
from automap.cost.shardings import Shardings, n_parts


# Indices into `KINDS`: columns of numbers are compared with them.
ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL, PERMUTE = range(5)


@dataclass(frozen=True, slots=True)
class Flow:
    """One kind of collective at all edges: its axes (0: none), bytes, and how often it runs (None:
    `Edges.trips`), [edges].
    """

    kind: int
    mask: np.ndarray
    n_bytes: np.ndarray
    count: np.ndarray | None = None


def devices_over(mask: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """How many devices are in a group over the axes of each mask, [masks]."""
    return n_parts(mask[:, None] >> np.arange(len(sizes)) & 1, sizes)


def edge_dims(edges: Edges, sharding: Shardings, axis: int) -> tuple[np.ndarray, ...]:
    """(split dimension, its factor, the op's factor) of every edge on one axis, -1 for none."""
    dim = sharding.dim_of_axis[edges.value_row, axis]
    factor = sharding.factor_of_axis[edges.op_row, axis]
    rows = np.arange(len(dim))
    own = np.where(dim >= 0, edges.factor_of_dim[rows, dim], -1)
    is_inner = (dim >= 0) & (factor >= 0) & (edges.inner_of_dim[rows, dim] == factor)
    return dim, np.where(is_inner, factor, own), factor


def last_dim_splits(
    edges: Edges, sharding: Shardings, edge: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Whether an axis splits the last dimension of the tensor of each `edge` as it is stored, and
    as the edge's operation reads or makes it, both [those edges, axes].
    """
    dims = sharding.dim_of_axis[edges.value_row[edge]]
    factors, last_dim = sharding.factor_of_axis[edges.op_row[edge]], edges.last_dim[edge]
    stored = (dims == last_dim[:, None]) & (dims >= 0)
    is_last = [
        factors == np.where(last_dim >= 0, each[edge, last_dim], -1)[:, None]
        for each in (edges.factor_of_dim, edges.inner_of_dim)
    ]
    return stored, (is_last[0] | is_last[1]) & (factors >= 0)


def holds(edges: Edges, factor: np.ndarray) -> np.ndarray:
    """Whether a tensor has a dimension of the op's factor."""
    is_held = np.zeros(len(factor), bool)
    # Dimension by dimension: there are few, and numpy's reductions over few are slow.
    for own in (*edges.factor_of_dim.T, *edges.inner_of_dim.T):
        is_held |= own == factor
    return is_held & (factor >= 0)


def dim_held(edges: Edges, factor: np.ndarray, where: np.ndarray) -> np.ndarray:
    """The first dimension of a tensor that is split along the op's factor, of edges `where` one
    is.
    """
    own = factor[where, None]
    return ((edges.factor_of_dim[where] == own) | (edges.inner_of_dim[where] == own)).argmax(axis=1)


def dims_held(edges: Edges, factors: np.ndarray) -> np.ndarray:
    """The dimension of each edge's tensor that is split along each of its `factors` [edges, n], -1
    for none.
    """
    own = factors[:, :, None]
    is_held = (edges.factor_of_dim[:, None] == own) | (edges.inner_of_dim[:, None] == own)
    is_held &= own >= 0
    return np.where(is_held.any(axis=2), is_held.argmax(axis=2), -1)


def clear_repeats(
    mask: np.ndarray, edges: Edges, parts: np.ndarray, target: np.ndarray | None = None
) -> np.ndarray:
    """Clear the masks of edges that repeat an earlier one; which of `edges.repeats` those are.

    Edges with a `target` repeat only those that have the same.
    """
    later, earlier = edges.repeats.T
    # Equal parts as well as axes: the same tensor may be gathered with other axes left split. What
    # is there whole as it is serves a product too that would round it first.
    is_repeat = (
        (mask[later] != 0)
        & (mask[later] == mask[earlier])
        & (parts[later] == parts[earlier])
        & (edges.n_bytes[later] <= edges.n_bytes[earlier])
    )
    if target is not None:
        is_repeat &= target[later] == target[earlier]
    mask[later[is_repeat]] = 0
    return is_repeat


def clear_merged_terms(mask: np.ndarray, edges: Edges, n_bytes: np.ndarray) -> None:
    """Clear the masks of terms that are added to the others of their sum before all of it is
    reduced.

    A backend turns all-reduce(a) + all-reduce(b) into all-reduce(a + b), from the first term on:
    after one that is not reduced alike each has its own.
    """
    later, earlier = edges.repeats.T
    is_alike = (mask[later] == mask[earlier]) & (n_bytes[later] == n_bytes[earlier])
    # A term is merged if it is like each one before it, of which there has to be one.
    is_merged = np.bincount(later, minlength=len(mask)) > 0
    is_merged[later[~is_alike]] = False
    mask[is_merged] = 0


def gathers_by_dim(
    mask: np.ndarray, n_bytes: np.ndarray, gathered_dim: np.ndarray, sizes: np.ndarray
) -> list[Flow]:
    """The all-gathers of `mask`, one for each dimension of a tensor, the last dimension first.

    `gathered_dim` [axes, edges] is the dimension an axis is gathered from, -1 for none or if all at
    once.
    """
    # Only tensors that are gathered on more than one dimension need several collectives.
    first = np.where(gathered_dim < 0, gathered_dim.max(initial=0) + 1, gathered_dim).min(axis=0)
    is_several = (mask != 0) & ((gathered_dim > first) & (gathered_dim >= 0)).any(axis=0)
    flows = [Flow(ALL_GATHER, np.where(is_several, 0, mask), n_bytes)]
    if not is_several.any():
        return flows
    bits = 1 << np.arange(len(sizes))[:, None]
    before = np.where(is_several, n_bytes, 0.0)
    for dim in range(int(gathered_dim.max()) + 1):
        here = (gathered_dim == dim) & is_several
        flows.append(Flow(ALL_GATHER, (here * bits).sum(axis=0), before))
        # `before` is the size that this gather ends with: the dimensions before it, gathered
        # later, are still split.
        before = before / np.where(here, sizes[:, None], 1).prod(axis=0)
    return flows


@dataclass(frozen=True, slots=True)
class Entries:
    """Collectives of one table of edges, as columns: one entry per edge and kind that
    communicates.
    """

    kind: np.ndarray
    mask: np.ndarray
    n_bytes: np.ndarray
    count: np.ndarray
    phase: np.ndarray
    combinable: np.ndarray
    edge: np.ndarray


def entries(edges: Edges, flows: Sequence[Flow]) -> Entries:
    """Where some axis takes part."""
    edges_by_flow = [np.flatnonzero(flow.mask) for flow in flows]
    edge = np.concatenate(edges_by_flow)
    kind = np.repeat([flow.kind for flow in flows], [len(chosen) for chosen in edges_by_flow])
    return Entries(
        kind=kind,
        mask=np.concatenate([flow.mask[chosen] for flow, chosen in zip(flows, edges_by_flow)]),
        n_bytes=np.concatenate(
            [flow.n_bytes[chosen] for flow, chosen in zip(flows, edges_by_flow)]
        ),
        count=np.concatenate(
            [
                (edges.trips if flow.count is None else flow.count)[chosen]
                for flow, chosen in zip(flows, edges_by_flow)
            ]
        ),
        phase=edges.phase[edge],
        combinable=edges.combinable[edge],
        edge=edge,
    )
