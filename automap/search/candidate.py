"""A plan that was priced, and which of two is better.

One that fits is better than one that does not; among those that fit, the one with the shorter step; among those that do not, the one with
the lower peak                                                                     -> in: `Objective.key`
"""

from dataclasses import dataclass

from automap.cost.evaluate import Estimate
from automap.space.point import Point


@dataclass(frozen=True, slots=True)
class Candidate:
    """A point and what it costs."""

    point: Point
    estimate: Estimate
    origin: str


@dataclass(frozen=True, slots=True)
class Objective:
    """Shortest step that stays within `memory_limit_bytes` per device."""

    memory_limit_bytes: float

    def fits(self, estimate: Estimate) -> bool:
        """Whether a plan stays within the memory of a device."""
        return estimate.peak_bytes <= self.memory_limit_bytes

    def key(self, estimate: Estimate) -> tuple[float, ...]:
        """Smaller is better."""
        if self.fits(estimate):
            return (0.0, estimate.step_seconds, estimate.peak_bytes)
        return (1.0, estimate.peak_bytes, estimate.step_seconds)
