"""What is known of heads before any of it is decided: the first i points on the first d units in h
stages. Bounds on their slowest stage, and a good division of each.

The tables are made once for a problem. In the number of points and units they take about
O(S n U^2); T, F, B, X, R, K, M and S are those of `automap.pipeline.value`.

    slowest_f, slowest_b [h, i, d]  no division that fits the memory has a slowest stage that takes
                      less, forwards and backwards                            -> in: `_slowest`
                      = min over (i', d') of
                          max(slowest[h - 1, i', d'], seconds of [i', i) on d - d')
    points, units [h, i, d]  the good division: where the last of the h stages begins; the stages
                      before it are those of the head that ends there. -1 where, and only where, no
                      division fits the memory and is allowed             -> in: `divide_heads`
    cheapest[d, e]    the least seconds per byte that any stage before [d, e) sends to it at
    fs, bs            as in `automap.pipeline.solvers.bounds`
    line              seconds of the points before each, on the fewest replicas of any stage

The good division has the least score, stage by stage from the first on. Of stages s = 0 .. h - 1
it is known that                                                              -> in: `_extend`

    A = sum T + 2 sum X    C = sum B + X
    E = max over s of R_s - (C before s): how much of a stage's reduction nothing hides
    all forward first   G = max F, X,  H = max B, X
    alternating         G = max over s of (A before s) + M T_s
                        H = max over s of (M - 1) X, (M - 1) F + (M - K) B, (M - K) F + (M - 1) B

and the score is, with goal_f and goal_b below which the slowest stage of the tail cannot be, and
the cheapest transfer to the tail,                                              -> in: `_score`

    all forward first   A + (M - 1) (max(goal_f, G) + max(goal_b, H)) + max(0, E)
    alternating         max(A + M goal, G, A + (S - h) goal + H) + max(0, E)
                        where goal = goal_f + goal_b

A head keeps one division, so one that is better for some tail may be lost.
"""

from typing import Final, NamedTuple

import numpy as np

from automap.numba_jit import Array, compiled, inner, inner_making_arrays
from automap.pipeline.arrays import Arrays
from automap.pipeline.schedules import PassOrder
from automap.pipeline.solvers.bounds import least_sums
from automap.pipeline.value import most_in_flight, stage_bytes


# Not all places are tried for the beginning of a head's last stage, or the tables would take ten
# times as long: these say which are                                   -> in: `_try_last_stage`
NEAR: Final = 2
"""Points that are tried each way from where the slowest of both sides cross."""
BLOCK: Final = 4
"""After those one point in so many is tried: the one at which the smallest cut is."""
SLACK: Final = 1.1
"""Where all near ones score more than this times the best, the search does not go further out."""
WORTH: Final = 3.0
"""Heads whose slowest stage is more than this times the bound only get any division at all."""


class Heads(NamedTuple):
    """The tables of the module's first lines, for S stages: indices h from 0 to S - 1."""

    stages: int
    fewest: int
    points: Array
    units: Array
    slowest_f: Array
    slowest_b: Array
    cheapest: Array
    fs: Array
    bs: Array
    line: Array


@compiled
def head_tables(arrays: Arrays, stages: int) -> Heads:
    """The tables of a problem."""
    # Row S is a head that is the whole pipeline: it bounds the slowest stage of every pipeline.
    n, units = len(arrays.cut_bytes) - 1, len(arrays.latency_seconds) - 1
    slowest_f = np.full((stages + 1, n + 1, units + 1), np.inf)
    slowest_b = np.full((stages + 1, n + 1, units + 1), np.inf)
    slowest_f[0, 0, 0] = slowest_b[0, 0, 0] = 0.0
    most = np.zeros((stages + 1, n + 1, units + 1), np.int32)
    least = np.empty((units + 1, n + 1), np.int32)
    for h in range(1, stages + 1):
        _most_points(arrays, stages - h + 1, most[h])
        _least_points(most[h], least)
        _slowest(arrays.forward, arrays, least, slowest_f, h)
        _slowest(arrays.backward, arrays, least, slowest_b, h)
    # A transfer depends on three unit boundaries, of which a head knows two: the least over the
    # third keeps everything that is made of it a lower bound.
    cheapest = np.full((units + 1, units + 1), np.inf)
    leaving = np.full((units + 1, units + 1), np.inf)
    for e in range(1, units):
        for f in range(e + 1, units + 1):
            if not arrays.usable[f - e]:
                continue
            for d in range(e):
                if arrays.usable[e - d]:
                    per_byte = arrays.transfer_seconds_per_byte[d, e, f]
                    cheapest[e, f] = min(cheapest[e, f], per_byte)
                    leaving[d, e] = min(leaving[d, e], per_byte)
    fs, bs, wf, wb = least_sums(arrays)
    bounds = Bounds(
        stages,
        most,
        arrays.forward + arrays.backward,
        slowest_f + slowest_b,
        fs + bs,
        slowest_f[stages, n, units],
        slowest_b[stages, n, units],
        wf,
        wb,
        leaving,
    )
    points, begins = divide_heads(arrays, bounds)
    fewest = 1
    while not arrays.usable[fewest]:
        fewest += 1
    line = arrays.forward[fewest] + arrays.backward[fewest]
    return Heads(stages, fewest, points, begins, slowest_f, slowest_b, cheapest, fs, bs, line)


@inner
def _most_points(arrays: Arrays, k: int, most: Array) -> None:
    """most[i, r]: the last point that a stage from i on r replicas, with k - 1 stages after it, has
    memory for.
    """
    n, units = len(arrays.cut_bytes) - 1, len(arrays.latency_seconds) - 1
    if arrays.memory_limit_bytes == np.inf:
        most[:] = n
        return
    # Memory grows with the points of a stage, so the last one that fits is found by bisection.
    for i in range(n):
        for r in range(1, units + 1):
            low, high = i, n
            while low < high:
                j = (low + high + 1) // 2
                needed = stage_bytes(arrays, i, j, r, k, 0)
                if needed <= arrays.memory_limit_bytes:
                    low = j
                else:
                    high = j - 1
            most[i, r] = low


@inner
def _least_points(most: Array, least: Array) -> None:
    """least[r, j]: before it, no stage on r replicas that ends at j or later may begin; j if none
    may at all.
    """
    n = len(most) - 1
    for r in range(1, len(least)):
        # What may begin at i ends later the larger i is, so i only moves on: O(n) for each r.
        i = 0
        for j in range(n + 1):
            while i < j and most[i, r] < j:
                i += 1
            least[r, j] = i


@inner
def _slowest(line: Array, arrays: Arrays, least: Array, slowest: Array, h: int) -> None:
    n, units = len(arrays.cut_bytes) - 1, len(arrays.latency_seconds) - 1
    for d in range(h - 1, units):
        if not arrays.may_cut_devices[d] or (h == 1 and d > 0):
            continue
        for e in range(d + 1, units + 1):
            r = e - d
            if not arrays.usable[r]:
                continue
            # The head's slowest stage rises with i and the last stage's seconds fall: the least
            # maximum is where they cross, which moves on with j. For the first to rise everywhere,
            # stages may be empty here, which can only make the bound smaller.
            i = 0
            for j in range(n + 1):
                i = max(i, least[r, j])
                while h > 1 and i < j and line[r, j] - line[r, i] > slowest[h - 1, i, d]:
                    i += 1
                crossing = max(slowest[h - 1, i, d], line[r, j] - line[r, i])
                if i > least[r, j]:
                    before = max(slowest[h - 1, i - 1, d], line[r, j] - line[r, i - 1])
                    crossing = min(crossing, before)
                slowest[h, j, e] = min(slowest[h, j, e], crossing)


class Bounds(NamedTuple):
    """What is known before: S; `most` [S + 1, n + 1, U + 1], the last point that a stage of h has
    memory for.

    `line` [U + 1, n + 1] seconds of the points before, on so many replicas; `slow` [S + 1, n + 1, U
    + 1] that some stage of a head takes; `sums` [U + 1, n + 1] of all its stages on so many
    replicas; `forward`, `backward` that some stage of the pipeline takes; `wf`, `wb` [n + 1] as in
    `automap.pipeline.solvers.bounds`; `leaving` [U + 1, U + 1] seconds per byte of the cheapest
    transfer from a stage.
    """

    stages: int
    most: Array
    line: Array
    slow: Array
    sums: Array
    forward: float
    backward: float
    wf: Array
    wb: Array
    leaving: Array


class _Tables(NamedTuple):
    """`points`, `units` as in the first lines; of the last two h the best score [2, n + 1, U + 1]
    and its (A, C, E, G, H) [2, n + 1, U + 1, 5]; `new` [5] is room for one more of these.
    """

    points: Array
    units: Array
    best: Array
    known: Array
    new: Array


@inner_making_arrays
def divide_heads(arrays: Arrays, bounds: Bounds) -> tuple[Array, Array]:
    """(points, units) int32 [S, n + 1, U + 1]."""
    n, units, stages = len(arrays.cut_bytes) - 1, len(arrays.latency_seconds) - 1, bounds.stages
    # Where nothing is known to fit, A is inf.
    best, known = np.full((2, n + 1, units + 1), np.inf), np.zeros((2, n + 1, units + 1, 5))
    known[:, :, :, 0] = np.inf
    known[0, 0, 0, 0] = 0.0
    tables = _Tables(
        np.full((stages, n + 1, units + 1), -1, np.int32),
        np.full((stages, n + 1, units + 1), -1, np.int32),
        best,
        known,
        np.empty(5),
    )
    small = _small_cuts(arrays.cut_bytes)
    for h in range(1, stages):
        best[h % 2] = known[h % 2, :, :, 0] = np.inf
        for e in range(h, units):
            # The second round looks around the divisions that the first one ended with.
            for refine in range(2):
                # From an even division on: what is good early leaves less to try.
                middle = e * (h - 1) // h
                for step in range(2 * e + 1):
                    d = middle + (step // 2 if step % 2 == 0 else -(step // 2 + 1))
                    if d < h - 1 or d >= e or (h == 1 and d > 0):
                        continue
                    if arrays.usable[e - d] and arrays.may_cut_devices[d]:
                        _try_last_stage(arrays, bounds, tables, small, h, d, e, refine)
    return tables.points, tables.units


@inner_making_arrays
def _small_cuts(cut_bytes: Array) -> Array:
    """[2, n]: before and after each point, the next one whose cut is the smallest of its BLOCK
    points.
    """
    n = len(cut_bytes) - 1
    next_small = np.empty((2, n), np.int32)
    least = np.zeros(n, np.bool_)
    for begin in range(0, n, BLOCK):
        least[begin + cut_bytes[begin : min(begin + BLOCK, n)].argmin()] = True
    at = -1
    for i in range(n):
        next_small[0, i] = at
        at = i if least[i] else at
    at = n
    for i in range(n - 1, -1, -1):
        next_small[1, i] = at
        at = i if least[i] else at
    return next_small


@inner
def _try_last_stage(
    arrays: Arrays,
    bounds: Bounds,
    tables: _Tables,
    small: Array,
    h: int,
    d: int,
    e: int,
    refine: int,
) -> None:
    """Give heads of h stages on e units a last stage on units [d, e) where that scores better.

    If `refine`, only heads that have it there already, with points near those that it has.
    """
    n, r, m, now = len(arrays.cut_bytes) - 1, e - d, arrays.microbatches, h % 2
    line, left = bounds.line[r], len(arrays.latency_seconds) - 1 - e
    slow, points, best = bounds.slow[h - 1, :, d], tables.points[h, :, e], tables.best[now, :, e]
    cross = h - 1
    for j in range(h, n):
        if not arrays.may_cut[j] or (refine and tables.units[h, j, e] != d):
            continue
        # Where the slowest stage of the head before and the last stage's seconds cross.
        while h > 1 and cross + 1 < j and slow[cross] < line[j] - line[cross]:
            cross += 1
        goal_f = max(bounds.forward, (bounds.wf[n] - bounds.wf[j]) / left)
        goal_b = max(bounds.backward, (bounds.wb[n] - bounds.wb[j]) / left)
        goal = goal_f + goal_b
        # No partition with this head is near the best one: any division does, so that there is one.
        is_poor = max(bounds.slow[h, j, e], goal) > WORTH * (bounds.forward + bounds.backward)
        if is_poor and not refine and best[j] < np.inf:
            continue
        x = arrays.latency_seconds[e] + bounds.leaving[d, e] * arrays.cut_bytes[j]
        middle = points[j] if refine else cross
        for way in range(2):
            i, least = middle + way, np.inf
            near = BLOCK if refine else NEAR
            while h - 1 <= i < j:
                stage = line[j] - line[i]
                # Rises on the way outwards, so nothing after the first that is too slow is better.
                slowest = max(goal, slow[i] if way else stage)
                if (m - 1) * slowest + bounds.sums[e - h + 1, j] >= best[j]:
                    break
                least_sum = tables.known[1 - now, i, d, 0] + stage
                better = least_sum + (m - 1) * max(slowest, stage) < best[j]
                if better and arrays.may_cut[i] and j <= bounds.most[h, i, r]:
                    _extend(arrays, tables, bounds.stages, h, i, j, d, e)
                    score = _score(
                        tables.new, x, bounds.stages - h, m, goal_f, goal_b, arrays.order
                    )
                    least = min(least, score)
                    if score < best[j]:
                        best[j], points[j], tables.units[h, j, e] = score, i, d
                        for c in range(5):
                            tables.known[now, j, e, c] = tables.new[c]
                near -= 1
                # The only stage of a head begins at point 0.
                if h == 1:
                    break
                if near > 0 or best[j] == np.inf:
                    i += 2 * way - 1
                elif refine or is_poor or (slowest > goal and least > SLACK * best[j]):
                    break
                else:
                    i = small[way, i]


@inner
def _extend(
    arrays: Arrays, tables: _Tables, stages: int, h: int, i: int, j: int, d: int, e: int
) -> None:
    """`new`: (A, C, E, G, H) of the head (h - 1, i, d) with the stage [i, j) on [d, e) after it."""
    r, m = e - d, arrays.microbatches
    old, new = tables.known[(h - 1) % 2, i, d], tables.new
    f, b = (
        arrays.forward[r, j] - arrays.forward[r, i],
        arrays.backward[r, j] - arrays.backward[r, i],
    )
    x = 0.0
    if h > 1:
        per_byte = arrays.transfer_seconds_per_byte[tables.units[h - 1, i, d], d, e]
        x = arrays.latency_seconds[d] + per_byte * arrays.cut_bytes[i]
    # A and C before this stage.
    until = old[0] + 2.0 * x
    back = old[1] + x
    new[0], new[1] = until + f + b, back + b
    reduce = arrays.reduce_seconds_per_byte[d, e] * arrays.gradient_bytes[i, j]
    new[2] = max(old[2], reduce - back)
    if not arrays.order.alternates:
        new[3], new[4] = max(old[3], f, x), max(old[4], b, x)
        return
    flight = most_in_flight(arrays.order, m, stages - h + 1)
    new[3] = max(old[3], until + m * (f + b))
    around = max((m - 1) * f + (m - flight) * b, (m - flight) * f + (m - 1) * b)
    new[4] = max(old[4], (m - 1) * x, around)


@inner
def _score(
    known: Array, x: float, left: int, m: int, goal_f: float, goal_b: float, order: PassOrder
) -> float:
    """The score of the module's first lines; `left` is S - h, `x` one way to the tail."""
    goal, exposed, a = goal_f + goal_b, max(0.0, known[2]), known[0] + 2.0 * x
    if not order.alternates:
        slowest = max(goal_f, known[3], x) + max(goal_b, known[4], x)
        return a + (m - 1) * slowest + exposed
    return max(a + m * goal, known[3], a + left * goal + max(known[4], (m - 1) * x)) + exposed
