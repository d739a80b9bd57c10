"""Collectives implied by shardings: what each op must gather first, and what it must do with its result.

Operand edge, axis a: the tensor is split on dimension d, the op splits factor f.
    d's factor is f               nothing
    d split, op splits another of the tensor's dimensions      all-to-all
    d split, else                 all-gather
    d not split                   nothing (a slice costs no communication)
then what windows read of the neighbours' parts                            -> in: `automap.cost.halos`

Result edge, axis a: the op splits factor f, the tensor is to be split on dimension d.
    f is d's factor               nothing
    f is summed over, d not split all-reduce;   d split: reduce-scatter, before any all-reduce
                                  (matmuls, reduces and scatters: one all-reduce for each dimension that is summed
                                  over; a reduce of several arrays at once, as argmax, gathers all
                                  partials; where any axis needs an all-reduce, nothing is scattered by a
                                  `reduce`, a convolution that is written out, nor where some axis is idle
                                  or splits d already)
    f another dimension's factor, d not split   all-gather;   d split: all-to-all

Each dimension of a tensor is gathered by a collective of its own.

Bytes follow `automap.cost.collectives`: the full buffer on one device.  Axes that do the same thing to
the same tensor do it in one collective, so kinds are counted per set of axes, a bit mask.  A tensor that
two ops want gathered over the same axes, or moved alike, is so once, and so is a sum whose terms are all partial
over the same axes reduced once, where the backend adds first (`result_edges`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from automap.cost.collectives import CollectiveKind
from automap.cost.edges import Edges
from automap.cost.halos import exchanges
from automap.cost.shardings import Shardings
from automap.cost.tables import Tables


KINDS = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.ALL_TO_ALL,
    CollectiveKind.PERMUTE,
)
_ALL_REDUCE, _REDUCE_SCATTER, _ALL_GATHER, _ALL_TO_ALL, _PERMUTE = range(5)


@dataclass(frozen=True)
class Collectives:
    """One entry per (edge row, kind) that communicates; bytes are per execution on one device.

    `mask` has bit a set if axis a takes part; `edge` indexes the edge table named by `on_operand`.
    `is_repeat` [rows of `Edges.repeats`] says which operand edges find their tensor gathered already;
    `copied` [operand edges] is the bytes of the copy that an edge makes of its tensor.
    """

    kind: np.ndarray
    mask: np.ndarray
    n_bytes: np.ndarray
    count: np.ndarray
    phase: np.ndarray
    combinable: np.ndarray
    edge: np.ndarray
    on_operand: np.ndarray
    is_repeat: np.ndarray
    copied: np.ndarray


def collectives(tables: Tables, sharding: Shardings, sizes: tuple[int, ...]) -> Collectives:
    """All collectives of one step."""
    before, is_repeat = _before(tables.operands, sharding, np.array(sizes))
    after = _after(tables.results, sharding, np.array(sizes))
    copied = np.zeros(len(tables.operands.count))
    np.maximum.at(copied, before[6], before[2])
    parts = [before, after]
    if len(tables.windows.edge):
        parts.append(_exchanged(tables, sharding, sizes, copied))
    columns = [np.concatenate(part) for part in zip(*parts, strict=True)]
    return Collectives(*columns, is_repeat, copied)  # pyright: ignore[reportCallIssue]


def _exchanged(
    tables: Tables, sharding: Shardings, sizes: tuple[int, ...], copied: np.ndarray
) -> list[np.ndarray]:
    """Entries of the permutes of halos; adds the operands with their halos to `copied`."""
    edges, local = tables.operands, tables.operands.n_bytes.astype(float)
    for axis, size in enumerate(sizes):
        factor = sharding.factor_of_axis[edges.op_row, axis]
        local /= np.where(_holds(edges, factor), size, 1)
    found = exchanges(tables.windows, edges, sharding.factor_of_axis, sizes, local)
    copied += np.where(found.grown > 1, local * found.grown, 0)
    n, edge = len(found.edge), found.edge
    return [
        np.full(n, _PERMUTE), found.mask, found.n_bytes, edges.count[edge] * found.times,
        edges.phase[edge], np.zeros(n, bool), edge, np.ones(n, bool),
    ]  # fmt: skip


def _edge_dims(edges: Edges, sharding: Shardings, axis: int) -> tuple[np.ndarray, ...]:
    """(split dimension, its factor, the op's factor) of every edge on one axis, -1 for none."""
    dim = sharding.dim_of_axis[edges.value_row, axis]
    factor = sharding.factor_of_axis[edges.op_row, axis]
    rows = np.arange(len(dim))
    own = np.where(dim >= 0, edges.factor_of_dim[rows, dim], -1)
    return dim, own, factor


def _holds(edges: Edges, factor: np.ndarray) -> np.ndarray:
    """Whether a tensor has a dimension of the op's factor."""
    return ((edges.factor_of_dim == factor[:, None]) & (factor >= 0)[:, None]).any(axis=1)


def _before(
    edges: Edges, sharding: Shardings, sizes: np.ndarray
) -> tuple[list[np.ndarray], np.ndarray]:
    n, rank = edges.factor_of_dim.shape
    masks = np.zeros((len(KINDS), n), np.int64)
    kept = np.ones(n, np.int64)
    # Where an exchange puts the axes, as one number.
    target = np.zeros(n, np.int64)
    gathered_dim = np.full((len(sizes), n), -1, np.int64)
    for axis, size in enumerate(sizes.tolist()):
        dim, own, factor = _edge_dims(edges, sharding, axis)
        wrong = (dim >= 0) & ((own != factor) | (factor < 0))
        moved = wrong & _holds(edges, factor)
        masks[_ALL_TO_ALL] |= np.where(moved, 1 << axis, 0)
        masks[_ALL_GATHER] |= np.where(wrong & ~moved, 1 << axis, 0)
        to_dim = (edges.factor_of_dim == factor[:, None]).argmax(axis=1)
        target = target * (rank + 1) + np.where(moved, to_dim + 1, 0)
        gathered_dim[axis] = np.where(wrong & ~moved, dim, -1)
        kept *= np.where((dim >= 0) & ~(wrong & ~moved), size, 1)
    # What is moved and what is gathered both see the tensor with only the kept axes split.
    n_bytes = edges.n_bytes / kept
    is_repeat = _without_repeats(masks[_ALL_GATHER], edges, n_bytes)
    _without_repeats(masks[_ALL_TO_ALL], edges, n_bytes, target)
    apart = _gathers_apart(masks[_ALL_GATHER], n_bytes, gathered_dim, sizes)
    flows = [_Flow(_ALL_TO_ALL, masks[_ALL_TO_ALL], n_bytes), *apart]
    return _entries(edges, flows, on_operand=True), is_repeat


def _without_repeats(
    mask: np.ndarray, edges: Edges, n_bytes: np.ndarray, target: np.ndarray | None = None
) -> np.ndarray:
    """Clear the masks of edges that repeat an earlier one; which of `edges.repeats` those are.

    Edges with a `target` repeat only those that have the same.
    """
    later, earlier = edges.repeats.T
    is_repeat = (
        (mask[later] != 0) & (mask[later] == mask[earlier]) & (n_bytes[later] == n_bytes[earlier])
    )
    if target is not None:
        is_repeat &= target[later] == target[earlier]
    mask[later[is_repeat]] = 0
    return is_repeat


def _after(edges: Edges, sharding: Shardings, sizes: np.ndarray) -> list[np.ndarray]:
    n, n_factors = edges.is_reduced.shape
    masks = np.zeros((len(KINDS), n), np.int64)
    summed_over = np.zeros((n_factors, n), np.int64)
    computed = np.ones(n, np.int64)
    kept = np.ones(n, np.int64)
    scattered = np.ones(n, np.int64)
    gathered_dim = np.full((len(sizes), n), -1, np.int64)
    kept_dims, scattered_dims = np.zeros(n, np.int64), np.zeros(n, np.int64)
    pinned = np.zeros(n, bool)
    rows = np.arange(n)
    for axis, size in enumerate(sizes.tolist()):
        dim, own, factor = _edge_dims(edges, sharding, axis)
        active = factor >= 0
        summed = active & edges.is_reduced[rows, factor]
        stays = active & (own == factor) & (dim >= 0)
        elsewhere = active & ~summed & ~stays & _holds(edges, factor)
        bit = 1 << axis
        number = edges.sum_of_factor[rows[summed], factor[summed]]
        summed_over[number, rows[summed]] |= bit
        masks[_ALL_REDUCE] |= np.where(summed & (dim < 0), bit, 0)
        masks[_REDUCE_SCATTER] |= np.where(summed & (dim >= 0), bit, 0)
        masks[_ALL_GATHER] |= np.where(elsewhere & (dim < 0), bit, 0)
        masks[_ALL_TO_ALL] |= np.where(elsewhere & (dim >= 0), bit, 0)
        to_dim = (edges.factor_of_dim == factor[:, None]).argmax(axis=1)
        gathered_dim[axis] = np.where(elsewhere & (dim < 0), to_dim, -1)
        computed *= np.where(stays | elsewhere, size, 1)
        kept *= np.where(stays | (elsewhere & (dim >= 0)), size, 1)
        scattered *= np.where(summed & (dim >= 0), size, 1)
        kept_dims |= np.where(stays, 1 << np.maximum(dim, 0), 0)
        scattered_dims |= np.where(summed & (dim >= 0), 1 << np.maximum(dim, 0), 0)
        pinned |= ~active | (active & edges.is_alone[rows, factor])
    pinned |= kept_dims & scattered_dims != 0
    at_once = (edges.sums_at_once | pinned) & (masks[_ALL_REDUCE] != 0)
    masks[_ALL_REDUCE] |= np.where(at_once, masks[_REDUCE_SCATTER], 0)
    masks[_REDUCE_SCATTER][at_once] = 0
    scattered[at_once] = 1
    n_bytes = edges.n_bytes / computed
    partial = np.where(edges.gathers_partials, masks[_ALL_REDUCE] | masks[_REDUCE_SCATTER], 0)
    for kind in (_ALL_REDUCE, _REDUCE_SCATTER):
        masks[kind][partial != 0] = 0
    masks[_ALL_GATHER] |= partial
    gathered_dim[:, partial != 0] = -1
    for kind in (_ALL_REDUCE, _REDUCE_SCATTER):
        _without_repeats(masks[kind], edges, n_bytes)
    ranks = np.where(partial[:, None] >> np.arange(len(sizes)) & 1, sizes, 1).prod(axis=1)
    whole = np.where(partial != 0, n_bytes * ranks, edges.n_bytes / kept)
    flows = [
        _Flow(_REDUCE_SCATTER, masks[_REDUCE_SCATTER], n_bytes),
        _Flow(_ALL_TO_ALL, masks[_ALL_TO_ALL], n_bytes),
        *_gathers_apart(masks[_ALL_GATHER], whole, gathered_dim, sizes),
        *_sums_apart(masks[_ALL_REDUCE], n_bytes / scattered, summed_over),
    ]
    return _entries(edges, flows, on_operand=False)


@dataclass(frozen=True, slots=True)
class _Flow:
    """One kind of collective at all edges: its axes (0: none) and bytes, [edges]."""

    kind: int
    mask: np.ndarray
    n_bytes: np.ndarray


def _gathers_apart(
    mask: np.ndarray, n_bytes: np.ndarray, gathered_dim: np.ndarray, sizes: np.ndarray
) -> list[_Flow]:
    """The all-gathers of `mask`, one for each dimension of a tensor, the last dimension first.

    `gathered_dim` [axes, edges] is the dimension an axis is gathered from, -1 for none or if all at once.
    """
    first = np.where(gathered_dim < 0, gathered_dim.max(initial=0) + 1, gathered_dim).min(axis=0)
    is_several = (mask != 0) & ((gathered_dim > first) & (gathered_dim >= 0)).any(axis=0)
    flows = [_Flow(_ALL_GATHER, np.where(is_several, 0, mask), n_bytes)]
    if not is_several.any():
        return flows
    bits = 1 << np.arange(len(sizes))[:, None]
    before = np.where(is_several, n_bytes, 0.0)
    for dim in range(int(gathered_dim.max()) + 1):
        here = (gathered_dim == dim) & is_several
        flows.append(_Flow(_ALL_GATHER, (here * bits).sum(axis=0), before))
        before = before / np.where(here, sizes[:, None], 1).prod(axis=0)
    return flows


def _sums_apart(mask: np.ndarray, n_bytes: np.ndarray, summed_over: np.ndarray) -> list[_Flow]:
    """The all-reduces of `mask`, one for each sum; `summed_over` [sums, edges] are the axes of each."""
    used = np.flatnonzero((summed_over & mask).any(axis=1))
    return [_Flow(_ALL_REDUCE, summed_over[number] & mask, n_bytes) for number in used]


def _entries(edges: Edges, flows: Sequence[_Flow], *, on_operand: bool) -> list[np.ndarray]:
    found = [np.flatnonzero(flow.mask) for flow in flows]
    edge = np.concatenate(found)
    return [
        np.repeat([flow.kind for flow in flows], [len(f) for f in found]),
        np.concatenate([flow.mask[f] for flow, f in zip(flows, found)]),
        np.concatenate([flow.n_bytes[f] for flow, f in zip(flows, found)]),
        edges.count[edge], edges.phase[edge], edges.combinable[edge], edge,
        np.full(len(edge), on_operand),
    ]  # fmt: skip
