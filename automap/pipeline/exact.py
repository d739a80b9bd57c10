"""The optimum of V for S stages, by a dynamic programme over tails.

A state (k, i, d) is a tail of k stages that has points i .. n and units d .. U. L is not a sum over stages, so a
state keeps the Pareto set of its tails (for 1F1B with their rounds W), all of which `joined` is monotone in. Where a transfer
depends on the units of both its stages, tails are compared only if their first stages end at the same unit e.
A tail is dropped if no head of S - k stages can bring it under the upper bound:           -> in: `least_seconds`

    fs, bs   sum over points before i of the least forward, backward seconds on any usable r <= d - (S - k) + 1
    wf, wb   the same of r times the seconds on r: work that d units share, so some stage takes at least wf / d
    GPipe    L >= max(V + fs, U + fs + bs + (M - 1) max(Q, wb / d)) + (M - 1) max(P, wf / d)
    1F1B     L >= max(V + fs, P + fs + bs, M (wf + wb) / d)

Tails of all states lie in one growing pool; each knows the tail that it was joined to.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from automap.pipeline.arrays import Arrays, divisible
from automap.pipeline.tails import copy_row, grown, kept
from automap.pipeline.value import finished, joined, stage_bytes, value
from automap.simulate.arrays import Array
from automap.simulate.jit import compiled, inner, inner_making_arrays


MOST_TAILS: Final = (1024, 16384)
"""Tails that a state may keep; the second is tried when the first does not do."""
MOST_WORK: Final = 1_000_000_000
"""Transitions and comparisons of tails after which a run gives up its proof: some seconds."""
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Partition:
    """Stages: `cuts` and `parts` int64 [S + 1] as in `automap.pipeline.value`, and V in seconds."""

    cuts: np.ndarray
    parts: np.ndarray
    seconds: float

    @property
    def stages(self) -> int:
        """S."""
        return len(self.cuts) - 1


@dataclass(frozen=True, slots=True)
class Solved:
    """What a run found: None if nothing is under the bound. `proven`: no state had more tails than it may keep, and
    the run came to its end. `least_seconds`: if proven, no partition under the bound has a smaller V; None: the best one's.
    `interrupted`: Ctrl-C ended it, with what it had. `searched_seconds`: of the budget, if it is one that takes long."""

    best: Partition | None
    proven: bool
    widest: int
    work: int
    least_seconds: float | None = None
    interrupted: bool = False
    searched_seconds: float = 0.0


def solve(
    arrays: Arrays, stages: int, bound_seconds: float = np.inf, most_work: int | None = None
) -> Solved:
    """The best partition in `stages` stages whose V is at most the bound, by a hair more.

    If `proven` and without a best one, none is under the bound.
    """
    most_work = MOST_WORK if most_work is None else most_work
    found = Solved(None, proven=True, widest=0, work=0)
    if not 1 <= stages <= min(arrays.n_points, arrays.n_units):
        return found
    if not divisible(arrays, stages)[stages, arrays.n_units]:
        return found
    for most in MOST_TAILS:
        cuts, parts, overflowed, widest, work = _programme(
            arrays, stages, bound_seconds * (1 + _ROUNDING), most, most_work
        )
        best = None
        if len(cuts):
            best = Partition(cuts, parts, float(value(arrays, cuts, parts)))
        found = Solved(best, not overflowed, int(widest), int(work))
        if not overflowed or work > most_work:
            break
    return found


@inner_making_arrays
def least_sums(arrays: Arrays) -> tuple[Array, Array, Array, Array]:
    """(fs, bs) [U + 1, n + 1] by the most replicas, and (wf, wb) [n + 1]."""
    units, n = arrays.forward.shape[0] - 1, arrays.forward.shape[1] - 1
    fs, bs = np.zeros((units + 1, n + 1)), np.zeros((units + 1, n + 1))
    wf, wb = np.zeros(n + 1), np.zeros(n + 1)
    for t in range(n):
        f = b = work_f = work_b = np.inf
        for r in range(1, units + 1):
            if arrays.usable[r]:
                of_f = arrays.forward[r, t + 1] - arrays.forward[r, t]
                of_b = arrays.backward[r, t + 1] - arrays.backward[r, t]
                f, b = min(f, of_f), min(b, of_b)
                work_f, work_b = min(work_f, r * of_f), min(work_b, r * of_b)
            fs[r, t + 1], bs[r, t + 1] = fs[r, t] + f, bs[r, t] + b
        wf[t + 1], wb[t + 1] = wf[t] + work_f, wb[t] + work_b
    return fs, bs, wf, wb


@inner
def least_seconds(
    u: float, v: float, p: float, q: float, fs: float, bs: float, wf: float, wb: float, m: int,
    schedule: int,
) -> float:  # fmt: skip
    """The least L of a tail with any head; wf and wb are over the head's units already."""
    if schedule == 0:
        return max(v + fs, u + fs + bs + (m - 1) * max(q, wb)) + (m - 1) * max(p, wf)
    return max(v + fs, p + fs + bs, m * (wf + wb))


@compiled
def _programme(
    arrays: Arrays, stages: int, bound: float, most: int, most_work: int
) -> tuple[Array, Array, bool, int, int]:
    """(cuts, parts, whether a state overflowed, its most tails, work); no cuts if nothing is found."""
    n, units = len(arrays.cut_bytes) - 1, len(arrays.latency_seconds) - 1
    fs, bs, wf, wb = least_sums(arrays)
    first = np.zeros((stages + 1, n + 1, units + 1), np.int64)
    count = np.zeros((stages + 1, n + 1, units + 1), np.int32)
    row = 4 + stages
    pool, links = np.empty((4096, row)), np.empty((4096, 3), np.int32)
    pool[0, :] = 0.0
    links[0, :] = -1
    count[0, n, units] = 1
    used, widest, work, overflowed = 1, 0, 0, False
    tails, joins, new = np.empty((most, row)), np.empty((most, 3), np.int32), np.empty((1, row))
    for k in range(1, stages + 1):
        rem = stages - k
        for i in range(rem, n - k + 1) if rem else range(1):
            if not arrays.may_cut[i]:
                continue
            for d in range(rem, units - k + 1) if rem else range(1):
                if not arrays.may_part[d]:
                    continue
                if work > most_work:
                    overflowed = True
                    continue
                found, bound, more, over = _tails(
                    arrays, first, count, pool, links, tails, joins, new, fs, bs, wf, wb, k, rem, i,
                    d, bound,
                )  # fmt: skip
                work += more
                overflowed |= over
                widest = max(widest, found)
                pool, links = grown(pool, links, used + found)
                pool[used : used + found] = tails[:found]
                links[used : used + found] = joins[:found]
                first[k, i, d], count[k, i, d] = used, found
                used += found
    best, least = -1, np.inf
    for z in range(first[stages, 0, 0], first[stages, 0, 0] + count[stages, 0, 0]):
        seconds = finished(pool[z, 1], pool[z, 2], arrays.microbatches, arrays.schedule)
        if seconds < least:
            best, least = z, seconds
    size = 0 if best < 0 else stages + 1
    cuts, parts = np.zeros(size, np.int64), np.zeros(size, np.int64)
    for s in range(1, size):
        cuts[s], parts[s] = links[best, 0], links[best, 1]
        best = links[best, 2]
    return cuts, parts, overflowed, widest, work


@inner
def _tails(
    arrays: Arrays, first: Array, count: Array, pool: Array, links: Array, tails: Array, joins: Array,
    new: Array, fs: Array, bs: Array, wf: Array, wb: Array, k: int, rem: int, i: int, d: int, bound: float,
) -> tuple[int, float, int, bool]:  # fmt: skip
    """Fill `tails` with the Pareto set of state (k, i, d); (how many, the bound, work, overflowed)."""
    n, units, m = len(arrays.cut_bytes) - 1, len(arrays.latency_seconds) - 1, arrays.microbatches
    schedule, differ = arrays.schedule, arrays.transfers_differ
    width = 4 if schedule == 0 else 3 + k
    h_f = h_b = h_wf = h_wb = 0.0
    if rem:
        h_f, h_b = fs[d - rem + 1, i], bs[d - rem + 1, i]
        h_wf, h_wb = wf[i] / d, wb[i] / d
    found, work, overflowed = 0, 0, False
    for e in range(d + 1, units - k + 2) if k > 1 else range(units, units + 1):
        r = e - d
        if not arrays.usable[r]:
            continue
        for j in range(i + 1, n - k + 2) if k > 1 else range(n, n + 1):
            f = arrays.forward[r, j] - arrays.forward[r, i]
            b = arrays.backward[r, j] - arrays.backward[r, i]
            needed = stage_bytes(
                arrays.state_bytes[i, j], arrays.kept_bytes[i, j], arrays.working_bytes[i, j],
                arrays.cut_bytes[i], r * arrays.unit_devices, m, k, schedule,
            )  # fmt: skip
            # More points take longer, and more memory.
            if m * (f + b) + h_f + h_b > bound or needed > arrays.memory_limit_bytes:
                break
            size = count[k - 1, j, e]
            if size == 0:
                continue
            reduce = arrays.reduce_seconds_per_byte[d, e] * arrays.gradient_bytes[i, j]
            for z in range(first[k - 1, j, e], first[k - 1, j, e] + size):
                work += 1
                x = 0.0
                if k > 1:
                    per_byte = arrays.transfer_seconds_per_byte[d, e, links[z, 1]]
                    x = arrays.latency_seconds[e] + per_byte * arrays.cut_bytes[j]
                joined(pool, z, new[0], f, b, x, reduce, m, k, schedule)
                u, v, p, q = new[0, 0], new[0, 1], new[0, 2], new[0, 3]
                if rem:
                    least = least_seconds(u, v, p, q, h_f, h_b, h_wf, h_wb, m, schedule)
                else:
                    least = finished(v, p, m, schedule)
                if least > bound:
                    continue
                work += found
                left = 0 if rem == 0 else kept(tails, joins, found, new, e, width, differ)
                if left < 0:
                    continue
                if left >= len(tails):
                    overflowed, found = True, left
                    continue
                copy_row(tails, left, new, 0)
                joins[left, 0], joins[left, 1], joins[left, 2] = j, e, z
                found = left + 1
                if rem == 0:
                    bound = least
    return found, bound, work, overflowed
