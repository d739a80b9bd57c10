"""What the agent sees: the moves of a point as numbers without units, before and after they are
priced.

The graph. Classes and leaves are its nodes; classes are joined that meet in a tensor, and a leaf to
the classes that it holds. A move is seen as what it moves, along which axis, and what stands there:
sums over the neighbours of a node that are on the axis, so neither names nor numbers of classes,
nor of axes, make a difference                                       -> in: `Seen.options`

    kind       one of `_KINDS`
    class      shares of bytes and work, what it is (batch, sequence, region, residual stream), how
               often it still divides, what it meets on the axis, and the seconds that reducing its
               partial sums takes, over the step's
    leaf       share of bytes, levels before and after, what already splits it, the seconds that
               gathering it takes, over the step's
    axis       size, the seconds that reducing all parameters along it takes, over the step's, what
               is on it; of an axis that the move goes to, the same
    habit      in how many of the mesh's presets the decision is as the move makes it
    price      logs of ratios of step, compute, waiting and peak to the point's, and to the limit;
               zeros until the move is priced                        -> in: `Options.priced`

"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
import math
from typing import NamedTuple

import numpy as np

from automap.cost.collectives import CollectiveKind, collective_cost
from automap.search.context import LEAST_SECONDS, Candidate, SearchContext
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
    moves,
)
from automap.space.point import Point
from automap.space.space import Space
from automap.topology.mesh import Mesh
from hlo_tools.opcodes import DOT
from hlo_tools.rules import FactorKind


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
_CLASS, _LEAF, _AXIS, _HABIT, PRICE_FEATURES = 13, 7, 9, 2, 8
_STRUCTURE = 2 + len(_KINDS) + _CLASS + _LEAF + 2 * _AXIS + _HABIT
MOVE_FEATURES = _STRUCTURE + PRICE_FEATURES
STATE_FEATURES = 13
# Ratios are of seconds: added to both, it keeps the logs of plans that never wait finite.
_LEAST_SHARE = 1e-3
# Logs of ratios beyond it say no more.
MOST_LOG = 4.0
_MOST_PRESETS = 12


@dataclass(frozen=True, slots=True)
class Options:
    """What may be done at a point: `moves[0]` is None, to leave it; `points` are where they lead.

    `features` [A, MOVE_FEATURES] and `flat` [STATE_FEATURES] are float32; `saved` [A] is what each
    saves of the cost at once, 0 until it is priced, and -inf if it is not allowed.
    """

    moves: tuple[Move | None, ...]
    points: tuple[Point, ...]
    features: np.ndarray
    flat: np.ndarray
    saved: np.ndarray

    def priced(
        self,
        context: SearchContext,
        current: Candidate,
        places: Sequence[int],
        candidates: Sequence[Candidate | None],
    ) -> "Options":
        """The same with the prices of the options at `places`."""
        features, saved = self.features.copy(), self.saved.copy()
        before = context.objective.cost(current.estimate)
        for place, candidate in zip(places, candidates, strict=True):
            if candidate is None:
                saved[place] = -np.inf
                continue
            saved[place] = before - context.objective.cost(candidate.estimate)
            features[place, _STRUCTURE:] = _price(context, current, candidate)
        return replace(self, features=features, saved=saved)


def _price(context: SearchContext, current: Candidate, candidate: Candidate) -> list[float]:
    now, then = current.estimate, candidate.estimate
    whole = max(now.step_seconds, LEAST_SECONDS)
    return [
        1.0,
        log_ratio(then.step_seconds, now.step_seconds, LEAST_SECONDS),
        log_ratio(then.compute_seconds, now.compute_seconds, LEAST_SECONDS),
        log_ratio(then.collective_seconds, now.collective_seconds, _LEAST_SHARE * whole),
        log_ratio(then.hidden_seconds, now.hidden_seconds, _LEAST_SHARE * whole),
        log_ratio(then.peak_bytes, now.peak_bytes, 1.0),
        log_ratio(then.peak_bytes, context.objective.memory_limit_bytes, 1.0),
        float(context.objective.fits(then)),
    ]


class AxisSeen(NamedTuple):
    """An axis at a point: log of its size, log of the seconds of reducing all parameters along it
    over the step's, how much that is more than along the fastest axis, and what is on it, at last
    how far leaves are stored split.
    """

    size: float
    reduced: float
    slower: float
    classes: float
    has_batch: float
    has_sequence: float
    bytes_share: float
    work_share: float
    stored: float


def log_ratio(then: float, now: float, least: float) -> float:
    """The logarithm of a ratio, with `least` added to both sides and no further from 0 than
    MOST_LOG.
    """
    # An unlimited memory is no number of bytes.
    if math.isinf(now):
        return -MOST_LOG
    ratio = math.log((max(then, 0.0) + least) / (max(now, 0.0) + least))
    return min(max(ratio, -MOST_LOG), MOST_LOG)


def leaf_shares(space: Space) -> np.ndarray:
    """The share of the parameters' bytes of each leaf class, float [leaves]."""
    n_bytes = np.array([leaf.n_bytes * len(leaf.inputs) for leaf in space.leaves], float)
    return n_bytes / max(n_bytes.sum(), 1)


def class_shares(space: Space) -> np.ndarray:
    """(share of the parameters' bytes, share of the work) of each class, float [classes, 2]."""
    problem = space.problem
    done, total = problem.work.by_class, problem.work.total
    shares = np.zeros((problem.n_classes, 2))
    for leaf, share in zip(space.leaves, leaf_shares(space).tolist(), strict=True):
        # A leaf counts for every class that it holds, once each.
        for group_class in {*leaf.compute, *leaf.regional}:
            if group_class < problem.n_classes:
                shares[group_class, 0] += share
    for group_class in range(problem.n_classes):
        compute_class = problem.compute_class(group_class)
        # Work is counted by compute classes: a regional class has that of the one that it is a
        # part of.
        shares[group_class, 1] = done.get(compute_class, 0.0) / max(total, 1.0)
    return shares


class Seen:
    """Descriptions for one search; what does not change in it is worked out once."""

    def __init__(self, context: SearchContext):
        """Presets are those that the context has priced."""
        self._context, self._space = context, context.space
        self._seconds: dict[tuple[Mesh, tuple[int, ...], float], float] = {}
        self._presets: dict[Mesh, list[Candidate]] = {}

    def options(self, current: Candidate, turn: int) -> Options:
        """What may be done at a point, nothing of it priced; `turn` counts those before."""
        context, space, point = self._context, self._space, current.point
        listed: list[Move | None] = [None]
        points = [point]
        for move in moves(space, point):
            moved = context.pinned.impose(move.apply(space, point))
            if moved != point and space.is_valid(moved):
                listed.append(move)
                points.append(moved)
        axes = self.axes(current)
        features = np.zeros((len(listed), MOVE_FEATURES), np.float32)
        features[0, 0] = 1.0
        for place, (move, moved) in enumerate(zip(listed, points, strict=True)):
            if move is not None:
                features[place, 1:_STRUCTURE] = self._move(current, axes, move, moved)
        flat = np.array(self.state(current, turn), np.float32)
        saved = np.zeros(len(listed), np.float32)
        return Options(tuple(listed), tuple(points), features, flat, saved)

    def presets(self, mesh: Mesh) -> list[Candidate]:
        """The best of a mesh when it is first asked about: presets, where a search begins."""
        if mesh not in self._presets:
            self._presets[mesh] = self._context.priced_on(mesh)[:_MOST_PRESETS]
        return self._presets[mesh]

    @cached_property
    def _leaf_shares(self) -> list[float]:
        return leaf_shares(self._space).tolist()

    @cached_property
    def _class_shares(self) -> list[list[float]]:
        return class_shares(self._space).tolist()

    @cached_property
    def _parameter_bytes(self) -> float:
        return float(sum(leaf.n_bytes * len(leaf.inputs) for leaf in self._space.leaves))

    @cached_property
    def _summed_bytes(self) -> dict[int, float]:
        """Bytes of the results of products that sum over each class: partial sums if it is
        split.
        """
        problem, summed = self._space.problem, dict[int, float]()
        for index, op in enumerate(problem.graph.ops):
            if op.opcode != DOT:
                continue
            n_bytes = sum(problem.graph.values[v].n_bytes for v in op.outputs) * op.trip_count
            factors = problem.linkage.rules[index].factors
            for factor, group in zip(factors, problem.linkage.factor_groups[index].tolist()):
                if factor.kind is FactorKind.REDUCTION and group >= 0:
                    group_class = int(problem.class_of_group[group])
                    summed[group_class] = summed.get(group_class, 0.0) + n_bytes
        return summed

    def _reduced(self, current: Candidate, axes: tuple[int, ...], n_bytes: float) -> float:
        """Log of the seconds of an all-reduce along axes over the step's."""
        mesh = current.point.mesh
        key = (mesh, axes, n_bytes)
        if key not in self._seconds:
            topology = self._context.evaluator.topology
            line = collective_cost(CollectiveKind.ALL_REDUCE, topology, mesh.sizes, axes)
            self._seconds[key] = float(line.seconds(n_bytes))
        return log_ratio(self._seconds[key], current.estimate.step_seconds, 1e-6)

    def state(self, current: Candidate, turn: int) -> list[float]:
        """A point as `STATE_FEATURES` numbers; `turn` counts the turns before."""
        context, estimate = self._context, current.estimate
        step = max(estimate.step_seconds, LEAST_SECONDS)
        sizes = current.point.mesh.sizes
        best = context.best or current
        behind = context.objective.cost(estimate) - context.objective.cost(best.estimate)
        beside = context.evaluator.backend.collectives == "beside kernels"
        limit = context.objective.memory_limit_bytes
        return [
            estimate.collective_seconds / step,
            estimate.hidden_seconds / step,
            log_ratio(estimate.peak_bytes, limit, 1.0),
            float(context.objective.fits(estimate)),
            len(sizes) / 3.0,
            math.log2(math.prod(sizes)) / 6.0,
            min(behind, MOST_LOG),
            self._reduced(current, tuple(range(len(sizes))), self._parameter_bytes),
            log_ratio(self._parameter_bytes, limit, 1.0),
            float(beside),
            len(self._space.candidates) / 10.0,
            len(self._space.leaves) / 20.0,
            turn / 4.0,
        ]

    def axes(self, current: Candidate) -> list[AxisSeen]:
        """The axes of a point."""
        space, point = self._space, current.point
        batches = set(space.batches)
        numbers = []
        slowest = [
            self._reduced(current, (a,), self._parameter_bytes)
            for a in range(len(point.mesh.sizes))
        ]
        for axis, (size, classes) in enumerate(zip(point.mesh.sizes, point.compute, strict=True)):
            levels = zip(point.storage[axis], self._leaf_shares)
            numbers.append(
                AxisSeen(
                    math.log2(size) / 4.0,
                    slowest[axis],
                    slowest[axis] - min(slowest),
                    len(classes) / 4.0,
                    float(not batches.isdisjoint(classes)),
                    float(any(c in space.activations and c not in batches for c in classes)),
                    sum(self._class_shares[c][0] for c in classes),
                    sum(self._class_shares[c][1] for c in classes),
                    sum(level * share for level, share in levels) / 2.0,
                )
            )
        return numbers

    def _move(
        self, current: Candidate, axes: list[AxisSeen], move: Move, moved: Point
    ) -> list[float]:
        """Everything of a move but its price."""
        kinds = [float(isinstance(move, kind)) for kind in _KINDS]
        group = [0.0] * _CLASS
        leaf = [0.0] * _LEAF
        here = there = AxisSeen(*[0.0] * _AXIS)
        taken_off = 0.0
        match move:
            case ClassToggle(axis, group_class) | ClassJoin(axis, group_class):
                taken_off = float(group_class in current.point.compute[axis])
                group, here = self._class(current, group_class, axis), axes[axis]
            case AxisChange(axis, other, group_class):
                group = self._class(current, group_class, other)
                here, there = axes[axis], axes[other]
            case DimChange(group_class) | SmallPartsChange(group_class):
                group = self._class(current, group_class, None)
            case StorageChange(axis, level):
                leaf, here = self._leaf(current, range(len(self._space.leaves)), axis), axes[axis]
                leaf[2] = level / 2.0
            case LeafStorageChange(axis, number, level):
                leaf, here = self._leaf(current, [number], axis), axes[axis]
                leaf[2] = level / 2.0
            case AxisSwap(first, second):
                here, there = axes[first], axes[second]
        habit = self._habit(current.point, moved)
        return [taken_off, *kinds, *group, *leaf, *here, *there, *habit]

    def _class(self, current: Candidate, group_class: int, axis: int | None) -> list[float]:
        space, point = self._space, current.point
        problem = space.problem
        on = [
            size
            for size, classes in zip(point.mesh.sizes, point.compute, strict=True)
            if group_class in classes
        ]
        split = math.prod(on)
        limit = float(problem.limits[group_class])
        here = point.compute[axis] if axis is not None else ()
        met = [c for c in here if space.meet(c, group_class)]
        summed = self._summed_bytes.get(problem.compute_class(group_class), 0.0)
        along = (axis,) if axis is not None else ()
        return [
            *self._class_shares[group_class],
            float(group_class in space.batches),
            float(group_class in space.activations),
            float(group_class in space.regional),
            float(group_class == space.residual),
            float(group_class in space.repeated_classes),
            min(math.log2(max(limit / split, 1.0)), 12.0) / 12.0,
            math.log2(split) / 4.0,
            sum(self._class_shares[c][0] for c in met),
            sum(self._class_shares[c][1] for c in met),
            len(met) / 2.0,
            self._reduced(current, along, summed) if along and summed else -MOST_LOG,
        ]

    def _leaf(self, current: Candidate, numbers: Sequence[int], axis: int) -> list[float]:
        space, point = self._space, current.point
        levels = point.storage[axis]
        share = sum(self._leaf_shares[k] for k in numbers)
        weight = max(share, 1e-9)
        computed = sum(
            self._leaf_shares[k]
            for k in numbers
            if not space.leaves[k].splitting.isdisjoint(point.compute[axis])
        )
        others = sum(
            self._leaf_shares[k] * max(point.storage[a][k] for a in range(len(point.storage)))
            for k in numbers
        )
        return [
            share,
            sum(levels[k] * self._leaf_shares[k] for k in numbers) / weight / 2.0,
            0.0,
            computed / weight,
            others / weight / 2.0,
            len(numbers) / max(len(space.leaves), 1),
            self._reduced(current, (axis,), share * self._parameter_bytes),
        ]

    def _habit(self, point: Point, moved: Point) -> list[float]:
        """The share of the mesh's presets that agree with what a move changes, better ones counting
        more; whether the best does.
        """
        agreed = total = 0.0
        ranked = self.presets(point.mesh)
        # A move changes one axis or two: to compare all of every preset would take much longer.
        compute = [(a, m) for a, m in enumerate(moved.compute) if m != point.compute[a]]
        storage = [(a, m) for a, m in enumerate(moved.storage) if m != point.storage[a]]
        for rank, preset in enumerate(ranked, 1):
            other = preset.point
            agrees = all(other.compute[a] == m for a, m in compute) and all(
                other.storage[a] == m for a, m in storage
            )
            agreed, total = agreed + agrees / rank, total + 1.0 / rank
        first = bool(ranked) and ranked[0].point.compute == moved.compute
        return [agreed / max(total, 1.0), float(first)]
