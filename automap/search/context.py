"""What every strategy works with: the space, the evaluator, the constraints, and the best so far.

Pins restrict the space itself: no strategy ever proposes a point that breaks one   -> in: `pinned`

Of two plans one that fits is better than one that does not; among those that fit, the one with the
shorter step, and of equal ones the one that surely fits; among those that do not, the one with the
lower peak                                                           -> in: `Objective.key`
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
import math

from automap.cost.evaluate import Estimate, Evaluator
from automap.deadline import Deadline
from automap.policy import Policy, default_policy
from automap.search.factored.copied import Batches
from automap.search.pinned import Pinned
from automap.space.pins import Pin
from automap.space.point import Point, SplitClasses
from automap.space.presets import PRESETS, imposed_point
from automap.space.space import Space
from automap.topology import distinct_meshes
from automap.topology.mesh import Mesh


@dataclass(frozen=True, slots=True)
class Candidate:
    """A point and what it costs."""

    point: Point
    estimate: Estimate
    origin: str


@dataclass(frozen=True, slots=True)
class Objective:
    """Shortest step that stays within `memory_limit_bytes` per device.

    `memory_margin` is by which share of what is predicted the compiler may need more.
    """

    memory_limit_bytes: float
    memory_margin: float = 0.0

    def fits(self, estimate: Estimate) -> bool:
        """Whether a plan stays within the memory of a device."""
        return estimate.peak_bytes <= self.memory_limit_bytes

    def is_unsure(self, estimate: Estimate) -> bool:
        """Whether a plan fits, but would not if the compiler needed more by the margin."""
        most_bytes = estimate.peak_bytes * (1.0 + self.memory_margin)
        return self.fits(estimate) and most_bytes > self.memory_limit_bytes

    def key(self, estimate: Estimate) -> tuple[float, ...]:
        """Smaller is better."""
        # The first number keeps the two kinds apart: of plans that do not fit the one that comes
        # closest to the limit is best.
        if self.fits(estimate):
            unsure = float(self.is_unsure(estimate))
            return (0.0, estimate.step_seconds, unsure, estimate.peak_bytes)
        return (1.0, estimate.peak_bytes, estimate.step_seconds)

    def cost(self, estimate: Estimate) -> float:
        """One number to learn from: log step seconds, and of what does not fit more than twice as
        much, the more the further it is from fitting.
        """
        seconds = math.log(max(estimate.step_seconds, LEAST_SECONDS))
        if self.fits(estimate):
            return seconds
        over = estimate.peak_bytes / self.memory_limit_bytes
        return seconds + TOO_LARGE + OVER_WEIGHT * math.log(over)


# The time of a step of nothing, which has no logarithm.
LEAST_SECONDS = 1e-9
# So much more does a plan cost that does not fit, and so much for the logarithm of the excess.
TOO_LARGE = math.log(2.0)
OVER_WEIGHT = 2.0
# A plan meets a bound if it is above it by no more: sums of the same numbers in another order.
EQUAL = 1e-9
# Nominal seconds of a kernel or an edge in one evaluation: six models on 2 cores, 2026-11.
_SECONDS_PER_ROW = 8e-7
# Evaluations between two reports of progress when nothing better is found.
_REPORT_EVERY = 100


class OutOfBudget(Exception):
    """Raised inside a strategy when its time is up; the best so far stands."""


@dataclass
class SearchContext:
    """One search in progress. Strategies call `evaluate` and never keep the best themselves.

    `presets` are the names of those it starts from; `bound_seconds` is what one has proven: no plan
    of the space that keeps the pins and fits on these meshes has a shorter step. `notes` are for
    the plan's warnings. `work_left_seconds` are those of a nominal machine: work is counted
    (`spend`), not timed, so that it ends at the same place on every machine. A search that
    `is_brief` leaves its dearest parts out where memory is short, and `kept_preset` says why a
    preset is its plan.
    """

    space: Space
    evaluator: Evaluator
    meshes: Sequence[Mesh]
    objective: Objective
    pins: Sequence[Pin]
    seed: int
    deadline: Deadline
    on_progress: Callable[["SearchContext"], None]
    presets: Sequence[str] = tuple(PRESETS)
    policy: Policy = field(default_factory=default_policy)
    best: Candidate | None = None
    best_per_preset: dict[str, Candidate] = field(default_factory=dict)
    bound_seconds: float | None = None
    notes: list[str] = field(default_factory=list)
    is_brief: bool = False
    kept_preset: tuple[str, ...] = ()
    # Mutable on purpose: a context is one search, and what it has learnt so far.
    work_left_seconds: float = math.inf
    # Different points may split the same classes and then are one plan, which is priced once.
    _seen: dict[SplitClasses, Estimate] = field(default_factory=dict)
    _priced: dict[Point, Estimate | None] = field(default_factory=dict)

    @property
    def evaluations(self) -> int:
        """Number of different plans priced."""
        return len(self._seen)

    @property
    def seconds_left(self) -> float:
        """Seconds of the budget that are left."""
        return self.deadline.seconds_left

    @property
    def refused_seconds(self) -> float:
        """The shortest step of all that were priced and do not fit; inf if all fit."""
        refused = self.refused()
        return math.inf if refused is None else refused.estimate.step_seconds

    def frontier(self) -> list[tuple[float, float]]:
        """(step seconds, peak bytes) of the plans that were priced and that no other is faster and
        smaller than, the fastest first.
        """
        kept: list[tuple[float, float]] = []
        for seconds, n_bytes in sorted((e.step_seconds, e.peak_bytes) for e in self._seen.values()):
            if not kept or n_bytes < kept[-1][1]:
                kept.append((seconds, n_bytes))
        return kept

    def refused(self) -> Candidate | None:
        """The point with the shortest step of all that were priced and do not fit."""
        fits = self.objective.fits
        priced = ((p, e) for p, e in self._priced.items() if e is not None and not fits(e))
        row = min(priced, key=lambda row: row[1].step_seconds, default=None)
        return row and Candidate(*row, "search")

    @property
    def fitting_seconds(self) -> float:
        """The step of the best plan if it fits, else inf."""
        if self.best is None or not self.objective.fits(self.best.estimate):
            return math.inf
        return self.best.estimate.step_seconds

    @cached_property
    def distinct_meshes(self) -> Sequence[Mesh]:
        """One of each that hold the same plans; pins, and shardings in the step's code, call axes
        by name.
        """
        # With names that matter, meshes that are equal but for their names are not.
        if self.pins or self.space.problem.imposed.specs_by_value:
            return self.meshes
        return distinct_meshes(self.evaluator.topology, self.meshes)

    @contextmanager
    def within(self, nominal_seconds: float, cut: str | None = None) -> Iterator[None]:
        """A part of a search that may take no more work, with a note where `cut` says so; the
        budget may end it before.
        """
        # The outer part's allowance is put back as it was: what the inner one spends is not taken
        # from it.
        before = self.work_left_seconds
        self.work_left_seconds = min(before, nominal_seconds)
        try:
            yield
        except OutOfBudget:
            # The whole search is over, not only this part of it.
            if self.deadline.is_over:
                raise
            if cut is not None:
                self.notes.append(cut)
        finally:
            self.work_left_seconds = before

    def spend(self, nominal_seconds: float) -> None:
        """Count work, by the seconds that it takes on a nominal machine, and `check_time`."""
        self.work_left_seconds -= nominal_seconds
        self.check_time()

    def raise_bound(self, seconds: float) -> None:
        """No plan is below `seconds`, as far as was proven, nor is one better than the best that
        fits if that is less.
        """
        self.bound_seconds = max(min(seconds, self.fitting_seconds), self.bound_seconds or 0.0)

    @property
    def is_proven(self) -> bool:
        """Whether the best plan is proven to be one of the best."""
        gap = None if self.best is None else self.gap(self.best)
        return gap is not None and gap <= EQUAL

    def gap(self, candidate: Candidate) -> float | None:
        """The fraction that a candidate's step is above the proven bound; None if it does not fit
        or nothing is proven.
        """
        if not self.bound_seconds or not self.objective.fits(candidate.estimate):
            return None
        return max(candidate.estimate.step_seconds / self.bound_seconds - 1, 0.0)

    def evaluate(self, point: Point, origin: str) -> Candidate | None:
        """Price a point and keep it if it is the best; None if it is not allowed.

        Raises `OutOfBudget` when the time is up.
        """
        self.spend(self.point_seconds)
        return self.consider(point, origin)

    def evaluate_all(self, points: Iterable[Point], origin: str) -> Iterator[Candidate | None]:
        """`evaluate` of each point, in order; those of one mesh are priced together."""
        rest = iter(points)
        # Lazily, as a caller may stop early or the budget may end in the middle.
        while chunk := list(islice(rest, self._batches.most_points)):
            self.spend(self.point_seconds * len(chunk))
            self.price_together(chunk)
            yield from (self.consider(point, origin) for point in chunk)

    def price_together(self, points: Sequence[Point]) -> None:
        """Have the estimates of points ready that `consider` and `estimate` would price one by one,
        which takes about twice as long.
        """
        # Those that are allowed; the others are left to `consider`, which gives None for them.
        classes_by_point: dict[Point, SplitClasses] = {}
        by_mesh: dict[Mesh, dict[SplitClasses, None]] = {}
        for point in points:
            split_classes = None if point in self._priced else self._allowed_split_classes(point)
            if split_classes is not None:
                classes_by_point[point] = split_classes
                if split_classes not in self._seen:
                    # A dictionary as a set that keeps its order, in which the estimates come back.
                    by_mesh.setdefault(point.mesh, {})[split_classes] = None
        for together in by_mesh.values():
            rest = iter(together)
            while chunk := list(islice(rest, self._batches.most_points)):
                before = self.evaluations
                self._seen.update(zip(chunk, self._batches.estimates(chunk), strict=True))
                # A batch may step over a multiple of the evaluations between two reports.
                if before // _REPORT_EVERY < self.evaluations // _REPORT_EVERY:
                    self.on_progress(self)
        self._priced.update(
            {point: self._seen[split_classes] for point, split_classes in classes_by_point.items()}
        )

    @cached_property
    def point_seconds(self) -> float:
        """What one evaluation takes on a nominal machine."""
        tables = self.evaluator.tables
        rows = len(tables.kernels.count), len(tables.operands.count), len(tables.results.count)
        return _SECONDS_PER_ROW * sum(rows)

    @cached_property
    def _batches(self) -> Batches:
        return Batches(self.evaluator)

    def check_time(self) -> None:
        """Raise `OutOfBudget` when the time is up, or the work that is allowed is done, and there
        is a plan.
        """
        is_over = self.work_left_seconds < 0 or self.deadline.is_over
        # Whatever the budget, a search has a plan to return when it ends.
        if is_over and self.best is not None:
            raise OutOfBudget

    def consider(self, point: Point, origin: str) -> Candidate | None:
        """`evaluate` whatever the time."""
        estimate = self.estimate(point)
        if estimate is None:
            return None
        candidate = Candidate(point, estimate, origin)
        if self.is_better(candidate, self.best):
            self.best = candidate
            self.on_progress(self)
        return candidate

    def estimate(self, point: Point) -> Estimate | None:
        """What a point costs, None if it is not allowed; it is not kept as the best."""
        if point not in self._priced:
            self._priced[point] = self._price(point)
        return self._priced[point]

    def _price(self, point: Point) -> Estimate | None:
        """`estimate` of a point that was not asked about; different points may be one plan."""
        split_classes = self._allowed_split_classes(point)
        if split_classes is None:
            return None
        estimate = self._seen.get(split_classes)
        if estimate is None:
            estimate = self._seen[split_classes] = self.evaluator.evaluate(split_classes)
            if len(self._seen) % _REPORT_EVERY == 0:
                self.on_progress(self)
        return estimate

    def _allowed_split_classes(self, point: Point) -> SplitClasses | None:
        """What a point splits, None if it does not divide or breaks a pin."""
        if not self.space.is_valid(point):
            return None
        split_classes = self.space.split_classes(point)
        return split_classes if self.pinned.keeps(point, split_classes) else None

    def priced_on(self, mesh: Mesh) -> list[Candidate]:
        """All points of a mesh that were priced so far, the best first."""
        priced = [(p, e) for p, e in self._priced.items() if e is not None and p.mesh == mesh]
        key = self.objective.key
        return [Candidate(p, e, "search") for p, e in sorted(priced, key=lambda row: key(row[1]))]

    def best_candidates(self, count: int) -> list[Candidate]:
        """The best `count` different plans priced so far, the best first.

        Plans of equal cost in every respect are taken for one: renaming axes of one size makes such
        twins.
        """
        key = self.objective.key
        priced = [(point, e) for point, e in self._priced.items() if e is not None]
        # By key: equal seconds and bytes are taken for the same plan under other names.
        chosen: dict[tuple[float, ...], Candidate] = {}
        for point, estimate in sorted(priced, key=lambda row: key(row[1])):
            if len(chosen) == count:
                break
            chosen.setdefault(key(estimate), Candidate(point, estimate, "search"))
        return list(chosen.values())

    def remember_preset(self, name: str, point: Point, estimate: Estimate) -> None:
        """Keep the best point of each preset."""
        candidate = Candidate(point, estimate, name)
        if self.is_better(candidate, self.best_per_preset.get(name)):
            self.best_per_preset[name] = candidate

    def is_better(self, candidate: Candidate, than: Candidate | None) -> bool:
        """Whether `candidate` beats the other, None being worst."""
        key = self.objective.key
        return than is None or key(candidate.estimate) < key(than.estimate)

    @cached_property
    def pinned(self) -> Pinned:
        """The pins, and points that keep them."""
        return Pinned(self.space, self.evaluator, self.pins)

    def empty(self, mesh: Mesh) -> Point:
        """Nothing split but what is pinned, and what the step's own code splits."""
        return self.pinned.nearest(imposed_point(self.space, mesh))
