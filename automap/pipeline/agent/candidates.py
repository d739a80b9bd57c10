"""The actions of a state that are worth a look, as features: no unit of time, bytes or size is left in them.

N_CANDIDATES actions: a third each by the least step, by the even one, and by both (their product); what is
named twice leaves room for more by the least.                                                -> in: `_chosen`

B is the least `least` of the state, M microbatches. Seconds are taken as shares of B, those of one microbatch
M times.
    ACTION_FEATURES of an action (i, d)                                                       -> in: `_features`
    STATE_FEATURES of the state                                                               -> in: `_state`
    baseline b = log(L0 / least), L0 the bound of the problem: what is known of log(L0 / L)
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from automap.pipeline.agent.heads import Heads, heads_of
from automap.pipeline.agent.states import (
    State,
    actions,
    even_point,
    first_state,
    join,
    link_seconds,
)
from automap.pipeline.arrays import Arrays
from automap.pipeline.value import stage_bytes
from automap.simulate.arrays import Array
from automap.simulate.jit import compiled, inner


N_CANDIDATES: Final = 192
ACTION_FEATURES: Final = (
    "least", "even", "even / least", "least's rank", "even's rank", "stage", "forward", "link after",
    "link before", "reduction", "memory", "head's slowest", "head's slowest / its work", "tail U", "tail V",
    "tail P", "tail Q", "units", "points", "work", "units left", "points left", "cut / mean", "cut / near", "link / slowest link",
    "head's reduction", "next link", "next reduction",
)  # fmt: skip
STATE_FEATURES: Final = (
    "stages", "left", "decided", "microbatches", "microbatches / stages", "1f1b", "bound", "memory", "usable",
    "units", "matched",
)  # fmt: skip
_NEAR: Final = 4
_N_FEATURES: Final = len(ACTION_FEATURES)


@dataclass(frozen=True)
class Game:
    """A problem as the agent plays it; `bound_seconds` is L0."""

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
    """`points`, `units` int64 [A], A at most N_CANDIDATES, none where the state is a dead end.

    `features` float32 [A, F], `flat` float32 [D], `baseline` float32 [A], in the order of `least`.
    """

    points: np.ndarray
    units: np.ndarray
    features: np.ndarray
    flat: np.ndarray
    baseline: np.ndarray


def game_of(arrays: Arrays, stages: int) -> Game | None:
    """The game of a problem in at least two stages; None if no partition fits."""
    if not 2 <= stages <= min(arrays.n_points, arrays.n_units):
        return None
    heads = heads_of(arrays, stages)
    start = first_state(arrays, stages)
    least, _ = actions(arrays, heads, start)
    bound = float(least.min())
    return Game(arrays, heads, start, bound) if np.isfinite(bound) else None


def candidates(game: Game, state: State, wanted: tuple[int, int] | None = None) -> Candidates:
    """The candidates of a state in which at least two actions are left; `wanted` (i, d) is one of them for certain."""
    least, even = actions(game.arrays, game.heads, state)
    chosen = _chosen(least.ravel(), even.ravel())
    if wanted is not None:
        place = int(np.ravel_multi_index(wanted, least.shape))
        if place not in chosen:
            chosen[-1] = place
    points, units = np.unravel_index(chosen, least.shape)
    if len(chosen) == 0:
        empty = np.zeros((0, _N_FEATURES), np.float32)
        return Candidates(
            points, units, empty, np.zeros(len(STATE_FEATURES), np.float32), empty[:, 0]
        )
    least, even = least.ravel()[chosen], even.ravel()[chosen]
    features = _features(
        game.arrays, game.heads, state.tail, state.cuts[0], state.parts[0], state.following,
        state.decided, points, units, least, even,
    )  # fmt: skip
    return Candidates(
        points, units, features.astype(np.float32), _state(game, state, float(least.min())),
        np.log(game.bound_seconds / least).astype(np.float32),
    )  # fmt: skip


def _chosen(least: np.ndarray, even: np.ndarray) -> np.ndarray:
    """Places of the candidates, by `least`."""
    allowed = np.flatnonzero(np.isfinite(least))
    by = least[allowed], even[allowed], least[allowed] * even[allowed]
    if len(allowed) > N_CANDIDATES:
        share = N_CANDIDATES // len(by)
        picked = np.zeros(len(allowed), bool)
        for key in by[1:]:
            picked[np.argpartition(key, share)[:share]] = True
        order = np.argsort(by[0], kind="stable")
        picked[order[~picked[order]][: N_CANDIDATES - int(picked.sum())]] = True
        allowed = allowed[picked]
    return allowed[np.argsort(least[allowed], kind="stable")]


def _state(game: Game, state: State, least: float) -> np.ndarray:
    arrays, stages, k = game.arrays, game.stages, state.decided
    limit = arrays.memory_limit_bytes
    return np.array([
        stages / 8, (stages - k - 1) / 8, k / 8, np.log2(arrays.microbatches) / 6,
        np.log2(arrays.microbatches / stages) / 4, arrays.schedule,
        10.0 * min(np.log(least / game.bound_seconds), 1.0),
        0.0 if np.isinf(limit) else 1.0, arrays.usable[1:].mean(), np.log2(arrays.n_units) / 6,
        arrays.transfers_differ,
    ], np.float32)  # fmt: skip


@compiled
def _features(
    arrays: Arrays, heads: Heads, tail: Array, j: int, e: int, f: int, k: int, points: Array, units: Array,
    least: Array, even: Array,
) -> Array:  # fmt: skip
    count, m, h = len(points), arrays.microbatches, heads.stages - k - 1
    n, all_units = len(arrays.cut_bytes) - 1, len(arrays.latency_seconds) - 1
    bound, best = least.min(), even.min()
    result, rank_even = np.zeros((count, _N_FEATURES)), np.empty(count)
    rank_even[np.argsort(even)] = np.arange(count) / count
    cut_mean = arrays.cut_bytes[1:n].mean() + 1e-30
    slowest_link = _slowest_link(heads.cheapest)
    old, new = tail.reshape(1, -1), np.zeros(len(tail))
    for c in range(count):
        i, d = points[c], units[c]
        r = e - d
        join(arrays, old, 0, new, i, j, d, e, f, k + 1)
        forward = arrays.forward[r, j] - arrays.forward[r, i]
        stage = forward + arrays.backward[r, j] - arrays.backward[r, i]
        before = arrays.latency_seconds[d] + heads.cheapest[d, e] * arrays.cut_bytes[i]
        slowest = heads.slowest_f[h, i, d] + heads.slowest_b[h, i, d]
        near = _least_near(arrays.cut_bytes, i, n)
        point, unit = even_point(heads, h, i, d)
        next_cut = _least_near(arrays.cut_bytes, point, i)
        next_link = arrays.latency_seconds[unit] + heads.cheapest[unit, d] * next_cut
        needed = stage_bytes(
            arrays.state_bytes[i, j], arrays.kept_bytes[i, j], arrays.working_bytes[i, j],
            arrays.cut_bytes[i], r * arrays.unit_devices, m, k + 1, arrays.schedule,
        )  # fmt: skip
        steady = float(m) if arrays.schedule == 0 else 1.0
        work = heads.line[i] / heads.line[n] + 1e-9
        row = result[c]
        row[0] = 10.0 * np.log(least[c] / bound)
        row[1] = 10.0 * np.log(even[c] / best)
        row[2] = 5.0 * np.log(even[c] / least[c])
        row[3] = c / count
        row[4] = rank_even[c]
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
        row[25] = arrays.reduce_seconds_per_byte[0, d] * arrays.gradient_bytes[0, i] / bound
        row[26] = 2.0 * m * next_link / bound
        row[27] = arrays.reduce_seconds_per_byte[unit, d] * arrays.gradient_bytes[point, i] / bound
    return np.minimum(np.maximum(result, -10.0), 10.0)


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
