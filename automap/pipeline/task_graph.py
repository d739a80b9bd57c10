"""The task graph of a pipelined step, for the simulator: the oracle of the value function.

Tasks are the passes of each microbatch in each stage, on the stage; the transfer of each microbatch
over each boundary, forward and backward on the two directions of its link; and one all-reduce per
stage, on its devices' links. A group of devices has one stage, or interleaved ones, and works in
the fixed order of its schedule (`automap.pipeline.schedules`): each pass waits for the one before
it in its group, and for what comes over its link. The stages of a group share its links, and sum
their gradients after the last pass of all of them.
"""

from dataclasses import dataclass

import numpy as np

from automap.errors import InputError
from automap.pipeline.arrays import Arrays
from automap.pipeline.schedules import Job, Schedule
from automap.simulate.tasks import Tasks, simulate


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeconds:
    """One stage: seconds of a microbatch's passes, of sending it to the next stage one way, and of
    the all-reduce.

    `weights` are those of its weight pass, 0 where the backward pass has them.
    """

    forward: float
    backward: float
    transfer: float
    reduce: float
    weights: float = 0.0

    @property
    def passes(self) -> float:
        """Of all passes of a microbatch."""
        return self.forward + self.backward + self.weights


def stage_seconds(arrays: Arrays, cuts: np.ndarray, device_cuts: np.ndarray) -> list[StageSeconds]:
    """The seconds of a partition's stages, as `automap.pipeline.value` has them."""
    stages = []
    for s in range(len(cuts) - 1):
        i, j, d, e = cuts[s], cuts[s + 1], device_cuts[s], device_cuts[s + 1]
        transfer = 0.0
        if s < len(cuts) - 2:
            per_byte = arrays.transfer_seconds_per_byte[d, e, device_cuts[s + 2]]
            transfer = float(arrays.latency_seconds[e] + per_byte * arrays.cut_bytes[j])
        stages.append(
            StageSeconds(
                forward=_between(arrays.forward[e - d], i, j),
                backward=_between(arrays.backward[e - d], i, j),
                transfer=transfer,
                reduce=float(arrays.reduce_seconds_per_byte[d, e] * arrays.gradient_bytes[i, j]),
                weights=_between(arrays.weights[e - d], i, j),
            )
        )
    return stages


def _between(seconds_before: np.ndarray, first: int, end: int) -> float:
    """Seconds from one cut to another; what takes none is not less than none by rounding."""
    return max(float(seconds_before[end] - seconds_before[first]), 0.0)


def pipeline_tasks(
    stages: list[StageSeconds], microbatches: int, schedule: Schedule
) -> tuple[Tasks, list[Job]]:
    """The task graph, and what each task does.

    Raises `InputError` for a schedule whose passes wait for each other for ever.
    """
    n = len(stages)
    groups = n // schedule.stages_per_group
    predecessors: dict[Job, list[Job]] = {}
    for group in range(groups):
        # One pass at a time, in the schedule's order: each waits for the one before it.
        before: Job | None = None
        for job in schedule.passes(group, groups, microbatches):
            predecessors[job] = [] if before is None else [before]
            before = job
            # Activations come forward over the link before the stage, gradients back over the one
            # after it; a transfer starts as soon as what it sends is made.
            s, m = job.stage, job.microbatch
            if job.kind == "forward" and s > 0:
                predecessors[job].append(Job("send forward", s - 1, m))
            if job.kind == "backward" and s < n - 1:
                predecessors[job].append(Job("send backward", s, m))
            if job.kind == "forward" and s < n - 1:
                predecessors[Job("send forward", s, m)] = [job]
            if job.kind == "backward" and s > 0:
                predecessors[Job("send backward", s - 1, m)] = [job]
        assert before is not None  # noqa: S101 - there is at least one microbatch
        # The gradients are summed over the replicas once, after the last pass of the group.
        for s in range(group, n, groups):
            predecessors[Job("all-reduce", s, 0)] = [before]
    order = _topological(predecessors)
    if len(order) < len(predecessors):
        raise InputError(
            f"under the schedule {schedule.name!r} of {microbatches} microbatches on {groups} "
            "groups of devices passes wait for each other for ever; use another schedule, or "
            "microbatches that the groups divide"
        )
    number = {job: index for index, job in enumerate(order)}
    counts = [len(predecessors[job]) for job in order]
    tasks = Tasks(
        seconds=np.array([_seconds(stages, job) for job in order]),
        resource=np.array([_resource(job, groups) for job in order], np.int32),
        first_predecessor=np.concatenate([[0], np.cumsum(counts)]),
        predecessors=np.array(
            [number[w] for job in order for w in sorted(predecessors[job], key=number.__getitem__)],
            np.int32,
        ),
    )
    return tasks, order


def pipeline_seconds(stages: list[StageSeconds], microbatches: int, schedule: Schedule) -> float:
    """The simulated step."""
    tasks, _ = pipeline_tasks(stages, microbatches, schedule)
    return simulate(tasks).makespan_seconds


def _topological(predecessors: dict[Job, list[Job]]) -> list[Job]:
    left = {job: len(before) for job, before in predecessors.items()}
    after: dict[Job, list[Job]] = {job: [] for job in predecessors}
    for job, before in predecessors.items():
        for other in before:
            after[other].append(job)
    # Kahn 1962; the list grows while it is gone through.
    order = [job for job, count in left.items() if not count]
    for job in order:
        for follower in after[job]:
            left[follower] -= 1
            if not left[follower]:
                order.append(follower)
    return order


def _seconds(stages: list[StageSeconds], job: Job) -> float:
    stage = stages[job.stage]
    return {
        "forward": stage.forward,
        "backward": stage.backward,
        "weights": stage.weights,
        "send forward": stage.transfer,
        "send backward": stage.transfer,
        "all-reduce": stage.reduce,
    }[job.kind]


def _resource(job: Job, groups: int) -> int:
    # Four resources for each group: itself, the two directions of the link after it, and its
    # devices' links among themselves, on which its AllReduce overlaps with other groups' work.
    lane = {"send forward": 1, "send backward": 2, "all-reduce": 3}
    return lane.get(job.kind, 0) * groups + job.stage % groups
