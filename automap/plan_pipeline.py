"""The `pipeline` field of a plan: stages on devices of their own, their schedule, and what each is predicted to be."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from automap.plan_checks import check_numbers, refuse


ScheduleName = Literal["gpipe", "1f1b"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRecord:
    """One stage: its replicas run on `devices`, in the topology's numbering.

    `cut_after` is the last equation of its forward pass: a site (`automap.apply.sites`), and `#t` after trip t of a loop
    that is cut between its trips; an instruction's name for a program without sites; None for the last
    stage. `layers` says for people what it holds. Seconds are of one microbatch on the stage, `reduce_seconds`
    of its gradients' sum and update, `sent_bytes` of one microbatch to the next stage.
    """

    devices: tuple[int, ...]
    cut_after: str | None
    layers: str
    forward_seconds: float
    backward_seconds: float
    reduce_seconds: float
    sent_bytes: int
    peak_bytes: int

    def __post_init__(self) -> None:
        """Raise `PlanError` for a number out of range, and for a stage without devices."""
        check_numbers(self)
        if not self.devices:
            raise refuse("devices", [], "at least one device")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRecord:
    """A synchronous pipeline: every step is M microbatches through all stages, then one update."""

    schedule: ScheduleName
    microbatches: int
    stages: tuple[StageRecord, ...]

    def __post_init__(self) -> None:
        """Raise `PlanError` for no microbatches or stages, devices in two stages, and cuts that are not between stages."""
        if self.microbatches < 1:
            raise refuse("microbatches", self.microbatches, "an integer >= 1")
        if not self.stages:
            raise refuse("stages", [], "at least one stage")
        taken = [device for stage in self.stages for device in stage.devices]
        if len(set(taken)) != len(taken):
            raise refuse("stages", taken, "each device in one stage")
        for index, stage in enumerate(self.stages):
            is_last = index == len(self.stages) - 1
            if (stage.cut_after is None) != is_last:
                allowed = "null for the last stage" if is_last else "where the stage ends"
                raise refuse(f"stages[{index}].cut_after", stage.cut_after, allowed)

    def check_devices(self, count: int) -> None:
        """Refuse devices that a machine of `count` does not have, or that no stage uses."""
        used = sorted(device for stage in self.stages for device in stage.devices)
        if used != list(range(count)):
            raise refuse("pipeline.stages", used, f"all devices from 0 to {count - 1}")


def pipeline_text(record: PipelineRecord | None) -> str:
    """`1f1b, 16 microbatches, 8+8 devices, cut after 994`, or `no`."""
    if record is None:
        return "no"
    devices = "+".join(str(len(stage.devices)) for stage in record.stages)
    cuts = ", ".join(stage.cut_after for stage in record.stages if stage.cut_after is not None)
    text = f"{record.schedule}, {record.microbatches} microbatches, {devices} devices"
    return f"{text}, cut after {cuts}" if cuts else text


def pipeline_lines(record: PipelineRecord) -> Sequence[str]:
    """What `explain` says: a line for the schedule and three for each stage."""
    # The texts of numbers live beside the overview, which reads this.
    from automap.plan_explain import bytes_text, seconds_text

    lines = [
        f"pipeline of {len(record.stages)} stages, {record.microbatches} microbatches, "
        f"schedule {record.schedule}"
    ]
    for number, stage in enumerate(record.stages):
        first, last = stage.devices[0], stage.devices[-1]
        where = f"device {first}" if first == last else f"devices {first} to {last}"
        lines += [
            f"  stage {number} on {where}: {stage.layers}",
            f"    a microbatch: forward {seconds_text(stage.forward_seconds)}, backward "
            f"{seconds_text(stage.backward_seconds)}; sum and update {seconds_text(stage.reduce_seconds)}; "
            f"peak {bytes_text(stage.peak_bytes)}",
        ]
        if stage.cut_after is not None:
            lines.append(
                f"    cut after {stage.cut_after}; sends {bytes_text(stage.sent_bytes)} a microbatch"
            )
    return lines
