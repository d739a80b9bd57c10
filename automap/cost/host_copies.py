"""What a device waits for copies that the step itself makes to and from its host's memory.

In a trip of a loop, and outside of loops in a phase, copies go beside kernels, one at a time in
each direction, at w bytes per second. With b_k the bytes on a device of copy k, c_k the seconds of
the trip's kernels before it, C those of all of them:

    load k     may begin with the trip, and when the load before it is done; what reads it waits
    store k    begins at c_k, and when the store before it is done; the trip ends when all are done

    waiting = max over k of (sum over j <= k of b_j / w - c_k)          of loads, by c_k
            + max over k of (c_k + sum over j >= k of b_j / w - C)      of stores, by c_k

where they are above 0, times the trips                                  -> in: `waiting_seconds`
c_k of a load are the kernels before the first that reads it, of a store those up to the one that
makes it. A compiler that brings in what the next trip reads would hide more; XLA's for GPUs was not
seen to, and no other was looked at.
Where copies go in line with kernels, as on GPUs (measured: docs/reports/levers.md), each is waited
for:

    waiting = sum over k of b_k / w, times the trips                     -> in: `in_line_seconds`
A machine whose device has no link of its own, as a CPU, reads and writes one memory: there are the
kernels that copy, and no more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from automap.cost.edges.loops import innermost_loops
from automap.cost.shardings import Shardings
from automap.program.problem import Problem
from hlo_tools.analyses.accesses import Kernel
from hlo_tools.analyses.host_memory import HostMemory


@dataclass(frozen=True, slots=True)
class HostCopies:
    """Copies [copies], each by its direction in the order in which a trip makes it.

    `row` is of the value that is copied, `n_bytes` those of the whole of it; `place` is where it
    is, [copies], which happens `trips` times in a step. `before` [copies, kernels] is how often
    each distinct kernel runs before it in one trip, `in_place` [places, kernels] in all of it.
    """

    row: np.ndarray
    n_bytes: np.ndarray
    is_store: np.ndarray
    place: np.ndarray
    trips: np.ndarray
    before: np.ndarray
    in_place: np.ndarray

    def local_bytes(self, sharding: Shardings) -> np.ndarray:
        """Bytes on a device of each copy, [copies]."""
        return self.n_bytes / sharding.parts_of_value[self.row]

    def stored_bytes(self, sharding: Shardings) -> float:
        """Bytes of a device that a step puts into its host's memory."""
        return float((self.local_bytes(sharding) * self.trips) @ self.is_store)


def host_copies(
    problem: Problem,
    host: HostMemory,
    kernels: Sequence[Kernel],
    row_of_kernel: Sequence[int],
    row_of_value: np.ndarray,
    position: np.ndarray,
    n_bytes: Sequence[int],
) -> HostCopies | None:
    """The copies of a step, whose kernels have rows, at a `position` [ops] in the schedule; None if
    it makes none.
    """
    if not host.stores:
        return None
    graph = problem.graph
    n_rows = max(row_of_kernel, default=-1) + 1
    first_reader = _first_readers(kernels, position)
    loops, places = innermost_loops(graph), dict[int, int]()
    columns: list[tuple[int, float, bool, int, int, np.ndarray]] = []
    in_place = []
    for number in (*host.stores, *host.loads):
        op, is_store = graph.ops[number], number in host.stores
        # Outside of loops the phase, as a number that no op has.
        key = loops[number] if loops[number] >= 0 else -1 - problem.phases[number]
        if key not in places:
            places[key] = len(places)
            in_place.append(_runs(problem, kernels, row_of_kernel, n_rows, key, position, None))
        value = op.inputs[0] if is_store else op.outputs[0]
        # Up to the kernel that makes it, which is before the copy; or to the one that reads it.
        until = int(position[number]) if is_store else first_reader.get(value, len(position))
        before = _runs(problem, kernels, row_of_kernel, n_rows, key, position, until)
        row = (int(row_of_value[value]), float(n_bytes[value]), is_store, places[key])
        columns.append((*row, op.trip_count, before))
    order = sorted(range(len(columns)), key=lambda n: float(columns[n][5].sum()))
    row, size, store, place, trips, before = zip(*(columns[n] for n in order), strict=True)
    return HostCopies(
        row=np.array(row),
        n_bytes=np.array(size),
        is_store=np.array(store),
        place=np.array(place),
        trips=np.array(trips, float),
        before=np.stack(before),
        in_place=np.stack(in_place),
    )


def _first_readers(kernels: Sequence[Kernel], position: np.ndarray) -> Mapping[int, int]:
    """For each stored value where the first kernel is that reads it."""
    first: dict[int, int] = {}
    for kernel in kernels:
        at = int(position[kernel.op])
        for access in kernel.reads:
            first[access.value] = min(first.get(access.value, at), at)
    return first


def _runs(
    problem: Problem,
    kernels: Sequence[Kernel],
    row_of_kernel: Sequence[int],
    n_rows: int,
    place: int,
    position: np.ndarray,
    until: int | None,
) -> np.ndarray:
    """How often each distinct kernel runs in one trip of a loop, or outside of loops in a phase, up
    to a position; those of loops within it too.
    """
    graph, runs = problem.graph, np.zeros(n_rows)
    inside = range(place, graph.exit_by_entry[place] + 1) if place >= 0 else None
    trips = graph.ops[inside[1]].trip_count if inside else 1
    for kernel, row in zip(kernels, row_of_kernel, strict=True):
        here = kernel.op in inside if inside else problem.phases[kernel.op] == -1 - place
        if here and (until is None or position[kernel.op] < until):
            runs[row] += graph.ops[kernel.op].trip_count / trips
    return runs


def in_line_seconds(copies: HostCopies, sharding: Shardings, host_bytes_per_s: float) -> float:
    """Seconds of a step's copies, one after the other."""
    return float(copies.local_bytes(sharding) @ copies.trips) / host_bytes_per_s


def waiting_seconds(
    copies: HostCopies, sharding: Shardings, kernel_seconds: np.ndarray, host_bytes_per_s: float
) -> float:
    """Seconds of a step in which a device waits for copies, given those of one run of each distinct
    kernel.
    """
    seconds = copies.local_bytes(sharding) / host_bytes_per_s
    begins, ends = copies.before @ kernel_seconds, copies.in_place @ kernel_seconds
    waiting = 0.0
    for place, end in enumerate(ends.tolist()):
        load, store = (
            np.flatnonzero((copies.place == place) & (copies.is_store == is_store))
            for is_store in (False, True)
        )
        # Arrays, not loops: a search prices thousands of plans.
        load = load[np.argsort(begins[load], kind="stable")]
        store = store[np.argsort(begins[store], kind="stable")]
        late = (np.cumsum(seconds[load]) - begins[load]).max(initial=0.0)
        left = np.cumsum(seconds[store][::-1])[::-1]
        late += (begins[store] + left - end).max(initial=0.0)
        trips = copies.trips[copies.place == place]
        waiting += float(late) * float(trips.max(initial=0.0))
    return waiting
