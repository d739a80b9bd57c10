"""What is summed, scattered, gathered or moved after ops have run (rules: `automap.cost.traffic.step`)."""

from dataclasses import dataclass

import numpy as np

from automap.cost.edges import Edges, Partials
from automap.cost.shardings import Shardings
from automap.cost.traffic.flows import (
    ALL_REDUCE,
    ALL_TO_ALL,
    REDUCE_SCATTER,
    Entries,
    Flow,
    edge_dims,
    entries,
    gathers_apart,
    holds,
    without_merged_terms,
)


@dataclass
class _Wanted:
    """What the axes do at each edge, each by itself; masks of axes unless said.

    `summed_over` [sums, edges]: by `Edges.sum_of_factor`. `dim_of` [axes, edges]: the dimension
    that is gathered along an axis, -1 for none. `kept_dims`, `scattered_dims`: masks of dimensions.
    `computed`, `kept` and `scattered` are in how many parts the tensor is made, kept, and scattered
    by sums. `is_pinned`: whether the result is pinned as it is made, so that one all-reduce comes
    before anything is split. `is_sliced`: whether it is split along an axis along which the op does
    nothing.
    """

    reduced: np.ndarray
    to_scatter: np.ndarray
    gathered: np.ndarray
    moved: np.ndarray
    summed_over: np.ndarray
    dim_of: np.ndarray
    kept_dims: np.ndarray
    scattered_dims: np.ndarray
    computed: np.ndarray
    kept: np.ndarray
    scattered: np.ndarray
    is_pinned: np.ndarray
    is_sliced: np.ndarray


def result_traffic(edges: Edges, sharding: Shardings, sizes: np.ndarray) -> tuple[Entries, Flow]:
    """The collectives, and the reduce-scatters that are left out as terms of a sum that another one
    scatters.
    """
    want = _wanted(edges, sharding, sizes)
    at_once = (edges.sums_at_once | want.is_pinned) & (want.reduced != 0)
    reduced = want.reduced | np.where(at_once, want.to_scatter, 0)
    to_scatter = np.where(at_once, 0, want.to_scatter)
    scattered = np.where(at_once, 1, want.scattered)
    n_bytes = edges.n_bytes / want.computed
    partial = np.where(edges.partials != Partials.TERMS, reduced | to_scatter, 0)
    reduced[partial != 0] = to_scatter[partial != 0] = 0
    want.dim_of[:, partial != 0] = -1
    every_scatter = to_scatter.copy()
    for mask in (reduced, to_scatter):
        without_merged_terms(mask, edges, n_bytes)
    ranks = np.where(partial[:, None] >> np.arange(len(sizes)) & 1, sizes, 1).prod(axis=1)
    candidates = n_bytes * np.where(edges.partials == Partials.CANDIDATES, ranks, 1)
    whole = np.where(partial != 0, candidates, edges.n_bytes / want.kept)
    # A loop that adds up slices of what is reduced reduces it in every trip.
    in_every_trip = want.is_sliced | (at_once & (want.to_scatter != 0))
    count = np.where(in_every_trip, edges.trips, edges.count)
    wide = n_bytes * np.where(in_every_trip, 1.0, edges.widened)
    flows = [
        Flow(REDUCE_SCATTER, to_scatter, n_bytes),
        Flow(ALL_TO_ALL, want.moved, n_bytes),
        *gathers_apart(want.gathered | partial, whole, want.dim_of, sizes),
        *_sums_apart(reduced, wide / scattered, want.summed_over, count),
        *(
            Flow(kind, np.where(edges.own_kind == kind, edges.own_mask, 0), edges.own_bytes * 1.0)
            for kind in np.unique(edges.own_kind[edges.own_kind >= 0]).tolist()
        ),
    ]
    again = Flow(REDUCE_SCATTER, every_scatter & ~to_scatter, n_bytes)
    return entries(edges, flows), again


def _wanted(edges: Edges, sharding: Shardings, sizes: np.ndarray) -> _Wanted:
    n, n_factors = edges.is_reduced.shape
    masks, parts, rows = np.zeros((6, n), np.int64), np.ones((3, n), np.int64), np.arange(n)
    want = _Wanted(
        reduced=masks[0],
        to_scatter=masks[1],
        gathered=masks[2],
        moved=masks[3],
        summed_over=np.zeros((n_factors, n), np.int64),
        dim_of=np.full((len(sizes), n), -1, np.int64),
        kept_dims=masks[4],
        scattered_dims=masks[5],
        computed=parts[0],
        kept=parts[1],
        scattered=parts[2],
        is_pinned=np.zeros(n, bool),
        is_sliced=np.zeros(n, bool),
    )
    for axis, size in enumerate(sizes.tolist()):
        dim, own, factor = edge_dims(edges, sharding, axis)
        bit, is_kept, active = 1 << axis, dim >= 0, factor >= 0
        bit_of_dim = 1 << np.maximum(dim, 0)
        summed = active & edges.is_reduced[rows, factor]
        stays = active & (own == factor) & is_kept
        elsewhere = active & ~summed & ~stays & holds(edges, factor)
        number = edges.sum_of_factor[rows[summed], factor[summed]]
        want.summed_over[number, rows[summed]] |= bit
        want.reduced |= np.where(summed & ~is_kept, bit, 0)
        want.to_scatter |= np.where(summed & is_kept, bit, 0)
        want.gathered |= np.where(elsewhere & ~is_kept, bit, 0)
        want.moved |= np.where(elsewhere & is_kept, bit, 0)
        made_dim = (edges.factor_of_dim == factor[:, None]).argmax(axis=1)
        want.dim_of[axis] = np.where(elsewhere & ~is_kept, made_dim, -1)
        want.kept_dims |= np.where(stays, bit_of_dim, 0)
        want.scattered_dims |= np.where(summed & is_kept, bit_of_dim, 0)
        want.computed *= np.where(stays | elsewhere, size, 1)
        want.kept *= np.where(stays | (elsewhere & is_kept), size, 1)
        want.scattered *= np.where(summed & is_kept, size, 1)
        want.is_sliced |= is_kept & ~active
        want.is_pinned |= ~active | edges.is_alone[rows, factor]
    want.is_pinned |= want.kept_dims & want.scattered_dims != 0
    return want


def _sums_apart(
    mask: np.ndarray, n_bytes: np.ndarray, summed_over: np.ndarray, count: np.ndarray
) -> list[Flow]:
    """The all-reduces of `mask`, one for each sum; `summed_over` [sums, edges] are the axes of
    each.
    """
    used = np.flatnonzero((summed_over & mask).any(axis=1))
    return [Flow(ALL_REDUCE, summed_over[number] & mask, n_bytes, count) for number in used]
