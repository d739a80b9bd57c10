"""The order of a pipeline's passes, and how much of it is idle, by the task graph that plans are simulated with."""

from automap.pipeline.arrays import Schedule
from automap.pipeline.build import SCHEDULE_NAMES
from automap.pipeline.task_graph import Job, StageSeconds, pipeline_tasks
from automap.plan_pipeline import PipelineRecord
from automap.simulate.tasks import simulate


_SCHEDULES = {name: schedule for schedule, name in SCHEDULE_NAMES.items()}


def simulated_order(record: PipelineRecord) -> tuple[Job, ...]:
    """Forward and backward passes in the order in which the simulation starts them."""
    return _simulated(record)[0]


def bubble_fraction(record: PipelineRecord) -> float:
    """The part of the simulated passes in which a stage waits: 1 - busy seconds / (stages x makespan)."""
    return _simulated(record)[1]


def forward_order(record: PipelineRecord) -> tuple[Job, ...]:
    """The forward passes of a loop without a backward pass, one microbatch after another."""
    return tuple(
        Job("forward", s, m) for m in range(record.microbatches) for s in range(len(record.stages))
    )


def _simulated(record: PipelineRecord) -> tuple[tuple[Job, ...], float]:
    # What a plan says of transfers are bytes: here they take no time.
    stages = [
        StageSeconds(
            forward=s.forward_seconds, backward=s.backward_seconds, transfer=0.0, reduce=0.0
        )
        for s in record.stages
    ]
    schedule: Schedule = _SCHEDULES[record.schedule]
    tasks, jobs = pipeline_tasks(stages, record.microbatches, schedule)
    timeline = simulate(tasks)
    passes = [n for n, job in enumerate(jobs) if job.kind in ("forward", "backward")]
    passes.sort(key=lambda n: (timeline.start_seconds[n], n))
    busy = sum(tasks.seconds[n] for n in passes)
    total = len(stages) * timeline.makespan_seconds
    return tuple(jobs[n] for n in passes), float(1 - busy / total) if total else 0.0
