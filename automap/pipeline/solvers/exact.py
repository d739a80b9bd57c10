"""The optimum of V for S stages, by a dynamic programme over tails.

A state (k, i, d) is a tail of k stages that has points i .. n and units d .. U. L is not a sum over
stages, so a state keeps the Pareto set of its tails (with their rounds W if passes alternate), all
of which `prepend_stage` is monotone in: of two tails the one that is no worse in every number stays
no worse whatever comes before                                              -> in: `insert_pareto`

A transfer depends on the kinds of both its stages (`automap.pipeline.solvers.stage_options`): tails
are compared only if their first stages have one interface. A tail is dropped if no head of S - k
stages can bring it under the upper bound        -> in: `automap.pipeline.solvers.bounds`

Tails of all states are rows of one growing pool, as `prepend_stage` fills them; beside each are its
links: (end of its first stage in points, that stage's kind, the row of the tail after it, the
kind's interface).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from automap.deadline import Deadline
from automap.numba_jit import Array, compiled, inner, inner_making_arrays
from automap.pipeline.arrays import Arrays, divisible_by
from automap.pipeline.solvers.bounds import least_seconds, sum_least
from automap.pipeline.solvers.stage_options import (
    StageOptions,
    device_bytes,
    may_start,
    price_stages,
    reduce_seconds,
    replicated_options,
    transfer_seconds,
)
from automap.pipeline.value import most_in_flight, most_late, prepend_stage, tail_seconds


MOST_TAILS: Final = (1024, 16384)
"""Tails that a state may keep; the second is tried when the first does not do."""
MOST_WORK: Final = 1_000_000_000
"""Transitions and comparisons of tails after which a run gives up its proof: some seconds."""
# Relative: a partition that was priced in another order of sums still counts as under the bound.
_ROUNDING: Final = 1e-9
# The slowest of 23 runs on BERT-48 did 1e8 a processor second, the fastest 9e8: x86_64, 2026-11.
WORK_PER_SECOND: Final = 2e8


@dataclass(frozen=True, slots=True)
class Partition:
    """Stages: `cuts` and `device_cuts` int64 [S + 1] as in `automap.pipeline.value`; V in seconds.

    `kinds` are those of a `StageOptions`, one for each stage; () where all are replicated.
    """

    cuts: np.ndarray
    device_cuts: np.ndarray
    seconds: float
    kinds: tuple[int, ...] = ()

    @property
    def stages(self) -> int:
        """S."""
        return len(self.cuts) - 1


@dataclass(frozen=True, slots=True)
class Solved:
    """The end of a run: `best` is None if nothing is under the bound.

    `proven`: no state had more tails than it may keep, and the run came to its end.
    `least_seconds`: if proven, no partition under the bound has a smaller V; None: the best one's.
    """

    best: Partition | None
    proven: bool
    widest: int
    work: int
    least_seconds: float | None = None


def solve(
    problem: Arrays | StageOptions,
    stages: int,
    bound_seconds: float = np.inf,
    *,
    most_tails: Sequence[int] = MOST_TAILS,
    most_work: int = MOST_WORK,
    deadline: Deadline | None = None,
) -> Solved:
    """The best partition in `stages` stages whose V is at most the bound, but for rounding.

    If `proven` and without a best one, none is under the bound. A state may keep so many tails; the
    next number is tried when one does not do. No more work is done than there is time for until the
    deadline.
    """
    options = replicated_options(problem) if isinstance(problem, Arrays) else problem
    solved = Solved(None, proven=True, widest=0, work=0)
    if not 1 <= stages <= min(options.n_points, options.n_units):
        return solved
    if not divisible_by(options.units, options.n_units, stages)[stages, options.n_units]:
        return solved
    for most in most_tails:
        if deadline is not None:
            most_work = round(min(most_work, deadline.seconds_left * WORK_PER_SECOND))
        cuts, device_cuts, kinds, overflowed, widest, work = _programme(
            options, stages, bound_seconds * (1 + _ROUNDING), most, most_work
        )
        best = None
        if len(cuts):
            seconds = float(price_stages(options, cuts, device_cuts, kinds)[1])
            is_plain = isinstance(problem, Arrays)
            best = Partition(cuts, device_cuts, seconds, () if is_plain else tuple(kinds.tolist()))
        solved = Solved(best, not overflowed, int(widest), int(work))
        if not overflowed or work > most_work:
            break
    return solved


@compiled
def _programme(
    options: StageOptions, stages: int, bound: float, most: int, most_work: int
) -> tuple[Array, Array, Array, bool, int, int]:
    """(cuts, parts, kinds, whether a state overflowed, its most tails, work); no cuts if nothing is
    found.
    """
    n, units = len(options.may_cut) - 1, len(options.latency_seconds) - 1
    fs, bs, wf, wb = sum_least(options.units, options.forward, options.backward, units)
    # Weight passes are work, but no part of a microbatch's way through the stages and back.
    wb = wb + sum_least(options.units, options.forward, options.weights, units)[3]
    # Rows first .. first + count - 1 of the pool are the tails of a state.
    first = np.zeros((stages + 1, n + 1, units + 1), np.int64)
    count = np.zeros((stages + 1, n + 1, units + 1), np.int32)
    row = 4 + stages
    pool, links = np.empty((4096, row)), np.empty((4096, 4), np.int32)
    for column in range(row):
        pool[0, column] = 0.0
    # Row 0 is the tail of no stages, which every last stage is put before.
    links[0, 0] = links[0, 1] = links[0, 2] = links[0, 3] = -1
    count[0, n, units] = 1
    used, widest, work, overflowed = 1, 0, 0, False
    tails, joins, new = np.empty((most, row)), np.empty((most, 4), np.int32), np.empty((1, row))
    for k in range(1, stages + 1):
        # The head needs a point and a unit for each of its stages, and has to be empty at the end.
        rem = stages - k
        for i in range(rem, n - k + 1) if rem else range(1):
            if not options.may_cut[i]:
                continue
            for d in range(rem, units - k + 1) if rem else range(1):
                if not options.may_cut_devices[d]:
                    continue
                if work > most_work:
                    overflowed = True
                    continue
                n_tails, bound, more, over = _tails(
                    options,
                    first,
                    count,
                    pool,
                    links,
                    tails,
                    joins,
                    new,
                    fs,
                    bs,
                    wf,
                    wb,
                    k,
                    rem,
                    i,
                    d,
                    bound,
                    most_work - work,
                )
                work += more
                overflowed |= over
                widest = max(widest, n_tails)
                pool, links = grow(pool, links, used + n_tails)
                copy_rows(pool, used, tails, n_tails)
                copy_rows(links, used, joins, n_tails)
                first[k, i, d], count[k, i, d] = used, n_tails
                used += n_tails
    cuts, device_cuts, kinds = _fastest(
        options, pool, links, first[stages, 0, 0], count[stages, 0, 0], stages
    )
    return cuts, device_cuts, kinds, overflowed, widest, work


@inner_making_arrays
def _fastest(
    options: StageOptions, pool: Array, links: Array, first: int, count: int, stages: int
) -> tuple[Array, Array, Array]:
    """(cuts, device_cuts, kinds) of the fastest of `count` whole pipelines from row `first` on;
    empty if there is none.
    """
    best, least = -1, np.inf
    for z in range(first, first + count):
        seconds = tail_seconds(pool[z, 1], pool[z, 2], options.microbatches, options.order)
        if seconds < least:
            best, least = z, seconds
    # Back along the links, from the first stage to the last.
    size = 0 if best < 0 else stages + 1
    cuts, device_cuts = np.zeros(size, np.int64), np.zeros(size, np.int64)
    kinds = np.zeros(max(size - 1, 0), np.int64)
    for s in range(1, size):
        kinds[s - 1] = links[best, 1]
        cuts[s], device_cuts[s] = links[best, 0], device_cuts[s - 1] + options.units[kinds[s - 1]]
        best = links[best, 2]
    return cuts, device_cuts, kinds


@inner
def _tails(
    options: StageOptions,
    first: Array,
    count: Array,
    pool: Array,
    links: Array,
    tails: Array,
    joins: Array,
    new: Array,
    fs: Array,
    bs: Array,
    wf: Array,
    wb: Array,
    k: int,
    rem: int,
    i: int,
    d: int,
    bound: float,
    most_work: int,
) -> tuple[int, float, int, bool]:
    """Fill `tails` with the Pareto set of state (k, i, d); (how many, the bound, work, overflowed).

    After `most_work` what is left of the state is dropped, which counts as overflowing.
    """
    n, units, m = len(options.may_cut) - 1, len(options.latency_seconds) - 1, options.microbatches
    order, flight = options.order, most_in_flight(options.order, m, k)
    late = most_late(order, m, k, rem)
    # Columns that later stages read: W_1 .. W_{k-1} too where passes alternate. W_k is U.
    width = 3 + k if order.alternates else 4
    h_f = h_b = h_wf = h_wb = 0.0
    if rem:
        h_f, h_b = fs[d - rem + 1, i], bs[d - rem + 1, i]
        h_wf, h_wb = wf[i] / d, wb[i] / d
    n_tails, work, overflowed = 0, 0, False
    for kind in range(len(options.units)):
        e, face = d + options.units[kind], options.interface[kind]
        fits = e <= units - k + 1 if k > 1 else e == units
        if not fits or not may_start(options, kind, d):
            continue
        for j in range(i + 1, n - k + 2) if k > 1 else range(n, n + 1):
            f = options.forward[kind, j] - options.forward[kind, i]
            b = options.backward[kind, j] - options.backward[kind, i]
            w = options.weights[kind, j] - options.weights[kind, i]
            needed = device_bytes(options, kind, i, j, flight, late)
            # More points take longer, and more memory.
            least = m * (f + b) + h_f + max(h_b, m * w)
            if least > bound or needed > options.memory_limit_bytes:
                break
            size = count[k - 1, j, e]
            if size == 0:
                continue
            reduce = reduce_seconds(options, kind, i, j, d)
            for z in range(first[k - 1, j, e], first[k - 1, j, e] + size):
                if work > most_work:
                    return n_tails, bound, work, True
                work += 1
                x = transfer_seconds(options, kind, links[z, 1], j, e) if k > 1 else 0.0
                prepend_stage(pool, z, new[0], f, b, w, x, reduce, m, k, rem, order)
                u, v, p, q = new[0, 0], new[0, 1], new[0, 2], new[0, 3]
                if rem:
                    least = least_seconds(u, v, p, q, h_f, h_b, h_wf, h_wb, m, order)
                else:
                    least = tail_seconds(v, p, m, order)
                if least > bound:
                    continue
                work += n_tails
                # Of whole pipelines only the fastest counts: it is the bound from now on.
                left = 0 if rem == 0 else insert_pareto(tails, joins, n_tails, new, face, width)
                if left < 0:
                    continue
                if left >= len(tails):
                    overflowed, n_tails = True, left
                    continue
                copy_row(tails, left, new, 0)
                joins[left, 0], joins[left, 1], joins[left, 2], joins[left, 3] = j, kind, z, face
                n_tails = left + 1
                if rem == 0:
                    bound = least
    return n_tails, bound, work, overflowed


@inner_making_arrays
def grow(pool: Array, links: Array, needed: int) -> tuple[Array, Array]:
    """Both with room for at least `needed` rows, the old ones copied."""
    if needed <= len(pool):
        return pool, links
    size = max(needed, 2 * len(pool))
    more = np.empty((size, pool.shape[1]))
    more_links = np.empty((size, links.shape[1]), np.int32)
    copy_rows(more, 0, pool, len(pool))
    copy_rows(more_links, 0, links, len(links))
    return more, more_links


@inner
def is_no_worse(tails: Array, z: int, than: Array, row: int, width: int) -> bool:
    """Whether no number of row z is more than that of `than[row]`, of the first `width`."""
    for c in range(width):
        if tails[z, c] > than[row, c]:
            return False
    return True


@inner
def copy_rows(target: Array, first: int, source: Array, count: int) -> None:
    """The first `count` rows of the source, from row `first` on; slices would take numba seconds to
    compile.
    """
    for row in range(count):
        copy_row(target, first + row, source, row)


@inner
def copy_row(target: Array, row: int, source: Array, source_row: int) -> None:
    """target[row] becomes source[source_row]."""
    for c in range(target.shape[1]):
        target[row, c] = source[source_row, c]


@inner
def insert_pareto(tails: Array, links: Array, count: int, new: Array, face: int, width: int) -> int:
    """How many of `count` tails are left when those are dropped that new[0] is no worse than; -1 if
    one is no worse than it.

    Only tails of the interface `face` are compared. The rows that stay move to the front.
    """
    for z in range(count):
        if links[z, 3] == face and is_no_worse(tails, z, new, 0, width):
            return -1
    left = 0
    for z in range(count):
        if not (links[z, 3] == face and is_no_worse(new, 0, tails, z, width)):
            if left != z:
                copy_row(tails, left, tails, z)
                copy_row(links, left, links, z)
            left += 1
    return left
