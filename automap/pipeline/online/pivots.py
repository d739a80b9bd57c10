"""The paper's own game of a partition (Auto-MAP section 4.4): an action is a pivot, devices follow.

S - 1 decisions, from the first stage on: the point p at which the stage that was begun ends. With
W[p] the seconds of the points before p, n points and U units

    unit[p]    round(U W[p] / W[n]): "allocate computation resources according to the computation
               ratio" (section 3.4)                                        -> in: `pivot_filter`
    allowed    p with unit[p] near a boundary of the network, a variable in every stage, no p
               before the last one, and no way into a dead end. A filter that leaves no partition
               at all is dropped                                           -> in: `pivot_filter`
    state      three numbers for each p that is allowed, of the pipeline that would be if the
               stage ended there and one stage had all the rest; 0 for other p
                                                                           -> in: `pivot_state`
                   reduce     sum over stages of R, in parts of the ideal step I
                   transfer   M times the greatest X over cuts, in parts of I
                   balance    the least T of a stage over the greatest
    reward     0 until the end, then I / L, or -sqrt(I / L) if the partition does not fit
                                          -> in: `automap.pipeline.online.strategy.PivotEnv`

R, X, T and L are those of `automap.pipeline.value`, `near` those of `automap.pipeline.online.game`.
The paper does not say how devices are rounded, whether a stage's computation is that of all of it
or of a device (T here, since "the time cost" is what it balances), nor how its numbers are scaled.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from automap.pipeline.arrays import Arrays
from automap.pipeline.online.game import RADIUS, divides, near_boundaries, work_before
from automap.pipeline.solvers.exact import Partition
from automap.pipeline.value import values


PIVOT_FEATURES: Final = 3
"""Numbers of the state for each pivot: reduce, transfer, balance."""


@dataclass(frozen=True)
class PivotFilter:
    """`unit` int64 [n + 1]; `may_be` bool [n + 1, n + 1], whether [i, j) may be a stage;
    `points_divide` bool [S + 1, n + 1], whether the points from i on divide in k stages.
    """

    unit: np.ndarray
    may_be: np.ndarray
    points_divide: np.ndarray

    @property
    def stages(self) -> int:
        """S."""
        return len(self.points_divide) - 1

    def mask(self, last: int, left: int) -> np.ndarray:
        """Which pivots [n] may end the stage that begins at `last`, with `left` stages after it."""
        return (self.may_be[last] & self.points_divide[left])[:-1]


def pivot_filter(
    arrays: Arrays, stages: int, boundary_level: np.ndarray, radius: int = RADIUS
) -> PivotFilter | None:
    """What may be chosen with S stages; `boundary_level` as in `Fabric`. None if no partition whose
    devices follow the computation is allowed in so many.
    """
    work = work_before(arrays)
    unit = np.round(arrays.n_units * work / work[-1]).astype(np.int64)
    points = np.arange(arrays.n_points + 1)
    replicas = np.maximum(unit[None, :] - unit[:, None], 0)
    # `usable` of no replicas is False, so that every stage has a device.
    usable = (points[None, :] > points[:, None]) & arrays.usable[replicas]
    # With both filters first, without what leaves nothing.
    for with_variable in (usable & (arrays.gradient_bytes > 0.0), usable):
        for near in (
            near_boundaries(boundary_level, stages, radius),
            np.ones(len(boundary_level), bool),
        ):
            may_cut = arrays.may_cut & near[unit] & arrays.may_cut_devices[unit]
            points_divide = divides(with_variable, may_cut, stages)
            if points_divide[stages, 0]:
                return PivotFilter(unit, with_variable, points_divide)
    return None


def pivot_state(
    arrays: Arrays, ideal: float, unit: np.ndarray, cuts: tuple[int, ...], mask: np.ndarray
) -> np.ndarray:
    """float32 [3 n]: `PIVOT_FEATURES` of all pivots, after cuts 0 .. the last one."""
    pivots = np.flatnonzero(mask)
    features = np.zeros((PIVOT_FEATURES, len(mask)), np.float32)
    # All stages of each pipeline that would be, a row for each pivot: of those before, the one that
    # ends at the pivot, and the rest.
    ends = np.empty((len(pivots), len(cuts) + 2), np.int64)
    ends[:, : len(cuts)] = cuts
    ends[:, len(cuts)], ends[:, -1] = pivots, arrays.n_points
    i, j, d, e = ends[:, :-1], ends[:, 1:], unit[ends[:, :-1]], unit[ends[:, 1:]]
    reduce = (arrays.reduce_seconds_per_byte[d, e] * arrays.gradient_bytes[i, j]).sum(1)
    # From each stage but the last one to the next, [d, e) to [e, f).
    per_byte = arrays.transfer_seconds_per_byte[d[:, :-1], e[:, :-1], e[:, 1:]]
    link = arrays.latency_seconds[e[:, :-1]] + per_byte * arrays.cut_bytes[j[:, :-1]]
    replicas = e - d
    line = arrays.forward + arrays.backward
    seconds = line[replicas, j] - line[replicas, i]
    features[0, pivots] = reduce / ideal
    features[1, pivots] = arrays.microbatches * link.max(1) / ideal
    features[2, pivots] = seconds.min(1) / seconds.max(1)
    return features.ravel()


def best_of_pivots(arrays: Arrays, allowed: PivotFilter) -> Partition | None:
    """The best of all partitions that the game has, by trying each; None if none fits."""
    games = [(0,)]
    for left in range(allowed.stages - 1, 0, -1):
        games = [
            (*cuts, int(pivot))
            for cuts in games
            for pivot in np.flatnonzero(allowed.mask(cuts[-1], left))
        ]
    cuts = np.array([(*each, arrays.n_points) for each in games], np.int64)
    units = allowed.unit[cuts]
    seconds = values(arrays, cuts, units)
    best = int(seconds.argmin())
    return (
        Partition(cuts[best], units[best], float(seconds[best]))
        if np.isfinite(seconds[best])
        else None
    )
