"""Which plan is compiled next: the one that is expected to gain most on the best compiled plan.

    candidates   the best plans that were priced, the best on each mesh, every preset on every mesh
                                                                        -> in: `Candidates.build`
    x            predicted seconds of each kernel and of each collective by edge and kind
                                                                             -> in: `step_parts`
    expected     log step predicted + error believed (`automap.refine.error_model`), and the same
                 of the peak
    gain         expected improvement on the best compiled step, times the chance to fit in memory
                 (Schonlau et al. 1998)                                 -> in: `Candidates.gains`

As long as no compiled plan fits there is no step to improve on: then the plan that is most likely
to fit is next, of those that are as likely as not to, the one that is expected to be fastest.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
import math

import numpy as np

from automap.cost.evaluate import Estimate, Evaluator
from automap.cost.traffic.flows import KINDS
from automap.policy import Policy
from automap.refine.error_model import (
    Beliefs,
    ErrorModel,
    ErrorScale,
    chance_to_fit,
    expected_improvement,
)
from automap.refine.trials import Trial
from automap.search.context import Candidate, SearchContext
from automap.space.point import Point, SplitClasses
from automap.space.presets import PRESETS
from automap.topology.mesh import Mesh


_LIKELY = 0.5


def step_parts(evaluator: Evaluator, split_classes: SplitClasses) -> np.ndarray:
    """Predicted seconds of each kernel, then of each edge's collectives by kind, [parts]; sums over
    a step.
    """
    tables, priced = evaluator.tables, evaluator.price_point(split_classes)
    collectives = priced.collectives
    n_results, n_edges = (
        len(tables.results.count),
        len(tables.results.count) + len(tables.operands.count),
    )
    edge = collectives.edge + np.where(collectives.on_operand, n_results, 0)
    seconds = (priced.collective_seconds + priced.overlapped_seconds) * collectives.count
    by_kind = np.bincount(
        edge * len(KINDS) + collectives.kind, weights=seconds, minlength=n_edges * len(KINDS)
    )
    return np.concatenate([priced.kernel_seconds * tables.kernels.count, by_kind])


@dataclass(frozen=True)
class Candidates:
    """Plans that may be compiled, those that were, and what is believed of their errors."""

    context: SearchContext
    candidates: Sequence[Candidate]
    trials: Sequence[Trial]

    @classmethod
    def build(
        cls, context: SearchContext, trials: Sequence[Trial], more: Iterable[Point]
    ) -> "Candidates":
        """The candidates of a search, with the points of `trials` and `more`."""
        chosen = {c.point: c for c in context.best_candidates(context.policy.refined_candidates)}
        by_mesh: dict[Mesh, Candidate] = {}
        for candidate in context.best_candidates(context.policy.ranked_plans):
            by_mesh.setdefault(candidate.point.mesh, candidate)
        chosen |= {c.point: c for c in by_mesh.values()}
        earlier = (("search", point) for point in (*(t.point for t in trials), *more))
        for origin, point in (*earlier, *_presets(context)):
            estimate = context.estimate(point)
            if estimate is not None:
                chosen[point] = Candidate(point, estimate, origin)
        return cls(context, tuple(chosen.values()), tuple(trials))

    def expected_seconds(self) -> np.ndarray:
        """The step of each candidate, as it is expected to be compiled."""
        return np.exp(self._log_steps + self._errors.means)

    def expected_bytes(self) -> np.ndarray:
        """The peak of each candidate, as it is expected to be compiled."""
        return np.exp(self._log_peaks + self._memory_errors.means)

    def gains(self, best_seconds: float) -> np.ndarray:
        """The fraction of `best_seconds` that compiling each candidate is expected to gain; 0 of
        those that were compiled.
        """
        log_steps = self._log_steps + self._errors.means - math.log(best_seconds)
        gains = expected_improvement(log_steps, self._errors.deviations) * self._chances
        return np.where(self._is_known, 0.0, gains)

    def most_likely(self) -> int | None:
        """The candidate to compile while none of those compiled fits, None if all are known."""
        unknown = np.flatnonzero(~self._is_known)
        if not len(unknown):
            return None
        seconds = self.expected_seconds()

        def key(index: int) -> tuple[float, float]:
            return (-min(self._chances[index], _LIKELY), seconds[index])

        return int(min(unknown.tolist(), key=key))

    @cached_property
    def _is_known(self) -> np.ndarray:
        known = {t.point for t in self.trials}
        return np.array([c.point in known for c in self.candidates])

    @cached_property
    def _chances(self) -> np.ndarray:
        limit = math.log(self.context.objective.memory_limit_bytes)
        return chance_to_fit(self._log_peaks, self._memory_errors, limit)

    @cached_property
    def _log_steps(self) -> np.ndarray:
        return _logs([c.estimate.step_seconds for c in self.candidates])

    @cached_property
    def _log_peaks(self) -> np.ndarray:
        return _logs([c.estimate.peak_bytes for c in self.candidates])

    @cached_property
    def _parts(self) -> np.ndarray:
        """What each candidate does, [candidates, parts]."""
        return np.array([self._point_parts(c.point) for c in self.candidates])

    def _point_parts(self, point: Point) -> np.ndarray:
        return step_parts(self.context.evaluator, self.context.space.split_classes(point))

    @cached_property
    def _errors(self) -> Beliefs:
        policy = self.context.policy
        known = [
            (t.point, math.log(seconds) - _log(self._estimate(t.point).step_seconds))
            for t in self.trials
            if (seconds := t.record.compiled_seconds)
        ]
        return self._beliefs(known, policy.shared_error, policy.own_error, policy)

    @cached_property
    def _memory_errors(self) -> Beliefs:
        policy = self.context.policy
        known = [
            (t.point, math.log(peak) - _log(self._estimate(t.point).peak_bytes))
            for t in self.trials
            if (peak := t.record.compiled_bytes)
        ]
        return self._beliefs(known, policy.shared_memory_error, policy.own_memory_error, policy)

    def _beliefs(
        self, known: Sequence[tuple[Point, float]], shared: float, own: float, policy: Policy
    ) -> Beliefs:
        model = ErrorModel(
            scale=ErrorScale(shared=shared, own=own, reach=policy.error_reach),
            step_seconds=float(self._parts.sum(axis=1).min()),
            points=np.array([self._point_parts(point) for point, _ in known]),
            errors=np.array([error for _, error in known]),
        )
        return model.at(self._parts)

    def _estimate(self, point: Point) -> Estimate:
        estimate = self.context.estimate(point)
        assert estimate is not None  # noqa: S101 - it was priced before it was compiled
        return estimate


def _presets(context: SearchContext) -> Iterator[tuple[str, Point]]:
    """(name, point) of every preset on every mesh that holds other plans, pins kept."""
    for name in context.presets:
        for mesh in context.distinct_meshes:
            for point in PRESETS[name].points(context.space, mesh):
                yield name, context.pinned.nearest(point)


def _logs(values: Sequence[float]) -> np.ndarray:
    return np.array([_log(value) for value in values])


def _log(value: float) -> float:
    """Of nothing, which has no logarithm, that of the smallest number."""
    return math.log(max(value, np.finfo(float).tiny))
