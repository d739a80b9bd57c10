"""GPipe: all forward passes, then all backward passes (Huang et al., NeurIPS 2019).

    F_0 .. F_{M-1}, B_0 .. B_{M-1}

All M microbatches are in flight at every stage.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from automap.pipeline.schedules.base import ALL_FORWARD_FIRST, Job, PassOrder
from automap.plan.pipeline import ScheduleName


@dataclass(frozen=True, slots=True)
class GPipe:
    """All forward passes first."""

    name: ScheduleName = "gpipe"
    order: PassOrder = ALL_FORWARD_FIRST
    stages_per_group: int = 1

    def passes(self, stage: int, stages: int, microbatches: int) -> Iterator[Job]:
        """The same of every stage."""
        for m in range(microbatches):
            yield Job("forward", stage, m)
        for m in range(microbatches):
            yield Job("backward", stage, m)
