"""Seconds of kernels that were not measured, from those that were.

Contractions (`RateModel`). A measured point i has x_i = log (b, m, n, k) and the rate r_i = 2 b m n
k / t_i. At x, with d_i = |x - x_i| and over the `NEIGHBOURS` nearest points,

    log r(x) = sum_i d_i^-POWER log r_i / sum_i d_i^-POWER,   t(x) = max(2 b m n k / r(x), launch)

(Shepard 1968): exact at measured points, between the least and the greatest rate of the neighbours, and on a
device of one rate that rate. A shape costs at least what any measured shape inside it costs, and at most what
any that contains it does, where the measurements themselves do not contradict that      -> in: `_bounded`

Kernels bound by memory (`StreamCurve`). log t is linear in log bytes between measured sizes, made
monotone by the running maximum; t is that of the smallest below it, and grows as bytes do above the
largest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from automap.cost.profile.signatures import Role, Work


NEIGHBOURS = 8
POWER = 3.0


@dataclass(frozen=True)
class RateModel:
    """Measured contractions of one algorithm and element type: `work` [points, 4], `seconds`
    [points].
    """

    work: np.ndarray
    seconds: np.ndarray

    @classmethod
    def of(cls, points: Sequence[tuple[Work, float]]) -> "RateModel":
        """The model of measured (work, seconds); of equal work the mean seconds in logs."""
        work, which = np.unique(
            np.array([w for w, _ in points], float), axis=0, return_inverse=True
        )
        logs = np.log([seconds for _, seconds in points])
        each = np.bincount(which.ravel(), logs) / np.bincount(which.ravel())
        return cls(work, np.exp(each))

    def predict(self, work: np.ndarray) -> np.ndarray:
        """Seconds of contractions, float [queries], of `work` [queries, 4]."""
        log_work, log_query = np.log(self.work), np.log(work)
        distance = np.sqrt(
            sum((log_query[:, role, None] - log_work[:, role]) ** 2 for role in range(len(Role)))
        )
        count = min(NEIGHBOURS, len(self.work))
        near = np.argpartition(distance, count - 1, axis=1)[:, :count]
        weight = np.take_along_axis(distance, near, axis=1)
        weight = np.maximum(weight, np.finfo(float).tiny ** (1 / (2 * POWER))) ** -POWER
        log_rate = log_work.sum(axis=1) - np.log(self.seconds)
        at = (weight * log_rate[near]).sum(axis=1) / weight.sum(axis=1)
        seconds = self._bounded(work, np.exp(log_query.sum(axis=1) - at))
        nearest = distance.argmin(axis=1)
        return np.where((work == self.work[nearest]).all(axis=1), self.seconds[nearest], seconds)

    def _bounded(self, work: np.ndarray, seconds: np.ndarray) -> np.ndarray:
        inside = (self.work <= work[:, None]).all(axis=2)
        around = (self.work >= work[:, None]).all(axis=2)
        low = np.where(inside, self.seconds, 0.0).max(axis=1)
        high = np.where(around, self.seconds, np.inf).min(axis=1)
        return np.where(low <= high, np.clip(seconds, low, high), seconds)


@dataclass(frozen=True)
class StreamCurve:
    """Measured streaming kernels: `n_bytes` ascending [points], `seconds` ascending [points]."""

    n_bytes: np.ndarray
    seconds: np.ndarray

    @classmethod
    def of(cls, points: Sequence[tuple[int, float]]) -> "StreamCurve":
        """The curve of measured (bytes, seconds)."""
        rows = np.array(sorted(points), float)
        return cls(rows[:, 0], np.maximum.accumulate(rows[:, 1]))

    def predict(self, n_bytes: np.ndarray) -> np.ndarray:
        """Seconds of kernels that move `n_bytes`, float [queries]."""
        above = np.maximum(n_bytes / self.n_bytes[-1], 1.0)
        log_bytes = np.log(np.maximum(n_bytes, self.n_bytes[0]))
        return np.exp(np.interp(log_bytes, np.log(self.n_bytes), np.log(self.seconds))) * above
