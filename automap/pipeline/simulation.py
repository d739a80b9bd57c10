"""The simulated step of a plan's pipeline: what each stage does, what it waits for, and when.

The record in the plan is enough: record -> seconds of its stages -> task graph
(`automap.pipeline.task_graph`) -> timeline, the one that its planner had    -> in: `simulated_step`

A stage is busy with its passes, the sum of its gradients and its update. In the rest of the step,
its bubble, its devices wait; those of interleaved stages for the pass of one of them, whose wait it
is, and after the update of the last:

stages      until another stage has made what the next pass needs
transfers   from then on until that is here
end         after its update, until all stages have ended

Nothing is known of a stage's devices apart, so in a trace the stage stands at its first device.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
import math
from pathlib import Path
from typing import Any, Final

import numpy as np

from automap.pipeline.schedules import PASSES, Job, JobKind, planned_schedule
from automap.pipeline.task_graph import StageSeconds, pipeline_tasks
from automap.plan.codec import encode
from automap.plan.pipeline import PipelineRecord, device_names
from automap.plan.record import PlanRecord
from automap.quantities import seconds_text
from automap.simulate.tasks import Tasks, Timeline, simulate
from automap.simulate.trace import Event, Lane, save_trace


# Relative: sums of the same seconds differ by rounding only, those of an edited plan by more.
_SAME: Final = 1e-6


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
        is_work = np.array([job.kind in (*PASSES, "all-reduce") for job in self.jobs])
        devices = np.array([len(stage.devices) for stage in self.record.stages])
        task_devices = devices[[job.stage for job in self.jobs]]
        busy = float((self.tasks.seconds * is_work) @ task_devices)
        total = (
            sum(len(group.devices) for group in self.record.groups) * self.timeline.makespan_seconds
        )
        # Rounding of the two sums may leave less than nothing where no device waits.
        return max(1 - busy / total, 0.0) if total else 0.0


def simulated_step(record: PipelineRecord) -> SimulatedStep:
    """The step of a record; as the planner had it if the record has the seconds of transfers.

    Raises `PlanError` for a schedule that is not in `automap.pipeline.schedules.SCHEDULES`.
    """
    stages = [
        StageSeconds(
            forward=stage.forward_seconds,
            backward=stage.backward_seconds,
            transfer=stage.transfer_seconds,
            reduce=stage.reduce_seconds,
            weights=stage.weights_seconds,
        )
        for stage in record.stages
    ]
    tasks, jobs = pipeline_tasks(stages, record.microbatches, planned_schedule(record))
    return SimulatedStep(record=record, jobs=tuple(jobs), tasks=tasks, timeline=simulate(tasks))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """A stage's step.

    Seconds are of the whole step; `weights_seconds` those of the weight passes, 0 where the
    backward passes have them, `reduce_seconds` those of the sum of its gradients and of its
    update. `sends` microbatches of together `sent_bytes` go to the next stage, which is
    `link_seconds`, and as much comes back over the link's other direction.
    """

    stage: int
    devices: tuple[int, ...]
    layers: str
    forward_seconds: float
    backward_seconds: float
    reduce_seconds: float
    stage_wait_seconds: float
    transfer_wait_seconds: float
    end_wait_seconds: float
    sends: int
    sent_bytes: int
    link_seconds: float
    peak_bytes: int
    weights_seconds: float = 0.0

    @property
    def busy_seconds(self) -> float:
        """Seconds of passes, sum and update."""
        passes = self.forward_seconds + self.backward_seconds + self.weights_seconds
        return passes + self.reduce_seconds

    @property
    def idle_seconds(self) -> float:
        """Seconds of all waits: the rest of the step."""
        return self.stage_wait_seconds + self.transfer_wait_seconds + self.end_wait_seconds


@dataclass(frozen=True, kw_only=True)
class PipelineSimulationRecord:
    """One simulated step of a pipeline; `predicted_seconds` is what the plan says.

    `bubble_fraction` is the part of the step in which a device waits, the mean over devices.
    """

    target: str
    topology: str
    schedule: str
    microbatches: int
    predicted_seconds: float
    step_seconds: float
    bubble_fraction: float
    stages: tuple[StageRow, ...]
    warnings: tuple[str, ...]
    events: tuple[Event, ...] = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """JSON values, as `automap simulate --json` prints them: all but the events."""
        fields = {name: encode(value) for name, value in vars(self).items() if name != "events"}
        rows = [
            encode(row) | {"busy_seconds": row.busy_seconds, "idle_seconds": row.idle_seconds}
            for row in self.stages
        ]
        return fields | {"stages": rows, "tasks": len(self.events)}

    def save_trace(self, path: str | Path) -> None:
        """Write the timeline for Perfetto, whole or not at all; raises `PlanError` if that cannot
        be done.
        """
        stages: dict[int, list[StageRow]] = {}
        for row in self.stages:
            stages.setdefault(row.devices[0], []).append(row)
        names = {device: _lane_name(rows) for device, rows in stages.items()}
        save_trace(path, self.events, names)


def _lane_name(rows: Sequence[StageRow]) -> str:
    """`stage 1: devices 2 to 3`, `stages 1, 3: devices 2 to 3`."""
    numbers = ", ".join(str(row.stage) for row in rows)
    return f"stage{'s' * (len(rows) > 1)} {numbers}: {device_names(rows[0].devices)}"


def simulate_pipeline(plan: PlanRecord, record: PipelineRecord) -> PipelineSimulationRecord:
    """The step of a plan's pipeline, simulated."""
    step = simulated_step(record)
    step_seconds = step.timeline.makespan_seconds
    return PipelineSimulationRecord(
        target=plan.workload.target,
        topology=str(plan.topology["name"]),
        schedule=record.schedule,
        microbatches=record.microbatches,
        predicted_seconds=plan.predicted.step_seconds,
        step_seconds=step_seconds,
        bubble_fraction=step.bubble_fraction,
        stages=tuple(_rows(step)),
        warnings=tuple(_warnings(record, step_seconds, plan.predicted.step_seconds)),
        events=tuple(_events(step)),
    )


def _rows(step: SimulatedStep) -> Iterator[StageRow]:
    number = {job: task for task, job in enumerate(step.jobs)}
    # A record has the seconds of one microbatch; a row those of all M.
    record, m, line = step.record, step.record.microbatches, step.timeline
    waits = _waits(step, number)
    for s, stage in enumerate(record.stages):
        # Of a group's stages the one that ends last waits for the end of the step.
        group = range(s % len(record.groups), len(record.stages), len(record.groups))
        ends = {r: float(line.end_seconds[number[Job("all-reduce", r, 0)]]) for r in group}
        is_last = s == max(ends, key=lambda r: (ends[r], r))
        for_stages, for_transfers = waits[s]
        sends = m if s < len(record.stages) - 1 else 0
        yield StageRow(
            stage=s,
            devices=stage.devices,
            layers=stage.layers,
            forward_seconds=m * stage.forward_seconds,
            backward_seconds=m * stage.backward_seconds,
            reduce_seconds=stage.reduce_seconds,
            stage_wait_seconds=for_stages,
            transfer_wait_seconds=for_transfers,
            end_wait_seconds=line.makespan_seconds - ends[s] if is_last else 0.0,
            sends=sends,
            sent_bytes=sends * stage.sent_bytes,
            link_seconds=sends * stage.transfer_seconds,
            peak_bytes=stage.peak_bytes,
            weights_seconds=m * stage.weights_seconds,
        )


def _waits(step: SimulatedStep, number: dict[Job, int]) -> list[tuple[float, float]]:
    """By stage, the seconds in which its devices wait before its passes: for other stages, and for
    transfers.
    """
    line, groups = step.timeline, len(step.record.groups)
    for_stages, for_transfers = np.zeros((2, len(step.record.stages)))
    free = [0.0] * groups
    for task, job in enumerate(step.jobs):
        # In topological order the passes of a group come in the order in which it does them.
        if job.kind not in PASSES:
            continue
        gap = float(line.start_seconds[task]) - free[job.stage % groups]
        free[job.stage % groups] = float(line.end_seconds[task])
        if gap > 0:
            # The pass began when its transfer ended. Of the gap before it the transfer explains
            # what it took from being ready to its end, queueing on the link included; in the rest
            # the other stage had not made it yet.
            transfer = number[_arrival(job)]
            moving = float(line.end_seconds[transfer] - line.ready_seconds[transfer])
            for_transfers[job.stage] += min(gap, moving)
            for_stages[job.stage] += max(gap - moving, 0.0)
    return list(zip(for_stages.tolist(), for_transfers.tolist(), strict=True))


def _arrival(job: Job) -> Job:
    """The transfer that a pass waits for."""
    if job.kind == "forward":
        return Job("send forward", job.stage - 1, job.microbatch)
    return Job("send backward", job.stage, job.microbatch)


def _warnings(record: PipelineRecord, step_seconds: float, predicted: float) -> Iterator[str]:
    if not record.has_transfer_seconds:
        yield (
            "the plan was written by an earlier automap, which did not record the seconds of "
            "transfers: here they take "
            "no time; plan again"
        )
    elif not math.isclose(step_seconds, predicted, rel_tol=_SAME, abs_tol=0.0):
        yield (
            f"the plan predicts {seconds_text(predicted)}, but the seconds of its stages make "
            f"{seconds_text(step_seconds)}: it was changed after it was planned; plan again"
        )


def _events(step: SimulatedStep) -> Iterator[Event]:
    """One event per task, in the order of tasks."""
    start, end = step.timeline.start_seconds.tolist(), step.timeline.end_seconds.tolist()
    for task, job in enumerate(step.jobs):
        stage = step.record.stages[job.stage]
        lane, what = _NAMES[job.kind]
        details: dict[str, Any] = {"stage": job.stage}
        if job.kind != "all-reduce":
            details["microbatch"] = job.microbatch
            what = f"{what} {job.microbatch}"
        if job.kind in ("send forward", "send backward"):
            details["bytes"] = stage.sent_bytes
        else:
            details["layers"] = stage.layers
        yield Event(
            lane=Lane(device=stage.devices[0], name=lane.format(next=job.stage + 1)),
            name=what,
            category=job.kind,
            start_seconds=start[task],
            seconds=end[task] - start[task],
            details=details,
        )


_NAMES: Final[dict[JobKind, tuple[str, str]]] = {
    "forward": ("passes", "forward"),
    "backward": ("passes", "backward"),
    "weights": ("passes", "weights"),
    "send forward": ("link to stage {next}", "activations"),
    "send backward": ("link from stage {next}", "gradients"),
    "all-reduce": ("all-reduce and update", "all-reduce and update"),
}
"""Lane and name of each kind of task."""
