"""When a search must end: by its processor time or by the wall clock, whichever is over first.

A budget of b seconds is over after

    b                                      seconds of processor time of the thread that searches, or
    WALL_SECONDS_OF_A_BUDGET_SECOND * b    seconds on the wall clock

Other programs on the machine do not take from the first, so that the same seed makes the same plan on a busy machine as
far as that is possible; the second bounds how long anyone waits. Both begin when planning does, after the step was traced:
compiling our own solvers, pricing presets and searching all count.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
import math
import time
from typing import Final, Self


WALL_SECONDS_OF_A_BUDGET_SECOND: Final = 2.0


@dataclass(frozen=True, slots=True)
class Clock:
    """What a deadline reads: two functions that return seconds from any fixed moment."""

    processor_seconds: Callable[[], float] = time.thread_time
    wall_seconds: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True)
class Deadline:
    """The end of a search, as readings of a clock; it is read in the thread that made it."""

    processor_seconds: float
    wall_seconds: float
    clock: Clock = field(default_factory=Clock)

    @classmethod
    def after(cls, budget_seconds: float, clock: Clock | None = None) -> Self:
        """The end of a budget that begins now."""
        clock = clock or Clock()
        wall_seconds = WALL_SECONDS_OF_A_BUDGET_SECOND * budget_seconds
        return cls(
            clock.processor_seconds() + budget_seconds, clock.wall_seconds() + wall_seconds, clock
        )

    @classmethod
    def never(cls) -> Self:
        """No end."""
        return cls(math.inf, math.inf)

    @property
    def seconds_left(self) -> float:
        """Seconds of the budget that are left, of processor time if nothing else runs on the machine."""
        processor = self.processor_seconds - self.clock.processor_seconds()
        wall = self.wall_seconds - self.clock.wall_seconds()
        return max(min(processor, wall / WALL_SECONDS_OF_A_BUDGET_SECOND), 0.0)

    @property
    def is_over(self) -> bool:
        """Whether the search must end."""
        return self.seconds_left <= 0.0

    def share(self, share: float) -> Self:
        """An earlier end: after a share of what is left."""
        processor, wall = self.clock.processor_seconds(), self.clock.wall_seconds()
        if math.isinf(self.processor_seconds):
            return self
        return type(self)(
            processor + share * (self.processor_seconds - processor),
            wall + share * (self.wall_seconds - wall), self.clock,
        )  # fmt: skip
