"""What the agent sees of a table: numbers that depend neither on the model's size nor on the
mesh's.

Of an option: its kind of move, what it changes in cost, compute, waiting and peak (logs of ratios),
    how far the peak is
from the limit, and of what it moves: size of the axis, share of the parameters' bytes, share of the
    work.
Of the table: how far the episode is, how far the plan is from the best, how much of it is waiting,
    its peak.
Baseline: what the option saves at once. What it opens or closes for later decisions is left to
    learn.
"""

from functools import cached_property
import math

import numpy as np

from automap.cost.evaluate import Estimate
from automap.search.context import LEAST_SECONDS, SearchContext
from automap.search.moves import (
    AxisChange,
    AxisSwap,
    ClassJoin,
    ClassToggle,
    DimChange,
    LeafStorageChange,
    Move,
    SmallPartsChange,
    StorageChange,
)
from automap.search.rainbow.table import MOST_MOVES, Table, cost


N_ACTIONS = 1 + MOST_MOVES
_KINDS = (
    ClassToggle,
    ClassJoin,
    AxisChange,
    StorageChange,
    LeafStorageChange,
    DimChange,
    SmallPartsChange,
    AxisSwap,
)
N_FEATURES = 1 + len(_KINDS) + 10
N_FLAT = 6
# Ratios are of seconds: added to both, it keeps the logs of plans that never wait finite.
_LEAST_SHARE = 1e-3


class Features:
    """Descriptions of tables of one search."""

    def __init__(self, context: SearchContext):
        """Weights of classes and leaves come from the context's space."""
        self._context = context

    @cached_property
    def _leaf_shares(self) -> np.ndarray:
        n_bytes = np.array([leaf.n_bytes * len(leaf.inputs) for leaf in self._context.space.leaves])
        return n_bytes / max(n_bytes.sum(), 1)

    @cached_property
    def _class_shares(self) -> np.ndarray:
        """(share of parameter bytes, share of work) of each class."""
        space = self._context.space
        problem = space.problem
        done, total = problem.work.by_class, problem.work.total
        shares = np.zeros((problem.n_classes, 2))
        for leaf, share in zip(space.leaves, self._leaf_shares.tolist(), strict=True):
            for group_class in {*leaf.compute, *leaf.regional}:
                if group_class < problem.n_classes:
                    shares[group_class, 0] += share
        for group_class in range(problem.n_classes):
            of = problem.compute_class(group_class)
            shares[group_class, 1] = done.get(of, 0.0) / max(total, 1.0)
        return shares

    def baseline(self, table: Table) -> np.ndarray:
        """What each option saves at once, [A]; 0 where there is none."""
        objective = self._context.objective
        now = cost(objective, table.current.estimate)
        saved = np.zeros(N_ACTIONS)
        for action, option in enumerate(table.options):
            if option is not None:
                saved[action] = now - cost(objective, option.candidate.estimate)
        return saved

    def table_numbers(self, table: Table) -> list[float]:
        """The flat vector, `N_FLAT` numbers."""
        estimate, best = table.current.estimate, self._context.best
        objective = self._context.objective
        behind = cost(objective, estimate) - cost(objective, best.estimate) if best else 0.0
        sizes = table.current.point.mesh.sizes
        return [
            table.position / len(table.decisions),
            behind,
            estimate.collective_seconds / max(estimate.step_seconds, LEAST_SECONDS),
            self._peak(estimate),
            float(objective.fits(estimate)),
            len(sizes) / 3.0,
        ]

    def option_numbers(self, table: Table) -> np.ndarray:
        """Of each option, [A, N_FEATURES]; zeros where there is none."""
        numbers = np.zeros((N_ACTIONS, N_FEATURES))
        now = table.current.estimate
        baseline = self.baseline(table)
        for action, option in enumerate(table.options):
            if option is None:
                continue
            then, move = option.candidate.estimate, option.move
            kinds = [float(isinstance(move, kind)) for kind in _KINDS]
            numbers[action] = [
                float(move is None),
                *kinds,
                baseline[action],
                _log_times(then.step_seconds, now.step_seconds, LEAST_SECONDS),
                _log_times(then.compute_seconds, now.compute_seconds, LEAST_SECONDS),
                _log_ratio(
                    then.collective_seconds,
                    now.collective_seconds,
                    max(now.step_seconds, LEAST_SECONDS),
                ),
                _log_times(then.peak_bytes, now.peak_bytes, 1.0),
                self._peak(then),
                float(self._context.objective.fits(then)),
                *self._subject(table, move),
            ]
        return numbers

    def _subject(self, table: Table, move: Move | None) -> tuple[float, float, float]:
        """Log of the axis's size, shares of bytes and of work of what is moved."""
        sizes = table.current.point.mesh.sizes
        match move:
            case (
                ClassToggle(axis, group_class)
                | ClassJoin(axis, group_class)
                | AxisChange(axis, _, group_class)
            ):
                return math.log2(sizes[axis]), *self._class_shares[group_class].tolist()
            case DimChange(group_class) | SmallPartsChange(group_class):
                return 0.0, *self._class_shares[group_class].tolist()
            case StorageChange(axis, level):
                return math.log2(sizes[axis]), 1.0, float(level)
            case LeafStorageChange(axis, leaf, level):
                return math.log2(sizes[axis]), float(self._leaf_shares[leaf]), float(level)
            case AxisSwap(first, second):
                return math.log2(sizes[first] / sizes[second]), 0.0, 0.0
        return 0.0, 0.0, 0.0

    def _peak(self, estimate: Estimate) -> float:
        limit = self._context.objective.memory_limit_bytes
        return _log_times(estimate.peak_bytes, limit, 1.0)


def _log_times(then: float, now: float, least: float) -> float:
    return math.log(max(then, least) / max(now, least))


def _log_ratio(then: float, now: float, whole: float) -> float:
    least = _LEAST_SHARE * whole
    return math.log((then + least) / (now + least))
