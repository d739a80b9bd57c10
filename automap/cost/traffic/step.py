"""Collectives implied by shardings: what each operation must gather first, and what it must do with
its result.

Operand edge, axis a: the tensor is split on dimension d, the operation splits factor f.
    d's factor is f                     nothing
    d split, the operation splits another of the tensor's dimensions        all-to-all
    d split, else                       all-gather
    d not split                         nothing (a slice costs no communication)
    then what windows read of the neighbours' parts        -> in: `automap.cost.edges.halos`

Result edge, axis a: the operation splits factor f, the tensor is to be split on dimension d.
    f is d's factor                     nothing
    f is summed over, d not split       all-reduce
                      d split           reduce-scatter, before any all-reduce
                      (what operations end in one all-reduce instead: `automap.cost.edges.AtOnce`)
    f another dimension's factor, d not split   all-gather
                                  d split       all-to-all

Matmuls, reduces and scatters make one all-reduce for each dimension that is summed over; a reduce
of several arrays at once, as argmax, gathers all partials. Where any axis needs an all-reduce,
nothing is scattered by a `reduce`, a convolution that is written out, nor where some axis is idle
or splits d already                                                         -> in: `_result_traffic`
A `reduce` scatters nothing either along axes of d in another order than on the rows that it sums up
                                                                          -> in: `_are_out_of_order`

Each dimension of a tensor is gathered by a collective of its own.

Bytes follow `automap.cost.collectives`: the full buffer on one device. Axes that do the same thing
to the same tensor do it in one collective, so kinds are counted per set of axes, a bit mask. A
tensor that two operations want gathered over the same axes, or moved alike, is so once, as wide as
the first wants it at least (a table of words that is looked up in and multiplied), and so is a sum
whose terms are all partial over the same axes reduced once, where the backend adds first
(`automap.cost.edges.results`). What a collective wants in another order of dimensions
                                                            -> in: `automap.cost.traffic.turned`
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from automap.cost.edges import AtOnce, Edges, Partials, Windows, halo_exchanges
from automap.cost.shardings import Shardings
from automap.cost.traffic.flows import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    KINDS,
    PERMUTE,
    REDUCE_SCATTER,
    Entries,
    Flow,
    clear_merged_terms,
    clear_repeats,
    devices_over,
    dim_held,
    edge_dims,
    entries,
    gathers_by_dim,
    holds,
)
from automap.cost.traffic.turned import is_turned, whole_sums


@dataclass(frozen=True)
class Collectives(Entries):
    """One entry per (edge row, kind) that communicates; bytes are per execution on one device.

    `mask` has bit a set if axis a takes part; `edge` indexes the edge table named by `on_operand`.
    `is_repeat` [rows of `Edges.repeats`] says which operand edges find their tensor gathered
    already; `copied` [operand edges] is the bytes of the copy that an edge makes of its tensor.
    `whole_sums` [result edges] are the bytes of results that are scattered, beside their parts, and
    `turned_operands` [operand edges] what is there besides while one is turned, and
    `copied_results` [result edges] while one is turned or, of gathered state that is handed on, all
    the time (`automap.cost.traffic.turned`).
    `scattered_again` [result edges] are the reduce-scatters of terms whose sum another one
    scatters.
    """

    on_operand: np.ndarray
    is_repeat: np.ndarray
    copied: np.ndarray
    whole_sums: np.ndarray
    turned_operands: np.ndarray
    copied_results: np.ndarray
    scattered_again: Flow

    @property
    def held_bytes(self) -> np.ndarray:
        """Bytes beside buffers: of operand edges, of result edges, and of what both copy."""
        columns = (self.copied, self.whole_sums, self.turned_operands, self.copied_results)
        return np.concatenate(columns)

    @property
    def turned_bytes(self) -> np.ndarray:
        """Bytes of the arrays that are turned after they are gathered, or before they are
        scattered, [entries].
        """
        turned = np.zeros(len(self.kind), bool)
        for on_operand, kind, beside in (
            (True, ALL_GATHER, self.turned_operands),
            (False, REDUCE_SCATTER, self.copied_results),
        ):
            rows = np.flatnonzero((self.on_operand == on_operand) & (self.kind == kind))
            turned[rows] = beside[self.edge[rows]] > 0
        return np.where(turned, self.n_bytes, 0.0)

    @property
    def handed_on_bytes(self) -> np.ndarray:
        """Bytes of state that is gathered and handed on, where that is copied, [entries]."""
        rows = np.flatnonzero(~self.on_operand & (self.kind == ALL_GATHER))
        result = np.zeros(len(self.kind))
        is_copied = self.copied_results[self.edge[rows]] > 0
        result[rows] = np.where(is_copied, self.n_bytes[rows], 0.0)
        return result


def collectives(
    operands: Edges, windows: Windows, results: Edges, sharding: Shardings
) -> Collectives:
    """All collectives of one step, of its operand edges, their windows, and its result edges."""
    sizes = np.array(sharding.sizes)
    before, is_repeat, turned_operands = _operand_traffic(operands, sharding, sizes)
    after, scattered_again, sums = _result_traffic(results, sharding, sizes)
    parts = [(before, True), (after, False)]
    # An edge may gather in several collectives, dimension by dimension: the one with the most bytes
    # makes the whole copy.
    copied = np.zeros(len(operands.count))
    np.maximum.at(copied, before.edge, before.n_bytes)
    if len(windows.edge):
        permutes, with_halos = _halo_traffic(operands, windows, sharding)
        copied += with_halos
        parts.append((permutes, True))

    def column(name: str) -> np.ndarray:
        return np.concatenate([getattr(part, name) for part, _ in parts])

    return Collectives(
        kind=column("kind"),
        mask=column("mask"),
        n_bytes=column("n_bytes"),
        count=column("count"),
        phase=column("phase"),
        combinable=column("combinable"),
        edge=column("edge"),
        on_operand=np.repeat([on for _, on in parts], [len(part.edge) for part, _ in parts]),
        is_repeat=is_repeat,
        copied=copied,
        whole_sums=sums[0],
        turned_operands=turned_operands,
        copied_results=sums[1],
        scattered_again=scattered_again,
    )


def _operand_traffic(
    edges: Edges, sharding: Shardings, sizes: np.ndarray
) -> tuple[Entries, np.ndarray, np.ndarray]:
    """What is gathered and moved before operations run, which of `Edges.repeats` find their tensor
    gathered already, and the bytes of those that are turned.
    """
    n, rank = edges.factor_of_dim.shape
    masks = np.zeros((len(KINDS), n), np.int64)
    # In how many parts a tensor stays split while it is gathered or moved.
    parts = np.ones(n, np.int64)
    # Where an exchange puts the axes, as one number.
    target = np.zeros(n, np.int64)
    gathered_dim = np.full((len(sizes), n), -1, np.int64)
    for axis, size in enumerate(sizes.tolist()):
        dim, own, factor = edge_dims(edges, sharding, axis)
        is_wrong = (dim >= 0) & ((own != factor) | (factor < 0))
        is_moved = is_wrong & holds(edges, factor)
        masks[ALL_TO_ALL] |= np.where(is_moved, 1 << axis, 0)
        masks[ALL_GATHER] |= np.where(is_wrong & ~is_moved, 1 << axis, 0)
        target *= rank + 1
        target[is_moved] += dim_held(edges, factor, is_moved) + 1
        gathered_dim[axis] = np.where(is_wrong & ~is_moved, dim, -1)
        parts *= np.where((dim >= 0) & ~(is_wrong & ~is_moved), size, 1)
    # What is moved and what is gathered both see the tensor with only the kept axes split.
    n_bytes = edges.n_bytes / parts
    turned = np.where(is_turned(edges, sharding, masks[ALL_GATHER]), n_bytes, 0.0)
    is_repeat = clear_repeats(masks[ALL_GATHER], edges, parts)
    clear_repeats(masks[ALL_TO_ALL], edges, parts, target)
    gathers = gathers_by_dim(masks[ALL_GATHER], n_bytes, gathered_dim, sizes)
    flows = [Flow(ALL_TO_ALL, masks[ALL_TO_ALL], n_bytes, edges.count), *gathers]
    return entries(edges, flows), is_repeat, turned


def _halo_traffic(
    edges: Edges, windows: Windows, sharding: Shardings
) -> tuple[Entries, np.ndarray]:
    """The permutes of halos, and the bytes of the operands with them, [edges]: 0 where there are
    none.
    """
    local = edges.n_bytes.astype(float)
    for axis, size in enumerate(sharding.sizes):
        # Split as the operation runs, not as the tensor is stored: halos come after the gathers.
        factor = sharding.factor_of_axis[edges.op_row, axis]
        local /= np.where(holds(edges, factor), size, 1)
    exchanges = halo_exchanges(windows, edges, sharding.factor_of_axis, sharding.sizes, local)
    edge = exchanges.edge
    permutes = Entries(
        kind=np.full(len(edge), PERMUTE),
        mask=exchanges.mask,
        n_bytes=exchanges.n_bytes,
        count=edges.count[edge] * exchanges.times,
        phase=edges.phase[edge],
        combinable=np.zeros(len(edge), bool),
        edge=edge,
    )
    return permutes, np.where(exchanges.grown > 1, local * exchanges.grown, 0)


@dataclass
class _Demands:
    """What the axes do at each result edge, each by itself; masks of axes, [edges], unless said.

    `summed_over` [sums, edges]: by `Edges.sum_of_factor`. `gathered_dim` [axes, edges]: the
    dimension that is gathered along an axis, -1 for none. `stored_dims`, `scattered_dims`: masks of
    dimensions. `computed`, `stored` and `scattered` are in how many parts the tensor is made,
    stored, and scattered by sums. `is_pinned`: whether the result is pinned as it is made, so that
    one all-reduce comes before anything is split. `is_sliced`: whether it is split along an axis
    along which the operation does nothing.
    """

    reduced: np.ndarray
    to_scatter: np.ndarray
    gathered: np.ndarray
    moved: np.ndarray
    summed_over: np.ndarray
    gathered_dim: np.ndarray
    stored_dims: np.ndarray
    scattered_dims: np.ndarray
    computed: np.ndarray
    stored: np.ndarray
    scattered: np.ndarray
    is_pinned: np.ndarray
    is_sliced: np.ndarray


def _result_traffic(
    edges: Edges, sharding: Shardings, sizes: np.ndarray
) -> tuple[Entries, Flow, tuple[np.ndarray, np.ndarray]]:
    """What is summed, scattered, gathered and moved after operations have run, the reduce-scatters
    that are left out as terms of a sum that another one scatters, and what these scatter.
    """
    demands = _demands(edges, sharding, sizes)
    # One all-reduce over all axes at once takes the place of reduce-scatters: what is made then is
    # the whole tensor.
    is_apart = _are_taken_apart(edges, demands, sizes)
    at_once = ((edges.sums_at_once != AtOnce.NEVER) & ~is_apart) | demands.is_pinned
    at_once &= demands.reduced != 0
    at_once |= _are_out_of_order(edges, sharding, demands)
    reduced = demands.reduced | np.where(at_once, demands.to_scatter, 0)
    to_scatter = np.where(at_once, 0, demands.to_scatter)
    scattered = np.where(at_once, 1, demands.scattered)
    n_bytes = edges.n_bytes / demands.computed
    # Candidates and rows are gathered along the axes that would be summed over (`Partials`).
    partial = np.where(edges.partials != Partials.TERMS, reduced | to_scatter, 0)
    reduced[partial != 0] = to_scatter[partial != 0] = 0
    demands.gathered_dim[:, partial != 0] = -1
    every_scatter = to_scatter.copy()
    for mask in (reduced, to_scatter):
        clear_merged_terms(mask, edges, n_bytes)
    # Every device of the group has a candidate for each element of the result.
    ranks = devices_over(partial, sharding.sizes)
    candidates = n_bytes * np.where(edges.partials == Partials.CANDIDATES, ranks, 1)
    whole = np.where(partial != 0, candidates, edges.n_bytes / demands.stored)
    # A loop that adds up slices of what is reduced reduces it in every trip.
    in_every_trip = demands.is_sliced | ((at_once | is_apart) & (demands.to_scatter != 0))
    count = np.where(in_every_trip, edges.trips, edges.count)
    wide = n_bytes * np.where(in_every_trip, 1.0, edges.widened)
    flows = [
        Flow(REDUCE_SCATTER, to_scatter, n_bytes),
        Flow(ALL_TO_ALL, demands.moved, n_bytes),
        *gathers_by_dim(demands.gathered | partial, whole, demands.gathered_dim, sizes),
        # After the scatter: an all-reduce sees only the device's shard of it.
        *_all_reduces(reduced, wide / scattered, demands.summed_over, count),
        # Collectives that the step itself has, in its `shard_map`s.
        *(
            Flow(kind, np.where(edges.own_kind == kind, edges.own_mask, 0), edges.own_bytes * 1.0)
            for kind in np.unique(edges.own_kind[edges.own_kind >= 0]).tolist()
        ),
    ]
    again = Flow(REDUCE_SCATTER, every_scatter & ~to_scatter, n_bytes)
    sums, turned = whole_sums(edges, sharding, to_scatter, n_bytes)
    is_copied = edges.is_handed_on & (demands.gathered != 0)
    return entries(edges, flows), again, (sums, turned + np.where(is_copied, whole, 0.0))


def _are_taken_apart(edges: Edges, demands: _Demands, sizes: np.ndarray) -> np.ndarray:
    """Which all-reduces over all devices are scattered along the last axis after all (`AtOnce`),
    [edges].
    """
    axes = np.flatnonzero(sizes > 1)
    last = 1 << int(axes[-1]) if len(axes) else 0
    every = int(np.bitwise_or.reduce(1 << axes))
    is_over_all = (demands.reduced | demands.to_scatter) & every == every
    is_split = (demands.to_scatter == last) & ~demands.is_pinned
    return (edges.sums_at_once == AtOnce.UNLESS_SLICED) & is_over_all & is_split


def _are_out_of_order(edges: Edges, sharding: Shardings, demands: _Demands) -> np.ndarray:
    """Which sums over rows are scattered along axes in another order than they have on the rows,
    [edges].

    The devices of such a sum are in the order of the axes on the rows, and XLA makes a
    reduce-scatter only where the parts of the result are in that order, too
    (reduce_scatter_creator.cc). Rows are taken to be in the order of the mesh. On a result axes
    that split the parameter are major to those that split its gradient alone; all others follow the
    rows (`automap.planner.sharded_graph`).
    """
    is_several = demands.to_scatter & demands.to_scatter - 1 != 0
    rows = np.flatnonzero(is_several & (edges.sums_at_once == AtOnce.UNLESS_SLICED))
    result = np.zeros(len(is_several), bool)
    value, scattered = edges.value_row[rows], demands.to_scatter[rows]
    dim, is_late = sharding.dim_of_axis[value], sharding.is_late_axis[value]
    for major, minor in combinations(range(len(sharding.sizes)), 2):
        is_both = (scattered >> major & scattered >> minor & 1).astype(bool)
        is_both &= dim[:, major] == dim[:, minor]
        result[rows] |= is_both & is_late[:, major] & ~is_late[:, minor]
    return result


def _demands(edges: Edges, sharding: Shardings, sizes: np.ndarray) -> _Demands:
    n, n_factors = edges.is_reduced.shape
    masks, parts, rows = np.zeros((6, n), np.int64), np.ones((3, n), np.int64), np.arange(n)
    demands = _Demands(
        reduced=masks[0],
        to_scatter=masks[1],
        gathered=masks[2],
        moved=masks[3],
        summed_over=np.zeros((n_factors, n), np.int64),
        gathered_dim=np.full((len(sizes), n), -1, np.int64),
        stored_dims=masks[4],
        scattered_dims=masks[5],
        computed=parts[0],
        stored=parts[1],
        scattered=parts[2],
        is_pinned=np.zeros(n, bool),
        is_sliced=np.zeros(n, bool),
    )
    for axis, size in enumerate(sizes.tolist()):
        dim, own, factor = edge_dims(edges, sharding, axis)
        # The cases of the docstring: an axis either sums, or stays on its dimension, or stands on
        # another one than the tensor is stored on.
        bit, is_stored, active = 1 << axis, dim >= 0, factor >= 0
        dim_bit = 1 << np.maximum(dim, 0)
        sums = active & edges.is_reduced[rows, factor]
        stays = active & (own == factor) & is_stored
        elsewhere = active & ~sums & ~stays & holds(edges, factor)
        is_gathered = elsewhere & ~is_stored
        number = edges.sum_of_factor[rows[sums], factor[sums]]
        demands.summed_over[number, rows[sums]] |= bit
        demands.reduced |= np.where(sums & ~is_stored, bit, 0)
        demands.to_scatter |= np.where(sums & is_stored, bit, 0)
        demands.gathered |= np.where(is_gathered, bit, 0)
        demands.moved |= np.where(elsewhere & is_stored, bit, 0)
        demands.gathered_dim[axis, is_gathered] = dim_held(edges, factor, is_gathered)
        demands.stored_dims |= np.where(stays, dim_bit, 0)
        demands.scattered_dims |= np.where(sums & is_stored, dim_bit, 0)
        demands.computed *= np.where(stays | elsewhere, size, 1)
        demands.stored *= np.where(stays | (elsewhere & is_stored), size, 1)
        demands.scattered *= np.where(sums & is_stored, size, 1)
        demands.is_sliced |= is_stored & ~active
        demands.is_pinned |= ~active | edges.is_alone[rows, factor]
    # A dimension that one axis splits already cannot be scattered along another one.
    demands.is_pinned |= demands.stored_dims & demands.scattered_dims != 0
    return demands


def _all_reduces(
    mask: np.ndarray, n_bytes: np.ndarray, summed_over: np.ndarray, count: np.ndarray
) -> list[Flow]:
    """The all-reduces of `mask`, one for each sum; `summed_over` [sums, edges] are the axes of
    each.
    """
    used = np.flatnonzero((summed_over & mask).any(axis=1))
    return [Flow(ALL_REDUCE, summed_over[number] & mask, n_bytes, count) for number in used]
