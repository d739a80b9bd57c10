"""The optimum of V for S stages, by a dynamic programme over tails.

A state (k, i, d) is a tail of k stages that has points i .. n and units d .. U. L is not a sum over stages, so a
state keeps the Pareto set of its tails (with their rounds W if passes alternate), all of which `joined` is monotone in. A transfer
depends on the kinds of both its stages (`automap.pipeline.solvers.stage_options`): tails are compared only if their first stages have one
interface. A tail is dropped if no head of S - k stages can bring it under the upper bound:           -> in: `least_seconds`

    fs, bs   sum over points before i of the least forward, backward seconds of any kind of r <= d - (S - k) + 1 units
    wf, wb   the same of r times the seconds: work that d units share, so some stage takes at least wf / d
    all forward first   L >= max(V + fs, U + fs + bs + (M - 1) max(Q, wb / d)) + (M - 1) max(P, wf / d)
    alternating         L >= max(V + fs, P + fs + bs, M (wf + wb) / d)

Tails of all states lie in one growing pool; each knows the tail that it was joined to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from automap.deadline import Deadline
from automap.numba_jit import Array, compiled, inner, inner_making_arrays, is_compiled
from automap.pipeline.arrays import Arrays, divisible_by
from automap.pipeline.schedules import PassOrder
from automap.pipeline.solvers.stage_options import (
    StageOptions,
    device_bytes,
    may_lie,
    priced_stages,
    reduce_seconds,
    replicated_options,
    transfer_seconds,
)
from automap.pipeline.solvers.tails import copy_row, copy_rows, grown, kept
from automap.pipeline.value import finished, joined, most_in_flight


MOST_TAILS: Final = (1024, 16384)
"""Tails that a state may keep; the second is tried when the first does not do."""
MOST_WORK: Final = 1_000_000_000
"""Transitions and comparisons of tails after which a run gives up its proof: some seconds."""
_ROUNDING: Final = 1e-9
# The slowest of 23 runs on BERT-48 did 1e8 a processor second, the fastest 9e8; compiling: x86_64,
# 2026-11.
WORK_PER_SECOND: Final = 2e8
_COMPILE_SECONDS: Final = 4.0


@dataclass(frozen=True, slots=True)
class Partition:
    """Stages: `cuts` and `parts` int64 [S + 1] as in `automap.pipeline.value`, and V in seconds.

    `kinds` are those of a `StageOptions`, one for each stage; () where all are replicated.
    """

    cuts: np.ndarray
    parts: np.ndarray
    seconds: float
    kinds: tuple[int, ...] = ()

    @property
    def stages(self) -> int:
        """S."""
        return len(self.cuts) - 1


@dataclass(frozen=True, slots=True)
class Solved:
    """What a run found: None if nothing is under the bound. `proven`: no state had more tails than
    it may keep, and the run came to its end. `least_seconds`: if proven, no partition under the
    bound has a smaller V; None: the best one's.
    """

    best: Partition | None
    proven: bool
    widest: int
    work: int
    least_seconds: float | None = None


def compile_seconds() -> float:
    """Processor seconds that compiling the solver will take, about; 0 if it is in memory or on
    disk.
    """
    return 0.0 if is_compiled(_programme) else _COMPILE_SECONDS


def solve(
    problem: Arrays | StageOptions,
    stages: int,
    bound_seconds: float = np.inf,
    *,
    most_tails: Sequence[int] = MOST_TAILS,
    most_work: int = MOST_WORK,
    deadline: Deadline | None = None,
) -> Solved:
    """The best partition in `stages` stages whose V is at most the bound, by a hair more.

    If `proven` and without a best one, none is under the bound. A state may keep so many tails; the
    next number is tried when one does not do. No more work is done than there is time for until the
    deadline.
    """
    options = replicated_options(problem) if isinstance(problem, Arrays) else problem
    found = Solved(None, proven=True, widest=0, work=0)
    if not 1 <= stages <= min(options.n_points, options.n_units):
        return found
    if not divisible_by(options.units, options.n_units, stages)[stages, options.n_units]:
        return found
    for most in most_tails:
        if deadline is not None:
            most_work = round(min(most_work, deadline.seconds_left * WORK_PER_SECOND))
        cuts, parts, kinds, overflowed, widest, work = _programme(
            options, stages, bound_seconds * (1 + _ROUNDING), most, most_work
        )
        best = None
        if len(cuts):
            seconds = float(priced_stages(options, cuts, parts, kinds)[1])
            is_plain = isinstance(problem, Arrays)
            best = Partition(cuts, parts, seconds, () if is_plain else tuple(kinds.tolist()))
        found = Solved(best, not overflowed, int(widest), int(work))
        if not overflowed or work > most_work:
            break
    return found


@inner_making_arrays
def least_sums(arrays: Arrays) -> tuple[Array, Array, Array, Array]:
    """(fs, bs) [U + 1, n + 1] by the most replicas, and (wf, wb) [n + 1]."""
    units = len(arrays.usable) - 1
    # Every size is a kind; one that is not usable is never reached.
    sizes = np.arange(units + 1)
    for size in range(units + 1):
        if not arrays.usable[size]:
            sizes[size] = 0
    return _sums(sizes, arrays.forward, arrays.backward, units)


@inner_making_arrays
def _sums(
    sizes: Array, forward: Array, backward: Array, units: int
) -> tuple[Array, Array, Array, Array]:
    """`least_sums` of kinds that have `sizes` units [K], 0 for none; `forward` and `backward` [K, n
    + 1].

    Kinds are not sorted by their units first: a sort takes numba a second to compile.
    """
    n = forward.shape[1] - 1
    fs, bs = np.zeros((units + 1, n + 1)), np.zeros((units + 1, n + 1))
    wf, wb = np.zeros(n + 1), np.zeros(n + 1)
    for t in range(n):
        work_f = work_b = np.inf
        least_f, least_b = np.full(units + 1, np.inf), np.full(units + 1, np.inf)
        for kind in range(len(sizes)):
            r = sizes[kind]
            if r > 0:
                of_f = forward[kind, t + 1] - forward[kind, t]
                of_b = backward[kind, t + 1] - backward[kind, t]
                least_f[r], least_b[r] = min(least_f[r], of_f), min(least_b[r], of_b)
                work_f, work_b = min(work_f, r * of_f), min(work_b, r * of_b)
        for r in range(1, units + 1):
            least_f[r] = min(least_f[r], least_f[r - 1])
            least_b[r] = min(least_b[r], least_b[r - 1])
            fs[r, t + 1], bs[r, t + 1] = fs[r, t] + least_f[r], bs[r, t] + least_b[r]
        wf[t + 1], wb[t + 1] = wf[t] + work_f, wb[t] + work_b
    return fs, bs, wf, wb


@inner
def least_seconds(
    u: float,
    v: float,
    p: float,
    q: float,
    fs: float,
    bs: float,
    wf: float,
    wb: float,
    m: int,
    order: PassOrder,
) -> float:
    """The least L of a tail with any head; wf and wb are over the head's units already."""
    if order.alternates:
        return max(v + fs, p + fs + bs, m * (wf + wb))
    return max(v + fs, u + fs + bs + (m - 1) * max(q, wb)) + (m - 1) * max(p, wf)


@compiled
def _programme(
    options: StageOptions, stages: int, bound: float, most: int, most_work: int
) -> tuple[Array, Array, Array, bool, int, int]:
    """(cuts, parts, kinds, whether a state overflowed, its most tails, work); no cuts if nothing is
    found.
    """
    n, units = len(options.may_cut) - 1, len(options.latency_seconds) - 1
    fs, bs, wf, wb = _sums(options.units, options.forward, options.backward, units)
    first = np.zeros((stages + 1, n + 1, units + 1), np.int64)
    count = np.zeros((stages + 1, n + 1, units + 1), np.int32)
    row = 4 + stages
    pool, links = np.empty((4096, row)), np.empty((4096, 4), np.int32)
    for column in range(row):
        pool[0, column] = 0.0
    links[0, 0] = links[0, 1] = links[0, 2] = links[0, 3] = -1
    count[0, n, units] = 1
    used, widest, work, overflowed = 1, 0, 0, False
    tails, joins, new = np.empty((most, row)), np.empty((most, 4), np.int32), np.empty((1, row))
    for k in range(1, stages + 1):
        rem = stages - k
        for i in range(rem, n - k + 1) if rem else range(1):
            if not options.may_cut[i]:
                continue
            for d in range(rem, units - k + 1) if rem else range(1):
                if not options.may_part[d]:
                    continue
                if work > most_work:
                    overflowed = True
                    continue
                found, bound, more, over = _tails(
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
                widest = max(widest, found)
                pool, links = grown(pool, links, used + found)
                copy_rows(pool, used, tails, found)
                copy_rows(links, used, joins, found)
                first[k, i, d], count[k, i, d] = used, found
                used += found
    best, least = -1, np.inf
    for z in range(first[stages, 0, 0], first[stages, 0, 0] + count[stages, 0, 0]):
        seconds = finished(pool[z, 1], pool[z, 2], options.microbatches, options.order)
        if seconds < least:
            best, least = z, seconds
    size = 0 if best < 0 else stages + 1
    cuts, parts = np.zeros(size, np.int64), np.zeros(size, np.int64)
    kinds = np.zeros(max(size - 1, 0), np.int64)
    for s in range(1, size):
        kinds[s - 1] = links[best, 1]
        cuts[s], parts[s] = links[best, 0], parts[s - 1] + options.units[kinds[s - 1]]
        best = links[best, 2]
    return cuts, parts, kinds, overflowed, widest, work


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
    width = 3 + k if order.alternates else 4
    h_f = h_b = h_wf = h_wb = 0.0
    if rem:
        h_f, h_b = fs[d - rem + 1, i], bs[d - rem + 1, i]
        h_wf, h_wb = wf[i] / d, wb[i] / d
    found, work, overflowed = 0, 0, False
    for kind in range(len(options.units)):
        e, face = d + options.units[kind], options.interface[kind]
        fits = e <= units - k + 1 if k > 1 else e == units
        if not fits or not may_lie(options, kind, d):
            continue
        for j in range(i + 1, n - k + 2) if k > 1 else range(n, n + 1):
            f = options.forward[kind, j] - options.forward[kind, i]
            b = options.backward[kind, j] - options.backward[kind, i]
            needed = device_bytes(options, kind, i, j, flight)
            # More points take longer, and more memory.
            if m * (f + b) + h_f + h_b > bound or needed > options.memory_limit_bytes:
                break
            size = count[k - 1, j, e]
            if size == 0:
                continue
            reduce = reduce_seconds(options, kind, i, j, d)
            for z in range(first[k - 1, j, e], first[k - 1, j, e] + size):
                if work > most_work:
                    return found, bound, work, True
                work += 1
                x = transfer_seconds(options, kind, links[z, 1], j, e) if k > 1 else 0.0
                joined(pool, z, new[0], f, b, x, reduce, m, k, order)
                u, v, p, q = new[0, 0], new[0, 1], new[0, 2], new[0, 3]
                if rem:
                    least = least_seconds(u, v, p, q, h_f, h_b, h_wf, h_wb, m, order)
                else:
                    least = finished(v, p, m, order)
                if least > bound:
                    continue
                work += found
                left = 0 if rem == 0 else kept(tails, joins, found, new, face, width)
                if left < 0:
                    continue
                if left >= len(tails):
                    overflowed, found = True, left
                    continue
                copy_row(tails, left, new, 0)
                joins[left, 0], joins[left, 1], joins[left, 2], joins[left, 3] = j, kind, z, face
                found = left + 1
                if rem == 0:
                    bound = least
    return found, bound, work, overflowed
