"""A zero-bubble schedule, ZB-H1 (Qi et al., "Zero Bubble Pipeline Parallelism", 2023): 1F1B whose
gradients of weights are passes of their own, and fill what 1F1B waits.

    min(M, S - s) forward passes, then in turn a backward pass m, the weight pass m - s and a
    forward pass; the last s + 1 weight passes end the step

A backward pass without its weights takes B instead of B + W, so gradients reach the first stage
sooner, and the stages that began last end with weight passes while gradients go back. Stage s has
at most S - s microbatches in flight and s more wait for their weight pass, of which it keeps what
that pass reads: of no stage are there more than S, as of 1F1B's first.

Of equal stages without transfers, and M >= S, the bubble is

    (S - 1) max(F, B, F + B - W)

against (S - 1) (F + B + W) of 1F1B. The last stage begins after S - 1 forward passes; the first one
waits for S - 1 backward passes, since S microbatches are in flight by then; and after the last
backward pass of the last stage S - 1 more follow, while it has S - 1 weight passes left. Where W is
the least of the three it is the paper's (S - 1) (F + B - W), else more than that.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from automap.pipeline.schedules.base import Job, PassOrder, in_flight
from automap.plan.pipeline import ScheduleName


@dataclass(frozen=True, slots=True)
class ZeroBubble:
    """As many microbatches are held as by 1F1B's first stage."""

    name: ScheduleName = "zero-bubble"
    order: PassOrder = PassOrder(
        alternates=True, last_in_flight=1, in_flight_per_stage=1, weights_apart=True
    )
    stages_per_group: int = 1

    def passes(self, stage: int, stages: int, microbatches: int) -> Iterator[Job]:
        """The later the stage, the later its weight passes."""
        ahead = in_flight(self.order, microbatches, stages - stage)
        for m in range(ahead):
            yield Job("forward", stage, m)
        for m in range(microbatches):
            yield Job("backward", stage, m)
            # Before the forward pass: what it reads is free for the next microbatch then.
            if m >= stage:
                yield Job("weights", stage, m - stage)
            if ahead + m < microbatches:
                yield Job("forward", stage, ahead + m)
        for m in range(max(microbatches - stage, 0), microbatches):
            yield Job("weights", stage, m)
