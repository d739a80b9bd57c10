"""The game of a partition (Auto-MAP sections 3.4 and 4.4): from the first stage on an agent chooses
where a stage's units end, then its points; and what it may choose.

2 (S - 1) decisions: number 2 s is the end e of the units of stage s = [i, j) on [d, e), number
2 s + 1 the end j of its points. An action is a boundary, of units or of points, in one space of
max(n, U). With I the ideal step

    C, A, W   the paper's features of a stage: M (F + B), M X of what it sends to the units that are
              left, R; in parts of I                                           -> in: `_features`
    state     the decision's number as zeros and a one, and of each stage so far C, A, W, j / n,
              e / U                                                            -> in: `fill_flat`
    reward    0 until the end, then I / L, or -sqrt(I / L) if the partition does not fit: the
              paper's 1 / L and -1 / sqrt(L), with seconds in units of I         -> in: `_reward`
    even      the reward if all later decisions divided what is left evenly, points by their
              seconds: what is known of an action beforehand, and all of it at the last decision
                                                                 -> in: `fill_even`, `_complete`

Allowed are the actions that the paper's two filters leave, and no way into a dead end. A filter
that leaves no partition at all is dropped.                               -> in: `action_filter`

    near[d]             whether unit boundary d is within RADIUS units of a network boundary. A
                        level of the network counts with all that are outside it; the outermost that
                        has S - 1 boundaries is taken             -> in: `near_boundaries`
    has_variable[i, j]  whether a stage of points [i, j) has a variable: a parameter with gradients
    points_divide[k, i] whether the points from i on divide in k stages, units_divide[k, d] the same
                        of units. So a boundary is allowed only if what comes after it can be
                        divided                                           -> in: `divides`
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from automap.numba_jit import Array, compiled, inner
from automap.pipeline.arrays import Arrays
from automap.pipeline.solvers.bounds import least_seconds, least_sums
from automap.pipeline.value import price


# Auto-MAP section 5.2.3.
RADIUS: Final = 3
STAGE_FEATURES: Final = 5
"""Numbers of the state for each stage: C, A, W, j / n, e / U."""


@dataclass(frozen=True)
class ActionFilter:
    """`points_divide` [S + 1, n + 1], `units_divide` [S + 1, U + 1], `has_variable`
    [n + 1, n + 1], all bool.
    """

    points_divide: np.ndarray
    units_divide: np.ndarray
    has_variable: np.ndarray

    @property
    def stages(self) -> int:
        """S."""
        return len(self.points_divide) - 1


def action_filter(
    arrays: Arrays, stages: int, boundary_level: np.ndarray, radius: int = RADIUS
) -> ActionFilter | None:
    """What may be chosen with S stages; `boundary_level` as in `Fabric`. None if there is no
    partition in so many.
    """
    points, units = np.arange(arrays.n_points + 1), np.arange(arrays.n_units + 1)
    longer = points[None, :] > points[:, None]
    sizes = units[None, :] - units[:, None]
    usable = (sizes > 0) & arrays.usable[np.maximum(sizes, 0)]
    # With the filter first, and without it where it leaves nothing.
    for has_variable in (longer & (arrays.gradient_bytes > 0.0), longer):
        points_divide = divides(has_variable, arrays.may_cut, stages)
        if points_divide[stages, 0]:
            break
    else:
        return None
    for near in (near_boundaries(boundary_level, stages, radius), np.ones(len(units), bool)):
        units_divide = divides(usable, arrays.may_cut_devices & near, stages)
        if units_divide[stages, 0]:
            return ActionFilter(points_divide, units_divide, has_variable)
    return None


def near_boundaries(boundary_level: np.ndarray, stages: int, radius: int = RADIUS) -> np.ndarray:
    """near [U + 1] for S stages."""
    # Boundaries of a level are boundaries of all levels inside it too.
    inner = boundary_level[1:-1]
    enough = [level for level in np.unique(inner) if (inner >= level).sum() >= stages - 1]
    at = np.flatnonzero(boundary_level >= max(enough, default=0))
    distances = np.abs(np.arange(len(boundary_level))[:, None] - at[None, :])
    near = np.any(distances <= radius, axis=1)
    near[[0, -1]] = True
    return near


def divides(can_be: np.ndarray, may_begin: np.ndarray, stages: int) -> np.ndarray:
    """Whether [i, N) divides in k stages, [S + 1, N + 1]; `can_be` [N + 1, N + 1] says whether
    [i, j) can be one.
    """
    # A dynamic programme from the end: 0 stages divide nothing but the empty rest.
    divides = np.zeros((stages + 1, len(may_begin)), bool)
    divides[0, -1] = True
    for k in range(1, stages + 1):
        divides[k] = may_begin & (can_be & divides[k - 1]).any(1)
    return divides


@compiled
def ideal_seconds(arrays: Arrays) -> float:
    """I: no partition takes less."""
    fs, bs, wf, wb = least_sums(arrays)
    units = len(arrays.latency_seconds) - 1
    return least_seconds(
        0.0,
        0.0,
        0.0,
        0.0,
        fs[units, -1],
        bs[units, -1],
        wf[-1] / units,
        wb[-1] / units,
        arrays.microbatches,
        arrays.order,
    )


@compiled
def work_before(arrays: Arrays) -> Array:
    """[n + 1] seconds of a microbatch before each boundary on one unit, by the replicas that do
    most.
    """
    _, _, wf, wb = least_sums(arrays)
    return wf + wb


@inner
def may_choose(
    arrays: Arrays,
    points_divide: Array,
    units_divide: Array,
    has_variable: Array,
    number: int,
    cuts: Array,
    device_cuts: Array,
    action: int,
) -> bool:
    """Whether decision `number` may be this boundary; tables as in `ActionFilter`."""
    stages, s = len(cuts) - 1, number // 2
    left = stages - 1 - s
    if number % 2 == 0:
        d = device_cuts[s]
        return (
            d < action < device_cuts[-1]
            and arrays.usable[action - d]
            and units_divide[left, action]
        )
    return (
        cuts[s] < action < cuts[-1]
        and has_variable[cuts[s], action]
        and points_divide[left, action]
    )


@compiled
def fill_mask(
    arrays: Arrays,
    points_divide: Array,
    units_divide: Array,
    has_variable: Array,
    numbers: Array,
    cuts: Array,
    device_cuts: Array,
    mask: Array,
) -> None:
    """Fill `mask` [B, A] for games at decisions [B] of partitions [B, S + 1]."""
    for game in range(len(numbers)):
        for action in range(mask.shape[1]):
            mask[game, action] = may_choose(
                arrays,
                points_divide,
                units_divide,
                has_variable,
                numbers[game],
                cuts[game],
                device_cuts[game],
                action,
            )


@compiled
def fill_flat(
    arrays: Arrays, ideal: float, numbers: Array, cuts: Array, device_cuts: Array, flat: Array
) -> None:
    """Fill `flat` [B, (2 + STAGE_FEATURES) (S - 1)]."""
    n, units, stages = cuts[0, -1], device_cuts[0, -1], cuts.shape[1] - 1
    flat[:] = 0.0
    for game in range(len(numbers)):
        flat[game, numbers[game]] = 1.0
        for s in range((numbers[game] + 1) // 2):
            # The decision's number takes the first 2 (S - 1) entries.
            row = flat[game, 2 * (stages - 1) + STAGE_FEATURES * s :]
            row[4] = device_cuts[game, s + 1] / units
            if 2 * s + 1 < numbers[game]:
                row[0], row[1], row[2] = _features(arrays, ideal, cuts[game], device_cuts[game], s)
                row[3] = cuts[game, s + 1] / n


@inner
def _features(
    arrays: Arrays, ideal: float, cuts: Array, device_cuts: Array, s: int
) -> tuple[float, float, float]:
    i, j, d, e = cuts[s], cuts[s + 1], device_cuts[s], device_cuts[s + 1]
    r, m = e - d, arrays.microbatches
    forward = arrays.forward[r, j] - arrays.forward[r, i]
    backward = arrays.backward[r, j] - arrays.backward[r, i]
    per_byte = arrays.transfer_seconds_per_byte[d, e, device_cuts[-1]]
    x = arrays.latency_seconds[e] + per_byte * arrays.cut_bytes[j]
    reduce = arrays.reduce_seconds_per_byte[d, e] * arrays.gradient_bytes[i, j]
    return m * (forward + backward) / ideal, m * x / ideal, reduce / ideal


@compiled
def fill_even(
    arrays: Arrays,
    ideal: float,
    work: Array,
    points_divide: Array,
    units_divide: Array,
    has_variable: Array,
    numbers: Array,
    cuts: Array,
    device_cuts: Array,
    mask: Array,
    even: Array,
) -> None:
    """Fill `even` [B, A] where `mask` allows, else with 0."""
    # Each action is played to its end on copies, which the next one overwrites.
    tails = np.empty((2, cuts.shape[1] + 3))
    own_cuts, own_device_cuts = np.empty(cuts.shape[1], np.int64), np.empty(cuts.shape[1], np.int64)
    even[:] = 0.0
    for game in range(len(numbers)):
        number = numbers[game]
        for action in range(mask.shape[1]):
            if mask[game, action]:
                own_cuts[:], own_device_cuts[:] = cuts[game], device_cuts[game]
                _decide(number, action, own_cuts, own_device_cuts)
                _complete(
                    arrays,
                    work,
                    points_divide,
                    units_divide,
                    has_variable,
                    number + 1,
                    own_cuts,
                    own_device_cuts,
                )
                over, seconds = price(arrays, own_cuts, own_device_cuts, tails)
                even[game, action] = _reward(ideal, over, seconds)


@inner
def _decide(number: int, action: int, cuts: Array, device_cuts: Array) -> None:
    if number % 2 == 0:
        device_cuts[number // 2 + 1] = action
    else:
        cuts[number // 2 + 1] = action


@inner
def _complete(
    arrays: Arrays,
    work: Array,
    points_divide: Array,
    units_divide: Array,
    has_variable: Array,
    number: int,
    cuts: Array,
    device_cuts: Array,
) -> None:
    """Make the decisions from `number` on in place, each at the boundary nearest to an even share
    that it may be.
    """
    stages = len(cuts) - 1
    for later in range(number, 2 * (stages - 1)):
        s = later // 2
        i, d, units = cuts[s], device_cuts[s], device_cuts[-1]
        if later % 2 == 0:
            middle, most = d + round((units - d) / (stages - s)), units
        else:
            # A stage's share of the work that is left is its share of the units that are left.
            share = (device_cuts[s + 1] - d) / (units - d)
            middle = np.searchsorted(work, work[i] + (work[-1] - work[i]) * share)
            most = cuts[-1]
        for far in range(2 * most):
            # middle, middle + 1, middle - 1, middle + 2, ...
            action = middle + (far + 1) // 2 if far % 2 else middle - far // 2
            if may_choose(
                arrays, points_divide, units_divide, has_variable, later, cuts, device_cuts, action
            ):
                _decide(later, action, cuts, device_cuts)
                break


@inner
def _reward(ideal: float, over: float, seconds: float) -> float:
    return ideal / seconds if over <= 0.0 else -np.sqrt(ideal / seconds)


@compiled
def play(
    arrays: Arrays,
    ideal: float,
    actions: Array,
    numbers: Array,
    cuts: Array,
    device_cuts: Array,
    rewards: Array,
    dones: Array,
    best: Array,
    best_cuts: Array,
    best_device_cuts: Array,
) -> bool:
    """Take actions [B]; games that end begin anew. Says whether one was better than all before.

    `best` [2] is (bytes over the memory, L) of the best partition so far; what needs less memory is
    better until one fits.
    """
    tails = np.empty((2, cuts.shape[1] + 3))
    # All arrays are changed in place: a step of thousands of games makes no new ones.
    better = False
    for game in range(len(numbers)):
        _decide(numbers[game], actions[game], cuts[game], device_cuts[game])
        numbers[game] += 1
        rewards[game], dones[game] = 0.0, numbers[game] == 2 * (cuts.shape[1] - 2)
        if dones[game]:
            numbers[game] = 0
            over, seconds = price(arrays, cuts[game], device_cuts[game], tails)
            rewards[game] = _reward(ideal, over, seconds)
            over = max(over, 0.0)
            if over < best[0] or (over == best[0] and seconds < best[1]):
                best[0], best[1], better = over, seconds, True
                best_cuts[:], best_device_cuts[:] = cuts[game], device_cuts[game]
    return better
