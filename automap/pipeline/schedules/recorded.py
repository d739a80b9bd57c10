"""A pipeline's record -> the step that its planner simulated.

record -> seconds of its stages -> task graph (`automap.pipeline.schedules.task_graph`) -> timeline

A stage is busy with its passes, and then with the sum of its gradients and its update; the rest of
the step is its bubble.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from automap.pipeline.arrays import Schedule
from automap.pipeline.schedules.task_graph import Job, StageSeconds, pipeline_tasks
from automap.plan.pipeline import PipelineRecord, ScheduleName
from automap.simulate.tasks import Tasks, Timeline, simulate


SCHEDULE_NAMES: Final[Mapping[Schedule, ScheduleName]] = {
    Schedule.GPIPE: "gpipe",
    Schedule.ONE_F_ONE_B: "1f1b",
}
_SCHEDULES: Final = {name: schedule for schedule, name in SCHEDULE_NAMES.items()}


@dataclass(frozen=True, kw_only=True)
class SimulatedStep:
    """The tasks of a record's step, when each runs, and what task t does: `jobs[t]`."""

    record: PipelineRecord
    jobs: tuple[Job, ...]
    tasks: Tasks
    timeline: Timeline

    @property
    def bubble_fraction(self) -> float:
        """The part of the step in which a device waits, the mean over devices; 0 for a step without
        work.
        """
        is_work = np.array([job.kind in ("forward", "backward", "all-reduce") for job in self.jobs])
        devices = np.array([len(stage.devices) for stage in self.record.stages])
        of_task = devices[[job.stage for job in self.jobs]]
        busy = float((self.tasks.seconds * is_work) @ of_task)
        total = int(devices.sum()) * self.timeline.makespan_seconds
        # Less than nothing is what is left of a sum.
        return max(1 - busy / total, 0.0) if total else 0.0


def simulated_step(record: PipelineRecord) -> SimulatedStep:
    """The step of a record; as the planner had it if the record has the seconds of transfers."""
    stages = [
        StageSeconds(
            forward=stage.forward_seconds,
            backward=stage.backward_seconds,
            transfer=stage.transfer_seconds,
            reduce=stage.reduce_seconds,
        )
        for stage in record.stages
    ]
    tasks, jobs = pipeline_tasks(stages, record.microbatches, _SCHEDULES[record.schedule])
    return SimulatedStep(record=record, jobs=tuple(jobs), tasks=tasks, timeline=simulate(tasks))
