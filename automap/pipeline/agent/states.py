"""A state: the last k stages are decided; and what each way to decide the one before them would
mean.

    tail        row of `automap.pipeline.value.prepend_stage` of the decided stages, which begin at
                point j and unit e
    action      (i, d): the stage before has points [i, j) and units [d, e)
    h           stages before it, h = S - k - 1, of which only (i, d) is known then

    least[i, d] no division of the head makes a shorter step                  -> in: `_least_step`
                as the exact solver's bound, with the slowest stage by
                `automap.pipeline.agent.heads`, and the cheapest transfer at (i, d) on every path
    made[i, d]  the step that the good division of the head makes: it fits, so the best one takes
                no more                                                        -> in: `_made_step`

The last action, h = 1, leaves one stage before it: both are the step itself then. The last two can
be searched, in the order of `least`, as far as that is below the best step, at first the best
`made`                                                                          -> in: `last_two`

The paper's agent cuts from the first stage on, and divides points and devices in one space of
actions (sections 3.4 and 4.5.2). From the last stage on a state is one row of numbers whatever is
before it, since V is found from the last stage to the first.
"""

from dataclasses import dataclass

import numpy as np

from automap.numba_jit import Array, compiled, inner
from automap.pipeline.agent.heads import Heads
from automap.pipeline.arrays import Arrays
from automap.pipeline.value import prepend_stage, stage_bytes, tail_seconds


@dataclass(frozen=True)
class State:
    """`cuts` and `device_cuts`: the decided boundaries, first to last, the last ones n and U."""

    tail: np.ndarray
    cuts: tuple[int, ...]
    device_cuts: tuple[int, ...]

    @property
    def decided(self) -> int:
        """k."""
        return len(self.cuts) - 1

    @property
    def following(self) -> int:
        """The unit at which the first decided stage ends; U if none is decided."""
        return self.device_cuts[min(1, self.decided)]


def first_state(arrays: Arrays, stages: int) -> State:
    """Nothing decided."""
    # U, V, P, Q and the rounds W_1 .. W_S of no stages.
    return State(np.zeros(stages + 4), (arrays.n_points,), (arrays.n_units,))


def next_state(arrays: Arrays, state: State, point: int, unit: int) -> State:
    """The state after an action."""
    tail = _tail_with_stage(
        arrays,
        state.tail,
        point,
        state.cuts[0],
        unit,
        state.device_cuts[0],
        state.following,
        state.decided + 1,
    )
    return State(tail, (point, *state.cuts), (unit, *state.device_cuts))


def actions(arrays: Arrays, heads: Heads, state: State) -> tuple[np.ndarray, np.ndarray]:
    """(least, made) seconds of every action, [n + 1, U + 1] each; inf where it is not allowed."""
    return _actions(
        arrays,
        heads,
        state.tail,
        state.cuts[0],
        state.device_cuts[0],
        state.following,
        state.decided,
    )


def completed(heads: Heads, state: State, point: int, unit: int) -> tuple[np.ndarray, np.ndarray]:
    """(cuts, parts) int64 [S + 1] of the state with an action and the good division before it,
    whose step is `made`.
    """
    cuts, device_cuts = [point, *state.cuts], [unit, *state.device_cuts]
    for h in range(heads.stages - state.decided - 1, 0, -1):
        point, unit = int(heads.points[h, point, unit]), int(heads.units[h, point, unit])
        cuts.insert(0, point)
        device_cuts.insert(0, unit)
    return np.array(cuts, np.int64), np.array(device_cuts, np.int64)


def last_two(
    arrays: Arrays, heads: Heads, state: State, bound_seconds: float
) -> tuple[float, int, int]:
    """(step, i, d) of the best first of the last two actions; inf if none makes a step below the
    bound.
    """
    return _last_two(
        arrays,
        heads,
        state.tail,
        state.cuts[0],
        state.device_cuts[0],
        state.following,
        state.decided,
        bound_seconds,
    )


@inner
def link_seconds(arrays: Arrays, d: int, e: int, f: int, j: int) -> float:
    """X between stages [d, e) and [e, f), cut at point j; 0 after the last."""
    if f <= e:
        return 0.0
    per_byte = arrays.transfer_seconds_per_byte[d, e, f]
    return arrays.latency_seconds[e] + per_byte * arrays.cut_bytes[j]


@inner
def join(
    arrays: Arrays, pool: Array, z: int, new: Array, i: int, j: int, d: int, e: int, f: int, k: int
) -> None:
    """`prepend_stage` of stage [i, j) on [d, e) before a tail of k - 1 stages whose first ends at
    unit f.
    """
    prepend_stage(
        pool,
        z,
        new,
        arrays.forward[e - d, j] - arrays.forward[e - d, i],
        arrays.backward[e - d, j] - arrays.backward[e - d, i],
        0.0,
        link_seconds(arrays, d, e, f, j),
        arrays.reduce_seconds_per_byte[d, e] * arrays.gradient_bytes[i, j],
        arrays.microbatches,
        k,
        0,
        arrays.order,
    )


@compiled
def _tail_with_stage(
    arrays: Arrays, tail: Array, i: int, j: int, d: int, e: int, f: int, k: int
) -> Array:
    new = np.zeros_like(tail)
    join(arrays, tail.reshape(1, -1), 0, new, i, j, d, e, f, k)
    return new


@inner
def _least_step(arrays: Arrays, heads: Heads, tail: Array, h: int, i: int, d: int, e: int) -> float:
    """`least` of one action: `automap.pipeline.solvers.bounds.least_seconds` with more known."""
    m = arrays.microbatches
    u, v, p, q = tail[0], tail[1], tail[2], tail[3]
    # d units in h stages: none has more than d - h + 1.
    fs, bs = heads.fs[d - h + 1, i], heads.bs[d - h + 1, i]
    slow_f, slow_b = heads.slowest_f[h, i, d], heads.slowest_b[h, i, d]
    x = arrays.latency_seconds[d] + heads.cheapest[d, e] * arrays.cut_bytes[i]
    if arrays.order.alternates:
        return max(v + x + fs, p + 2.0 * x + fs + bs, m * (slow_f + slow_b))
    ends = max(v + x + fs, u + 2.0 * x + fs + bs + (m - 1) * max(q, x, slow_b))
    return ends + (m - 1) * max(p, x, slow_f)


@inner
def _made_step(
    arrays: Arrays, heads: Heads, pool: Array, h: int, i: int, d: int, e: int, k: int
) -> float:
    """`made` of one action; `pool` [2, S + 4] has the tail of k stages in row 0."""
    # Rows 0 and 1 take turns: a stage is put before one of them and written to the other.
    now, j, f, end = 0, i, e, d
    for left in range(h, 0, -1):
        point, unit = heads.points[left, j, end], heads.units[left, j, end]
        join(arrays, pool, now, pool[1 - now], point, j, unit, end, f, k + h - left + 1)
        now, j, f, end = 1 - now, point, end, unit
    return tail_seconds(pool[now, 1], pool[now, 2], arrays.microbatches, arrays.order)


@compiled
def _actions(
    arrays: Arrays, heads: Heads, tail: Array, j: int, e: int, f: int, k: int
) -> tuple[Array, Array]:
    n, units = len(arrays.cut_bytes) - 1, len(arrays.latency_seconds) - 1
    least = np.full((n + 1, units + 1), np.inf)
    made = np.full((n + 1, units + 1), np.inf)
    pool = np.zeros((2, len(tail)))
    old = tail.reshape(1, -1)
    h = heads.stages - k - 1
    for d in range(h, e):
        r = e - d
        if not (arrays.usable[r] and arrays.may_cut_devices[d]):
            continue
        for i in range(h, j):
            if not (arrays.may_cut[i] and heads.points[h, i, d] >= 0):
                continue
            needed = stage_bytes(arrays, i, j, r, k + 1, 0)
            if needed > arrays.memory_limit_bytes:
                continue
            join(arrays, old, 0, pool[0], i, j, d, e, f, k + 1)
            # Row 0 is written anew for each action, and `_made_step` builds on it.
            least[i, d] = _least_step(arrays, heads, pool[0], h, i, d, e)
            made[i, d] = _made_step(arrays, heads, pool, h, i, d, e, k + 1)
            if h == 1:
                least[i, d] = made[i, d]
    return least, made


@compiled
def _last_two(
    arrays: Arrays, heads: Heads, tail: Array, j: int, e: int, f: int, k: int, bound: float
) -> tuple[float, int, int]:
    least, made = _actions(arrays, heads, tail, j, e, f, k)
    units = least.shape[1]
    seconds = least.ravel()
    below = np.flatnonzero(seconds < bound)
    order = below[np.argsort(seconds[below])]
    best, best_i, best_d = bound, -1, -1
    # A partition that is known already lowers the bound before anything is searched.
    known = made.argmin()
    if made.ravel()[known] < best:
        best, best_i, best_d = made.ravel()[known], known // units, known % units
    pool = np.zeros((3, len(tail)))
    old = tail.reshape(1, -1)
    for place in order:
        # All later ones have a larger bound.
        if seconds[place] >= best:
            break
        i, d = place // units, place % units
        join(arrays, old, 0, pool[0], i, j, d, e, f, k + 1)
        step = _last_one(arrays, heads, pool, i, d, e, k + 1, best)
        if step < best:
            best, best_i, best_d = step, i, d
    return (best, best_i, best_d) if best_i >= 0 else (np.inf, -1, -1)


@inner
def _last_one(
    arrays: Arrays, heads: Heads, pool: Array, j: int, e: int, f: int, k: int, bound: float
) -> float:
    """The best step of the tail in pool[0], of k stages, with two before it; `bound` if none is
    below it.
    """
    m = arrays.microbatches
    best = bound
    for d in range(1, e):
        r = e - d
        if not (arrays.usable[r] and arrays.usable[d] and arrays.may_cut_devices[d]):
            continue
        x = link_seconds(arrays, d, e, f, j)
        for i in range(j - 1, 0, -1):
            stage = arrays.forward[r, j] - arrays.forward[r, i]
            stage += arrays.backward[r, j] - arrays.backward[r, i]
            # With fewer points before it this stage is only slower.
            if m * stage >= best:
                break
            first = arrays.forward[d, i] + arrays.backward[d, i]
            if m * first >= best or not (arrays.may_cut[i] and heads.points[1, i, d] >= 0):
                continue
            needed = stage_bytes(arrays, i, j, r, k + 1, 0)
            if needed > arrays.memory_limit_bytes:
                continue
            # As `join`, but the transfer is the same for all i.
            prepend_stage(
                pool,
                0,
                pool[1],
                arrays.forward[r, j] - arrays.forward[r, i],
                arrays.backward[r, j] - arrays.backward[r, i],
                0.0,
                x,
                arrays.reduce_seconds_per_byte[d, e] * arrays.gradient_bytes[i, j],
                m,
                k + 1,
                0,
                arrays.order,
            )
            join(arrays, pool, 1, pool[2], 0, i, 0, d, e, k + 2)
            best = min(best, tail_seconds(pool[2, 1], pool[2, 2], m, arrays.order))
    return best
