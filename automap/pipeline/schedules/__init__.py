"""The schedules of pipelines: a file for each, and an entry in `SCHEDULES`.

A schedule says in which order a stage does its passes, and what the value function may assume of
that order (`automap.pipeline.schedules.base`). Searches try all of `SCHEDULES`; a plan file names
one, so its name is also one of `automap.plan.pipeline.ScheduleName`.
"""

from collections.abc import Mapping
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
from automap.pipeline.schedules.one_forward_one_backward import OneForwardOneBackward
from automap.pipeline.schedules.zero_bubble import ZeroBubble


__all__ = [
    "ALL_FORWARD_FIRST",
    "GPIPE",
    "ONE_FORWARD_ONE_BACKWARD",
    "PASSES",
    "SCHEDULES",
    "ZERO_BUBBLE",
    "Job",
    "JobKind",
    "PassOrder",
    "Schedule",
    "in_flight",
    "late_weights",
    "pass_order",
    "schedule_named",
]

GPIPE: Final = GPipe()
ONE_FORWARD_ONE_BACKWARD: Final = OneForwardOneBackward()
ZERO_BUBBLE: Final = ZeroBubble()
SCHEDULES: Final[Mapping[str, Schedule]] = {
    schedule.name: schedule for schedule in (GPIPE, ONE_FORWARD_ONE_BACKWARD, ZERO_BUBBLE)
}
"""By the name in plan files, in the order in which searches try them."""


def schedule_named(name: str) -> Schedule:
    """The schedule of a plan file. Raises `PlanError` for a name that is not in `SCHEDULES`."""
    if name not in SCHEDULES:
        raise PlanError(f"there is no schedule {name!r}; there are {', '.join(SCHEDULES)}")
    return SCHEDULES[name]
