"""Clocks for searches that tests want to end: they go on when they are looked at, or when work is
done.
"""

from automap.deadline import Clock


def ticking(seconds_per_look: float) -> Clock:
    """A clock that is so much later each time that it is looked at."""
    now = 0.0

    def look() -> float:
        nonlocal now
        now += seconds_per_look
        return now

    return Clock(processor_seconds=look, wall_seconds=lambda: 0.0)


class Work:
    """Pieces of work done so far; `clock` counts each as a second of processor time."""

    def __init__(self) -> None:
        self.done = 0

    @property
    def clock(self) -> Clock:
        return Clock(processor_seconds=lambda: float(self.done), wall_seconds=lambda: 0.0)

    def counted(self, function):
        """The function, each call of which is a piece of work."""

        def call(*args, **kwargs):
            self.done += 1
            return function(*args, **kwargs)

        return call
