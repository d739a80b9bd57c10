"""1F1B: a stage begins to go backwards as soon as it can (PipeDream-Flush, Narayanan et al., ICML
2021).

    min(M, S - s) forward passes, then a backward and a forward pass in turn, then what is left
    backward

Stage s of S has at most S - s microbatches in flight.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from automap.pipeline.schedules.base import Job, PassOrder, in_flight
from automap.plan.pipeline import ScheduleName


@dataclass(frozen=True, slots=True)
class OneForwardOneBackward:
    """As few microbatches in flight as keep all stages busy, where transfers take no time."""

    name: ScheduleName = "1f1b"
    order: PassOrder = PassOrder(alternates=True, last_in_flight=1, in_flight_per_stage=1)
    stages_per_group: int = 1

    def passes(self, stage: int, stages: int, microbatches: int) -> Iterator[Job]:
        """The later the stage, the fewer forward passes before its first backward pass."""
        # The warm-up; then the steady phase, until no microbatch is left to start; then the drain.
        ahead = in_flight(self.order, microbatches, stages - stage)
        for m in range(ahead):
            yield Job("forward", stage, m)
        for m in range(microbatches):
            yield Job("backward", stage, m)
            if ahead + m < microbatches:
                yield Job("forward", stage, ahead + m)
