"""The actions of a state that are worth a look, as features: no unit of time, bytes or size is left
in them.

N_CANDIDATES actions: a third each by the least step, by the one made, and by both (their product);
what is named twice leaves room for more by the least.                          -> in: `_choose`

B is the least `least` of the state, M microbatches. Seconds are taken as shares of B, those of one
microbatch M times; "head's" is of its good division.
    ACTION_FEATURES of an action (i, d)                                         -> in: `_features`
    STATE_FEATURES of the state                                            -> in: `_state_features`
    baseline b = log(L0 / made), L0 the bound of the problem: log(L0 / L) is not less

The paper's state (section 4.5.2) is instead the arrays C*, A* and W* whole, coarsened to 128 points
and scaled to [0, 1], with the topology's matrix and the partition so far.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from automap.numba_jit import Array, compiled, inner
from automap.pipeline.agent.heads import Heads, head_tables
from automap.pipeline.agent.states import (
    State,
    actions,
    first_state,
    join,
    link_seconds,
)
from automap.pipeline.arrays import Arrays
from automap.pipeline.value import stage_bytes


# A state of n points and U units has up to n U actions, and the network's time grows with them.
N_CANDIDATES: Final = 192
# The order is that of the network's inputs: a change makes the shipped weights meaningless, and
# needs another `automap.pipeline.agent.network.FORMAT`.
ACTION_FEATURES: Final = (
    "least",
    "made",
    "made / least",
    "least's rank",
    "made's rank",
    "stage",
    "forward",
    "link after",
    "link before",
    "reduction",
    "memory",
    "least slowest",
    "least slowest / its work",
    "tail U",
    "tail V",
    "tail P",
    "tail Q",
    "units",
    "points",
    "work",
    "units left",
    "points left",
    "cut / mean",
    "cut / near",
    "link / slowest link",
    "head's slowest",
    "head's links",
    "head's reductions",
    "head's next stage",
    "head's next units",
)
STATE_FEATURES: Final = (
    "stages",
    "left",
    "decided",
    "microbatches",
    "microbatches / stages",
    "1f1b",
    "bound",
    "memory",
    "usable",
    "units",
    "matched",
    "made",
)
# Points each way in which a smaller cut is looked for.
_NEAR: Final = 4
_N_FEATURES: Final = len(ACTION_FEATURES)


@dataclass(frozen=True)
class Game:
    """A problem as the agent plays it; `bound_seconds` is L0, which no partition is below."""

    arrays: Arrays
    heads: Heads
    start: State
    bound_seconds: float

    @property
    def stages(self) -> int:
        """S."""
        return self.heads.stages


@dataclass(frozen=True)
class Candidates:
    """`points`, `units` int64 [A], A from 1 to N_CANDIDATES: there are no dead ends.

    `least`, `made` float64 [A] seconds, `features` float32 [A, F], `flat` float32 [D], `baseline`
    float32 [A], in the order of `least`.
    """

    points: np.ndarray
    units: np.ndarray
    least: np.ndarray
    made: np.ndarray
    features: np.ndarray
    flat: np.ndarray
    baseline: np.ndarray


def new_game(arrays: Arrays, stages: int) -> Game | None:
    """The game of a problem in at least two stages; None if no partition fits."""
    if not 2 <= stages <= min(arrays.n_points, arrays.n_units):
        return None
    heads = head_tables(arrays, stages)
    start = first_state(arrays, stages)
    # Every partition begins with one of these actions (the last stage), so their least is a bound.
    least, _ = actions(arrays, heads, start)
    bound = float(least.min())
    return Game(arrays, heads, start, bound) if np.isfinite(bound) else None


def candidates(game: Game, state: State, wanted: tuple[int, int] | None = None) -> Candidates:
    """The candidates of a state in which at least two actions are left; `wanted` (i, d) is one of
    them for certain.
    """
    least, made = actions(game.arrays, game.heads, state)
    chosen = _choose(least.ravel(), made.ravel())
    if wanted is not None:
        place = int(np.ravel_multi_index(wanted, least.shape))
        # In place of the candidate with the largest bound.
        if place not in chosen:
            chosen[-1] = place
    points, units = np.unravel_index(chosen, least.shape)
    least, made = least.ravel()[chosen], made.ravel()[chosen]
    features = _features(
        game.arrays,
        game.heads,
        state.tail,
        state.cuts[0],
        state.device_cuts[0],
        state.following,
        state.decided,
        points,
        units,
        least,
        made,
    )
    return Candidates(
        points,
        units,
        least,
        made,
        features.astype(np.float32),
        _state_features(game, state, float(least.min()), float(made.min())),
        np.log(game.bound_seconds / made).astype(np.float32),
    )


def _choose(least: np.ndarray, made: np.ndarray) -> np.ndarray:
    """Places of the candidates, by `least`."""
    allowed = np.flatnonzero(np.isfinite(least))
    by = least[allowed], made[allowed], least[allowed] * made[allowed]
    if len(allowed) > N_CANDIDATES:
        share = N_CANDIDATES // len(by)
        picked = np.zeros(len(allowed), bool)
        for key in by[1:]:
            picked[np.argpartition(key, share)[:share]] = True
        order = np.argsort(by[0], kind="stable")
        picked[order[~picked[order]][: N_CANDIDATES - int(picked.sum())]] = True
        allowed = allowed[picked]
    return allowed[np.argsort(least[allowed], kind="stable")]


def _state_features(game: Game, state: State, least: float, made: float) -> np.ndarray:
    arrays, stages, k = game.arrays, game.stages, state.decided
    limit = arrays.memory_limit_bytes
    # The divisors bring each number to the order of one; 8 stages are the most that it trained on.
    return np.array(
        [
            stages / 8,
            (stages - k - 1) / 8,
            k / 8,
            np.log2(arrays.microbatches) / 6,
            np.log2(arrays.microbatches / stages) / 4,
            float(arrays.order.alternates),
            10.0 * min(np.log(least / game.bound_seconds), 1.0),
            0.0 if np.isinf(limit) else 1.0,
            arrays.usable[1:].mean(),
            np.log2(arrays.n_units) / 6,
            arrays.transfers_differ,
            10.0 * min(np.log(made / least), 1.0),
        ],
        np.float32,
    )


@compiled
def _features(
    arrays: Arrays,
    heads: Heads,
    tail: Array,
    j: int,
    e: int,
    f: int,
    k: int,
    points: Array,
    units: Array,
    least: Array,
    made: Array,
) -> Array:
    count, m, h = len(points), arrays.microbatches, heads.stages - k - 1
    n, all_units = len(arrays.cut_bytes) - 1, len(arrays.latency_seconds) - 1
    bound, best = least.min(), made.min()
    result, rank = np.zeros((count, _N_FEATURES)), np.empty(count)
    rank[np.argsort(made)] = np.arange(count) / count
    # Keeps quotients finite where nothing crosses any cut, or no link costs anything.
    cut_mean = arrays.cut_bytes[1:n].mean() + 1e-30
    slowest_link = _slowest_link(heads.cheapest)
    old, new = tail.reshape(1, -1), np.zeros(len(tail))
    # L counts P and Q of GPipe M - 1 times; where passes alternate they are whole paths already.
    steady = 1.0 if arrays.order.alternates else float(m)
    for c in range(count):
        i, d, r = points[c], units[c], e - units[c]
        join(arrays, old, 0, new, i, j, d, e, f, k + 1)
        forward = arrays.forward[r, j] - arrays.forward[r, i]
        stage = forward + arrays.backward[r, j] - arrays.backward[r, i]
        before = arrays.latency_seconds[d] + heads.cheapest[d, e] * arrays.cut_bytes[i]
        slowest = heads.slowest_f[h, i, d] + heads.slowest_b[h, i, d]
        near = _least_near(arrays.cut_bytes, i, n)
        slow, links, reductions = _divided(arrays, heads, h, i, d)
        needed = stage_bytes(arrays, i, j, r, k + 1, 0)
        work = heads.line[i] / heads.line[n] + 1e-9
        row = result[c]
        # In the order of ACTION_FEATURES.
        row[0] = 10.0 * np.log(least[c] / bound)
        row[1] = 10.0 * np.log(made[c] / best)
        row[2] = 10.0 * np.log(made[c] / least[c])
        row[3] = c / count
        row[4] = rank[c]
        row[5] = m * stage / bound
        row[6] = m * forward / bound
        row[7] = 2.0 * m * link_seconds(arrays, d, e, f, j) / bound
        row[8] = 2.0 * m * before / bound
        row[9] = arrays.reduce_seconds_per_byte[d, e] * arrays.gradient_bytes[i, j] / bound
        row[10] = needed / arrays.memory_limit_bytes
        row[11] = m * slowest / bound
        row[12] = slowest * d / (heads.line[i] * heads.fewest + 1e-30)
        row[13] = m * new[0] / bound
        row[14] = new[1] / bound
        row[15] = steady * new[2] / bound
        row[16] = steady * new[3] / bound
        row[17] = r / e
        row[18] = (j - i) / j
        row[19] = (heads.line[j] - heads.line[i]) / heads.line[j]
        row[20] = d / all_units
        row[21] = work
        row[22] = np.log(arrays.cut_bytes[i] / cut_mean + 1e-3)
        row[23] = np.log((near + 1e-30) / (arrays.cut_bytes[i] + 1e-30))
        row[24] = heads.cheapest[d, e] / slowest_link
        row[25] = m * slow / bound
        row[26] = 2.0 * m * links / bound
        row[27] = reductions / bound
        point, unit = heads.points[h, i, d], heads.units[h, i, d]
        row[28] = m * (heads.line[i] - heads.line[point]) * heads.fewest / ((d - unit) * bound)
        row[29] = (d - unit) / d
    return np.minimum(np.maximum(result, -10.0), 10.0)


@inner
def _divided(arrays: Arrays, heads: Heads, h: int, j: int, e: int) -> tuple[float, float, float]:
    """The slowest stage, link and reduction of a head's good division, one microbatch's seconds but
    for the last.
    """
    # From the head's last stage to its first, as its tables lead.
    slow = links = reductions = 0.0
    for left in range(h, 0, -1):
        i, d = heads.points[left, j, e], heads.units[left, j, e]
        r = e - d
        stage = arrays.forward[r, j] - arrays.forward[r, i]
        slow = max(slow, stage + arrays.backward[r, j] - arrays.backward[r, i])
        reduce = arrays.reduce_seconds_per_byte[d, e] * arrays.gradient_bytes[i, j]
        reductions = max(reductions, reduce)
        if left > 1:
            before = heads.units[left - 1, i, d]
            links = max(links, link_seconds(arrays, before, d, e, i))
        j, e = i, d
    return slow, links, reductions


@inner
def _slowest_link(cheapest: Array) -> float:
    """The most seconds per byte between any unit and what may be before it."""
    slowest = 1e-30
    for d in range(1, len(cheapest) - 1):
        slowest = max(slowest, cheapest[d, d + 1])
    return slowest


@inner
def _least_near(cut_bytes: Array, point: int, end: int) -> float:
    """The least bytes of the cuts near a point, before `end`."""
    least = cut_bytes[point]
    for other in range(max(1, point - _NEAR), min(end, point + _NEAR + 1)):
        least = min(least, cut_bytes[other])
    return least
