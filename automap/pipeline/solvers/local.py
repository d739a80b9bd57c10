"""Partitions without a proof: even splits, cuts at servers, and local search from several starts.

even split      points by their seconds, units by their number, both as even as is allowed
servers         stages begin where the outermost level of links is crossed (Auto-MAP section 4.4
                with radius 0), points by the exact solver
local search    one boundary after the other is moved to its best point and unit, until none moves;
                from `STARTS` starts, of which the first are even; where that ends at nothing that
                fits, from the partition of the least memory
"""

from dataclasses import replace
from typing import Final

import numpy as np

from automap.deadline import Deadline
from automap.numba_jit import Array, compiled
from automap.pipeline.arrays import Arrays, divisible
from automap.pipeline.solvers.exact import MOST_WORK, Partition, Solved, solve
from automap.pipeline.solvers.stage_options import replicated_options, smallest_stages
from automap.pipeline.value import price, price_partition


STARTS: Final = 13


def even_split(arrays: Arrays, stages: int) -> Partition | None:
    """The even split; None if units cannot be divided so, inf seconds if it does not fit."""
    device_cuts = _device_cuts(arrays, stages, None)
    if device_cuts is None:
        return None
    cuts = _cuts(arrays, np.arange(stages + 1) / stages)
    return None if cuts is None else _partition(arrays, cuts, device_cuts)


def at_servers(
    arrays: Arrays, stages: int, boundary_level: np.ndarray, deadline: Deadline | None = None
) -> Solved:
    """The best with stages that begin where the outermost level of links is crossed;
    `boundary_level` as in `Fabric`.
    """
    allowed = boundary_level == boundary_level.max()
    allowed[[0, -1]] = True
    allowed_only = arrays._replace(may_cut_devices=arrays.may_cut_devices & allowed)
    return solve(allowed_only, stages, deadline=deadline)


def local_search(
    arrays: Arrays, stages: int, seed: int = 0, starts: int = STARTS
) -> Partition | None:
    """The best of several local searches; None if there is no partition in so many stages, inf if
    none fits.
    """
    rng = np.random.default_rng(seed)
    best: Partition | None = None
    for start in range(starts):
        device_cuts = _device_cuts(arrays, stages, rng if start else None)
        # Start 0 is even in both, start 1 in points only; the others are random in both, each stage
        # with about as much work as it has units.
        shares = np.arange(stages + 1) / stages
        if start > 1 and device_cuts is not None:
            shares = device_cuts / device_cuts[-1] + rng.normal(0, 0.3 / stages, stages + 1)
            shares[[0, -1]] = 0.0, 1.0
        cuts = _cuts(arrays, np.sort(shares))
        if device_cuts is None or cuts is None:
            return best
        reached = improve(arrays, Partition(cuts, device_cuts, np.inf))
        if best is None or reached.seconds < best.seconds:
            best = reached
    if best is not None and np.isinf(best.seconds):
        # Where memory is short no start may come to what fits: that of the least memory does, if
        # any does.
        smallest = smallest_stages(replicated_options(arrays), stages)
        if smallest is not None:
            return improve(arrays, Partition(smallest[0], smallest[1], np.inf))
    return best


def improve(arrays: Arrays, start: Partition) -> Partition:
    """Where local search from a partition ends, which may be one that does not fit."""
    cuts, device_cuts = start.cuts.copy(), start.device_cuts.copy()
    _improve(arrays, cuts, device_cuts)
    return _partition(arrays, cuts, device_cuts)


def optimum(arrays: Arrays, stages: int, most_work: int = MOST_WORK) -> Solved:
    """The exact solver, with local search for a first bound, which is the best if the solver gives
    up before it has a better one.
    """
    start = local_search(arrays, stages)
    solved = solve(arrays, stages, start.seconds if start else np.inf, most_work=most_work)
    if solved.best is None and start is not None and np.isfinite(start.seconds):
        return replace(solved, best=start)
    return solved


def _partition(arrays: Arrays, cuts: np.ndarray, device_cuts: np.ndarray) -> Partition:
    over, seconds = price_partition(arrays, cuts, device_cuts)
    return Partition(cuts, device_cuts, float(seconds) if over <= 0 else np.inf)


def _device_cuts(arrays: Arrays, stages: int, rng: np.random.Generator | None) -> np.ndarray | None:
    """Units divided in usable sizes: as even as can be, or at random; None if that is
    impossible.
    """
    units, sizes, can = arrays.n_units, np.flatnonzero(arrays.usable), divisible(arrays, stages)
    if not can[stages, units]:
        return None
    device_cuts, left = [0], units
    for k in range(stages, 0, -1):
        # Only sizes after which the rest still divides in k - 1 stages: no way leads to a dead end.
        fitting = [size for size in sizes if size <= left and can[k - 1, left - size]]
        fair = left / k
        size = min(fitting, key=lambda s: abs(s - fair)) if rng is None else rng.choice(fitting)
        left -= int(size)
        device_cuts.append(units - left)
    return np.array(device_cuts, np.int64)


def _cuts(arrays: Arrays, shares: np.ndarray) -> np.ndarray | None:
    """Allowed boundaries near shares of the seconds, ascending; None if there are too few."""
    allowed = np.flatnonzero(arrays.may_cut[1:-1]) + 1
    stages = len(shares) - 1
    if len(allowed) < stages - 1:
        return None
    # Seconds on the fewest replicas: any number would do, and kernels' floors weigh least there.
    r = int(np.flatnonzero(arrays.usable)[0])
    line = arrays.forward[r] + arrays.backward[r] + arrays.weights[r]
    places = np.searchsorted(line[allowed], shares[1:-1] * line[-1])
    # Push boundaries apart that fell on one place, and keep room for those that follow.
    for s in range(stages - 1):
        low = places[s - 1] + 1 if s else 0
        places[s] = min(max(places[s], low), len(allowed) - (stages - 1 - s))
    return np.array([0, *allowed[places], arrays.n_points], np.int64)


@compiled
def _improve(arrays: Arrays, cuts: Array, device_cuts: Array) -> None:
    """Move boundaries in place until no single one is better elsewhere; what does not fit yields
    first.
    """
    tails = np.empty((2, len(cuts) + 3))
    over, seconds = price(arrays, cuts, device_cuts, tails)
    moved = True
    while moved:
        moved = False
        for s in range(1, len(cuts) - 1):
            best_i, best_d = cuts[s], device_cuts[s]
            for i in range(cuts[s - 1] + 1, cuts[s + 1]):
                if not arrays.may_cut[i]:
                    continue
                for d in range(device_cuts[s - 1] + 1, device_cuts[s + 1]):
                    cuts[s], device_cuts[s] = i, d
                    new_over, new_seconds = price(arrays, cuts, device_cuts, tails)
                    # By more than rounding, or places of equal cost would be visited in turn.
                    less = new_seconds < seconds * (1 - 1e-12)
                    if new_over < over or (new_over == over and less):
                        over, seconds, best_i, best_d, moved = new_over, new_seconds, i, d, True
            cuts[s], device_cuts[s] = best_i, best_d
