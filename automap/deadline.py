"""When a search must end: by its processor time or by the wall clock, whichever is over first.

A budget of b seconds is over after

    b                                      seconds of processor time of the thread that searches, or
    WALL_SECONDS_OF_A_BUDGET_SECOND * b    seconds on the wall clock

Other programs on the machine do not take from the first, so that the same seed makes the same plan
on a busy machine as far as that is possible; the second bounds how long anyone waits. Both begin
when planning does, after the step was traced: pricing presets and searching count. Compiling our
own solvers does not, which the first search of a machine does and no later one
                                                                        -> in: `pause_clocks`
Ctrl-C ends both (`automap.interrupts`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
import math
import threading
import time
from typing import Final, Self

from automap.interrupts import Interrupts


# So long waits who shares a machine half and half with another program.
WALL_SECONDS_OF_A_BUDGET_SECOND: Final = 2.0


class _Paused(threading.local):
    """Seconds that count for no deadline of the thread."""

    processor_seconds = 0.0
    wall_seconds = 0.0


_paused = _Paused()


def pause_clocks(processor_seconds: float, wall_seconds: float) -> None:
    """Count that much of the time that has passed in this thread for none of its deadlines."""
    _paused.processor_seconds += processor_seconds
    _paused.wall_seconds += wall_seconds


def _processor_seconds() -> float:
    # Of the thread, not of the process: threads of JAX and of a caller do not take from a search.
    return time.thread_time() - _paused.processor_seconds


def _wall_seconds() -> float:
    return time.monotonic() - _paused.wall_seconds


@dataclass(frozen=True, slots=True)
class Clock:
    """What a deadline reads: two functions that return seconds from any fixed moment."""

    processor_seconds: Callable[[], float] = _processor_seconds
    wall_seconds: Callable[[], float] = _wall_seconds


@dataclass(frozen=True, slots=True)
class Deadline:
    """The end of a search, as readings of a clock; it is read in the thread that made it."""

    processor_seconds: float
    wall_seconds: float
    clock: Clock = field(default_factory=Clock)
    interrupts: Interrupts = field(default_factory=Interrupts)

    @classmethod
    def after(
        cls,
        budget_seconds: float,
        clock: Clock | None = None,
        interrupts: Interrupts | None = None,
    ) -> Self:
        """The end of a budget that begins now, or the user's Ctrl-C before it."""
        clock = clock or Clock()
        # Readings of the clock and not lengths, so that asking costs one subtraction.
        wall_seconds = WALL_SECONDS_OF_A_BUDGET_SECOND * budget_seconds
        return cls(
            clock.processor_seconds() + budget_seconds,
            clock.wall_seconds() + wall_seconds,
            clock,
            interrupts or Interrupts(),
        )

    @classmethod
    def never(cls) -> Self:
        """No end."""
        return cls(math.inf, math.inf)

    @property
    def seconds_left(self) -> float:
        """Seconds of the budget that are left, of processor time if nothing else runs on the
        machine; none after Ctrl-C.
        """
        if self.interrupts.is_asked:
            return 0.0
        processor = self.processor_seconds - self.clock.processor_seconds()
        wall = self.wall_seconds - self.clock.wall_seconds()
        # Both in seconds of the budget.
        return max(min(processor, wall / WALL_SECONDS_OF_A_BUDGET_SECOND), 0.0)

    @property
    def is_over(self) -> bool:
        """Whether the search must end."""
        return self.seconds_left <= 0.0

    @property
    def why_over(self) -> str:
        """Why the search ended before it was done."""
        if self.interrupts.is_asked:
            return "the search was interrupted"
        return "the search was not done after its budget"

    def share(self, share: float) -> Self:
        """An earlier end: after a share of what is left."""
        processor, wall = self.clock.processor_seconds(), self.clock.wall_seconds()
        # A share of no end is no end.
        if math.isinf(self.processor_seconds):
            return self
        return type(self)(
            processor + share * (self.processor_seconds - processor),
            wall + share * (self.wall_seconds - wall),
            self.clock,
            self.interrupts,
        )
