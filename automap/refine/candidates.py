"""Which plan is compiled next: the one that is expected to gain most on the best compiled plan.

    candidates   the best plans that were priced, the best on each mesh, every preset on every mesh
                                                                        -> in: `Candidates.build`
    x            predicted seconds of each kernel and of each collective by edge and kind
                                                                             -> in: `step_parts`
    expected     log step predicted + error believed (`ErrorModel`), and the same
                 of the peak
    gain         expected improvement on the best compiled step, times the chance to fit in memory
                 (Schonlau et al. 1998)                                 -> in: `Candidates.gains`
    next         the plans that are given as first; then the one that gains most, every second time
                 of the presets; where none promises enough, or time is left for one only, presets
                 that are expected to be near the best                -> in: `Candidates.next_index`

As long as no compiled plan fits there is no step to improve on: then the plan that is most likely
to fit is next, of those that are as likely as not to, the one that is expected to be fastest.

How wrong a prediction is for a plan that was not compiled, told from those that were.

A plan is a point x: its predicted seconds of each kernel and collective. Its error is

    e(x) = log (compiled / predicted)

a Gaussian process with mean 0 and covariance                              -> in: `_covariance`

    k(x, x') = shared^2 + own^2 exp(-d(x, x') / reach) + alone^2 [x and x' are one plan]
    d(x, x') = sum_i |x_i - x'_i| / (2 t)       t: the seconds of the step that distances are of

so that all plans of a step are wrong together by about `shared`; besides each by about `own`, which
plans that do the same have in common; and by `alone`, which no two plans have: the compiler makes
something else of plans that are equal in all that is predicted. It returns to the shared part far
from compiled plans. With errors e of n compiled plans, K = k of each pair of them,
k* = k of a plan to each, mean and variance of its error are               -> in: `ErrorModel.at`

    m = k* K^-1 e        s^2 = (k(x, x) - k* K^-1 k*) (1 + e K^-1 e) / (1 + n)

(Rasmussen and Williams 2006, algorithm 2.1). The last factor is 1 where errors are as large as
`shared` and `own` say, and tells how large they are for this step; the ones stand for a plan of the
size that was expected before. The exponential of a city-block distance is a covariance in any
number of dimensions.

How much shorter than the best step a plan of log step N(m, s^2), relative to the best, is expected
to be, where a longer one gains nothing (Jones et al. 1998, for a logarithm)
                                                                 -> in: `expected_improvement`

    E [1 - e^u]^+ = Phi(-m / s) - exp(m + s^2 / 2) Phi(-m / s - s)
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
import math

import numpy as np
import scipy  # its `special` is loaded at first use, which most runs never come to

from automap.cost.evaluate import Estimate, Evaluator
from automap.cost.traffic.flows import KINDS
from automap.refine.trials import Trial, fastest
from automap.search.context import Candidate, SearchContext
from automap.space.point import Point, SplitClasses
from automap.space.presets import PRESETS
from automap.topology.mesh import Mesh


_LIKELY = 0.5
# What is added to the variance of a compiled plan, so that two that are the same can be told apart.
_JITTER = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorScale:
    """Standard deviations of log errors: what all plans of a step share, what each has of its
    own, which fades with the distance `reach`, and what it has alone.
    """

    shared: float
    own: float
    reach: float
    alone: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Beliefs:
    """What is believed of the errors of some plans: `means` and `deviations` [plans] of logs."""

    means: np.ndarray
    deviations: np.ndarray


@dataclass(frozen=True, kw_only=True)
class ErrorModel:
    """Errors of compiled plans: `points` [compiled, parts] of seconds, `errors` [compiled] of
    logarithms; `step_seconds` is the step that distances are fractions of.
    """

    scale: ErrorScale
    step_seconds: float
    points: np.ndarray
    errors: np.ndarray

    def at(self, points: np.ndarray) -> Beliefs:
        """What is believed of plans at `points` [plans, parts] that were not compiled."""
        prior = self._prior
        if not len(self.errors):
            n_plans = len(points)
            return Beliefs(means=np.zeros(n_plans), deviations=np.full(n_plans, prior**0.5))
        towards = self._covariance(points)
        # By Cholesky's factor: K is positive definite, as its jitter keeps equal plans apart.
        factor = np.linalg.cholesky(self.among)
        whitened = np.linalg.solve(factor, towards.T)
        errors = np.linalg.solve(factor, self.errors)
        means = whitened.T @ errors
        size = (1 + errors @ errors) / (1 + len(errors))
        variances = size * (prior - (whitened**2).sum(axis=0))
        return Beliefs(means=means, deviations=np.sqrt(np.maximum(variances, 0.0)))

    @property
    def among(self) -> np.ndarray:
        """K, the covariance of the errors of the compiled plans, [compiled, compiled]."""
        apart = self.scale.alone**2 + _JITTER * self._prior
        return self._covariance(self.points) + apart * np.eye(len(self.errors))

    @property
    def _prior(self) -> float:
        """The variance of an error of which nothing is known."""
        return self.scale.shared**2 + self.scale.own**2 + self.scale.alone**2

    def _covariance(self, points: np.ndarray) -> np.ndarray:
        """Covariance of errors at `points` with those of the compiled plans, [plans, compiled],
        without what each has alone.
        """
        # Plan by plan: all differences at once would be [plans, compiled, parts].
        apart = np.stack(
            [np.abs(points - compiled).sum(axis=1) for compiled in self.points], axis=1
        )
        distance = apart / (2 * self.step_seconds)
        return self.scale.shared**2 + self.scale.own**2 * np.exp(-distance / self.scale.reach)


def expected_improvement(means: np.ndarray, deviations: np.ndarray) -> np.ndarray:
    """By what fraction of the best step plans are expected to be shorter, [plans].

    `means` and `deviations` are of the logarithm of a plan's step over the best one.
    """
    sure = deviations <= 0
    s = np.where(sure, 1.0, deviations)
    # In logarithms, as the exponential may overflow where its factor is nothing.
    much = np.exp(np.minimum(means + s**2 / 2 + scipy.special.log_ndtr(-means / s - s), 700.0))
    gain = np.where(sure, -np.expm1(np.minimum(means, 0.0)), scipy.special.ndtr(-means / s) - much)
    return np.maximum(gain, 0.0)


def chance_to_fit(log_peaks: np.ndarray, beliefs: Beliefs, log_limit: float) -> np.ndarray:
    """The probability that peaks, predicted as `log_peaks` [plans], are within the limit."""
    margin = log_limit - log_peaks - beliefs.means
    s = np.where(beliefs.deviations > 0, beliefs.deviations, 1.0)
    return np.where(beliefs.deviations > 0, scipy.special.ndtr(margin / s), margin >= 0)


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
    seconds = priced.collective_seconds + priced.overlapped_seconds + priced.copying_seconds
    seconds *= collectives.count
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

    def next_index(self, first: Sequence[Point], *, is_last: bool = False) -> int | None:
        """Which candidate is compiled next, None if none promises enough; those of `first`, which
        are candidates, come before all others. `is_last`: there is time for one only.
        """
        known = {t.point for t in self.trials}
        waiting = [point for point in first if point not in known]
        if waiting:
            return [c.point for c in self.candidates].index(waiting[0])
        best = fastest(self.trials)
        best_seconds = None if best is None else self.trials[best].record.compiled_seconds
        if best_seconds is None:
            return self.most_likely()
        gains = self.gains(best_seconds)
        every = range(len(gains))
        presets = [i for i in every if self.candidates[i].origin in self.context.presets]
        near = self._nearest(presets, best_seconds)
        if is_last and near is not None:
            return near
        for those in (presets if len(self.trials) % 2 else (), every):
            index = max(those, key=lambda i: gains[i], default=None)
            if index is not None and gains[index] >= self.context.policy.least_improvement:
                return index
        return near

    def _nearest(self, presets: Sequence[int], best_seconds: float) -> int | None:
        """The fastest of the presets that are expected to be near the best compiled plan, and to
        fit; None if all of them were compiled.

        They are what people write by hand: without them nobody knows that the plan is better.
        """
        seconds = self.expected_seconds()
        most = (1 + self.context.policy.near_preset) * best_seconds
        near = [
            i
            for i in presets
            if not self._is_known[i] and seconds[i] <= most and self._chances[i] >= _LIKELY
        ]
        return min(near, key=lambda i: seconds[i], default=None)

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
        numbers = self.context.evaluator.backend.shared_numbers
        known = [
            (t.point, math.log(seconds) - _log(self._estimate(t.point).step_seconds))
            for t in self.trials
            if (seconds := t.record.compiled_seconds)
        ]
        scale = ErrorScale(
            shared=numbers.shared_error,
            own=numbers.own_error,
            reach=numbers.error_reach,
            alone=numbers.alone_error,
        )
        return self._beliefs(known, scale)

    @cached_property
    def _memory_errors(self) -> Beliefs:
        policy = self.context.policy
        known = [
            (t.point, math.log(peak) - _log(self._estimate(t.point).peak_bytes))
            for t in self.trials
            if (peak := t.record.compiled_bytes)
        ]
        scale = ErrorScale(
            shared=policy.shared_memory_error,
            own=policy.own_memory_error,
            reach=policy.memory_error_reach,
        )
        return self._beliefs(known, scale)

    def _beliefs(self, known: Sequence[tuple[Point, float]], scale: ErrorScale) -> Beliefs:
        return self.error_model(known, scale).at(self._parts)

    def error_model(self, known: Sequence[tuple[Point, float]], scale: ErrorScale) -> ErrorModel:
        """The model of points whose errors are known."""
        return ErrorModel(
            scale=scale,
            step_seconds=float(self._parts.sum(axis=1).min()),
            points=np.array([self._point_parts(point) for point, _ in known]),
            errors=np.array([error for _, error in known]),
        )

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
