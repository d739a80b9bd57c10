"""The schedules of pipelines: a file for each, and an entry in `SCHEDULES`.

A schedule says in which order a stage does its passes, and what the value function may assume of
that order (`automap.pipeline.schedules.base`). Searches try those of `SEARCHED`; a plan file names
one, so its name is also one of `automap.plan.pipeline.ScheduleName`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from automap.errors import PlanError
from automap.pipeline.schedules.base import (
    ALL_FORWARD_FIRST,
    PASSES,
    Job,
    JobKind,
    PassOrder,
    Schedule,
    in_flight,
    late_weights,
    pass_order,
)
from automap.pipeline.schedules.gpipe import GPipe
from automap.pipeline.schedules.interleaved import Interleaved
from automap.pipeline.schedules.one_forward_one_backward import OneForwardOneBackward
from automap.pipeline.schedules.zero_bubble import ZeroBubble
from automap.plan.pipeline import PipelineRecord


__all__ = [
    "ALL_FORWARD_FIRST",
    "GPIPE",
    "INTERLEAVED",
    "ONE_FORWARD_ONE_BACKWARD",
    "PASSES",
    "PRICED",
    "SCHEDULES",
    "SEARCHED",
    "ZERO_BUBBLE",
    "Interleaved",
    "Job",
    "JobKind",
    "PassOrder",
    "Schedule",
    "in_flight",
    "late_weights",
    "pass_order",
    "planned_schedule",
    "schedule_named",
]

GPIPE: Final = GPipe()
ONE_FORWARD_ONE_BACKWARD: Final = OneForwardOneBackward()
ZERO_BUBBLE: Final = ZeroBubble()
INTERLEAVED: Final = Interleaved()
SCHEDULES: Final[Mapping[str, Schedule]] = {
    schedule.name: schedule
    for schedule in (GPIPE, ONE_FORWARD_ONE_BACKWARD, ZERO_BUBBLE, INTERLEAVED)
}
"""By the name in plan files."""
PRICED: Final = (GPIPE, ONE_FORWARD_ONE_BACKWARD, ZERO_BUBBLE)
"""Those whose longest path the value function knows, so that solvers and agents can search."""
SEARCHED: Final[tuple[Schedule, ...]] = (*PRICED, *(Interleaved(v) for v in (2, 3, 4)))
"""What searches try."""


def schedule_named(name: str) -> Schedule:
    """The schedule of a name. Raises `PlanError` for one that is not in `SCHEDULES`."""
    if name not in SCHEDULES:
        raise PlanError(f"there is no schedule {name!r}; there are {', '.join(SCHEDULES)}")
    return SCHEDULES[name]


def planned_schedule(record: PipelineRecord) -> Schedule:
    """The schedule of a plan's pipeline. Raises `PlanError` as `schedule_named` does."""
    schedule = schedule_named(record.schedule)
    if isinstance(schedule, Interleaved):
        return replace(schedule, stages_per_group=record.stages_per_group)
    return schedule
