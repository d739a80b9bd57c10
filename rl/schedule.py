"""Numbers that change while an agent learns."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Linear:
    """From `start` to `end` in equal parts over `steps` steps, then `end`."""

    start: float
    end: float
    steps: int

    def at(self, step: int) -> float:
        """The number after `step` steps."""
        # Without steps it is at its end from the start.
        done = min(step / self.steps, 1.0) if self.steps else 1.0
        return self.start + (self.end - self.start) * done
