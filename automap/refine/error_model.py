"""How wrong a prediction is for a plan that was not compiled, told from those that were.

A plan is a point x: its predicted seconds of each kernel and collective. Its error is

    e(x) = log (compiled / predicted)

a Gaussian process with mean 0 and covariance                              -> in: `_covariance`

    k(x, x') = shared^2 + own^2 exp(-d(x, x') / reach)
    d(x, x') = sum_i |x_i - x'_i| / (2 t)       t: the seconds of the step that distances are of

so that all plans of a step are wrong together by about `shared`, and besides each by about `own`,
which plans that do the same have in common. It is exact at plans that were compiled, and returns
to the shared part far from them. With errors e of n compiled plans, K = k of each pair of them,
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

from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr, ndtr


# What is added to the variance of a compiled plan, so that two that are the same can be told apart.
_JITTER = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorScale:
    """Standard deviations of log errors: what all plans of a step share, and what each has of its
    own, which fades with the distance `reach`.
    """

    shared: float
    own: float
    reach: float


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
        """What is believed of plans at `points` [plans, parts]."""
        scale = self.scale
        prior = scale.shared**2 + scale.own**2
        if not len(self.errors):
            n_plans = len(points)
            return Beliefs(means=np.zeros(n_plans), deviations=np.full(n_plans, prior**0.5))
        among = self._covariance(self.points) + _JITTER * prior * np.eye(len(self.errors))
        towards = self._covariance(points)
        # By Cholesky's factor: K is positive definite, as its jitter keeps equal plans apart.
        factor = np.linalg.cholesky(among)
        whitened = np.linalg.solve(factor, towards.T)
        errors = np.linalg.solve(factor, self.errors)
        means = whitened.T @ errors
        size = (1 + errors @ errors) / (1 + len(errors))
        variances = size * (prior - (whitened**2).sum(axis=0))
        return Beliefs(means=means, deviations=np.sqrt(np.maximum(variances, 0.0)))

    def _covariance(self, points: np.ndarray) -> np.ndarray:
        """Covariance of errors at `points` with those of the compiled plans, [plans, compiled]."""
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
    much = np.exp(np.minimum(means + s**2 / 2 + log_ndtr(-means / s - s), 700.0))
    gain = np.where(sure, -np.expm1(np.minimum(means, 0.0)), ndtr(-means / s) - much)
    return np.maximum(gain, 0.0)


def chance_to_fit(log_peaks: np.ndarray, beliefs: Beliefs, log_limit: float) -> np.ndarray:
    """The probability that peaks, predicted as `log_peaks` [plans], are within the limit."""
    margin = log_limit - log_peaks - beliefs.means
    s = np.where(beliefs.deviations > 0, beliefs.deviations, 1.0)
    return np.where(beliefs.deviations > 0, ndtr(margin / s), margin >= 0)
