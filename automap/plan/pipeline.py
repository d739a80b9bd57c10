"""The `pipeline` field of a plan: stages on devices of their own, their schedule, and what each is
predicted to be.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from automap.plan.checks import (
    Spec,
    check_axes,
    check_constraints,
    check_numbers,
    check_spec,
    refuse,
    repeated,
)
from automap.plan.codec import ADDED_LATER
from automap.plan.parts import ConstraintRecord, MeshRecord
from automap.plan.point import PointRecord
from automap.quantities import bytes_text, number_text, seconds_text


ScheduleName = Literal["gpipe", "1f1b", "zero-bubble", "interleaved"]
MOST_PASSES: Final = 2**17
"""Stages times microbatches: what a pipeline does is simulated pass by pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLeafRecord:
    """A leaf that a stage has, all of it or the slices that its layers read.

    - `path`: of one of the plan's inputs.
    - `spec`: for each dimension None, or the axes of the stage's own mesh that split it.
    """

    path: str
    spec: Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class InsideRecord:
    """How a stage is sharded inside.

    - `mesh`: of the stage's devices, in their order.
    - `inputs`: the leaves that the stage has, sharded over that mesh.
    - `constraints`: as of a plan, at equations that the stage runs.
    - `point`: the point of the sharding space on that mesh, of which the stage has its part.
    - `replica_axes`: axes that split the batch and nothing else: along them devices are replicas,
      whose gradients are summed up apart for the whole step; none in older files.
    """

    mesh: MeshRecord
    inputs: tuple[StageLeafRecord, ...]
    constraints: tuple[ConstraintRecord, ...]
    point: PointRecord
    replica_axes: tuple[str, ...] = field(default=(), metadata=ADDED_LATER)

    def __post_init__(self) -> None:
        """Raise `PlanError` for a leaf that stands there twice, and for specs and axes that the
        mesh cannot give.
        """
        sizes = dict(self.mesh.axes)
        again = repeated(leaf.path for leaf in self.inputs)
        if again is not None:
            raise refuse(f"inputs[{again[0]}].path", again[1], "a path that was not there yet")
        for index, leaf in enumerate(self.inputs):
            check_spec(f"inputs[{index}].spec", leaf.spec, None, sizes)
        check_constraints("constraints", [(row.at, row.spec) for row in self.constraints], sizes)
        self.point.check_axes("point", len(sizes))
        check_axes("replica_axes", self.replica_axes, sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRecord:
    """One stage.

    - `devices`: on which it runs, in the topology's numbering: as replicas, or as `inside` says,
      whose mesh is laid on them row-major in the order in which they stand here.
    - `cut_after`: the last equation of its forward pass: a site (`automap.jaxpr.sites`), and `#t`
      after trip t of a loop that is cut between its trips; an instruction's name for a program
      without sites; None for the last stage.
    - `layers`: what it holds, for people.
    - `forward_seconds`, `backward_seconds`: of one microbatch on the whole stage.
    - `reduce_seconds`: of the sum of its gradients and its update, once in a step.
    - `sent_bytes`: of one microbatch to the next stage, and as many back.
    - `peak_bytes`: on each of its devices, all stages that they have together.
    - `inside`: how it is sharded; None for replicas.
    - `transfer_seconds`: of `sent_bytes`, each way; 0 in older files.
    - `weights_seconds`: of one microbatch's gradients of weights, where the schedule has them apart
      from `backward_seconds`; else 0.
    """

    devices: tuple[int, ...]
    cut_after: str | None
    layers: str
    forward_seconds: float
    backward_seconds: float
    reduce_seconds: float
    sent_bytes: int
    peak_bytes: int
    inside: InsideRecord | None = field(default=None, metadata=ADDED_LATER)
    transfer_seconds: float = field(default=0.0, metadata=ADDED_LATER)
    weights_seconds: float = field(default=0.0, metadata=ADDED_LATER)

    def __post_init__(self) -> None:
        """Raise `PlanError` for a number out of range, for a stage without devices, and a mesh of
        other devices.
        """
        check_numbers(self)
        if not self.devices:
            raise refuse("devices", [], "at least one device")
        # A stage's mesh is laid on its devices in their order, one for each.
        if self.inside is not None and self.inside.mesh.device_count != len(self.devices):
            raise refuse(
                "inside.mesh.axes",
                [list(axis) for axis in self.inside.mesh.axes],
                f"axes whose product is {len(self.devices)}, the devices of the stage",
            )
        if self.inside is not None and self.inside.mesh.devices is not None:
            got = list(self.inside.mesh.devices)
            allowed = "null: a stage's mesh is laid on its `devices` in their order"
            raise refuse("inside.mesh.devices", got, allowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRecord:
    """A synchronous pipeline: every step is M microbatches through all stages, then one update.

    - `schedule`: the order in which a stage runs its passes.
    - `microbatches`: M, equal parts of the batch.
    - `stages`: in the order of the forward pass; each device is in one of them. Interleaved, P
      groups of devices have several stages each: stages s and s + P have the same devices.
    """

    schedule: ScheduleName
    microbatches: int
    stages: tuple[StageRecord, ...]

    def __post_init__(self) -> None:
        """Raise `PlanError` for no microbatches or stages, devices in two stages whose schedule is
        not interleaved, and cuts that are not between stages.
        """
        if not self.stages:
            raise refuse("stages", [], "at least one stage")
        # The simulator and the runtime go through all passes: a file must not ask for hours.
        most = MOST_PASSES // len(self.stages)
        if not 1 <= self.microbatches <= most:
            raise refuse("microbatches", self.microbatches, f"an integer from 1 to {most}")
        self._check_groups()
        for index, stage in enumerate(self.stages):
            is_last = index == len(self.stages) - 1
            if (stage.cut_after is None) != is_last:
                allowed = "null for the last stage" if is_last else "where the stage ends"
                raise refuse(f"stages[{index}].cut_after", stage.cut_after, allowed)

    def _check_groups(self) -> None:
        """Refuse devices that are in two groups, and stages that no turn of the groups gives."""
        groups = self.groups
        taken = [device for stage in groups for device in stage.devices]
        if len(set(taken)) != len(taken):
            raise refuse("stages", taken, "each device in one stage, or in one group of stages")
        if self.schedule != "interleaved":
            if len(groups) < len(self.stages):
                allowed = 'each device in one stage, unless the schedule is "interleaved"'
                raise refuse("stages", [list(s.devices) for s in self.stages], allowed)
            return
        turns = [self.stages[n % len(groups)].devices for n in range(len(self.stages))]
        is_turn = turns == [stage.devices for stage in self.stages]
        if not is_turn or len(groups) < 2 or len(self.stages) % len(groups):
            got = [list(stage.devices) for stage in self.stages]
            allowed = "two or more groups of devices, which have one stage after the other in turn"
            raise refuse("stages", got, allowed)
        if self.microbatches % len(groups):
            allowed = f"a multiple of the {len(groups)} groups of devices of interleaved stages"
            raise refuse("microbatches", self.microbatches, allowed)

    @property
    def groups(self) -> tuple[StageRecord, ...]:
        """The first stage of each group of devices: all stages, unless they are interleaved."""
        first = self.stages[0].devices
        again = (n for n, s in enumerate(self.stages) if n and s.devices == first)
        return self.stages[: next(again, len(self.stages))]

    @property
    def stages_per_group(self) -> int:
        """How many stages each group of devices has."""
        return len(self.stages) // len(self.groups)

    def check_devices(self, count: int) -> None:
        """Refuse devices that a machine of `count` does not have, or that no stage uses."""
        # The devices are those of the mesh: one that no stage uses would make it a smaller machine.
        used = sorted(device for stage in self.groups for device in stage.devices)
        if used != list(range(count)):
            raise refuse("pipeline.stages", used, f"all devices from 0 to {count - 1}")

    def check_leaves(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Refuse leaves of stages that are no inputs of the step, and specs that their shapes do
        not allow.
        """
        for number, stage in enumerate(self.stages):
            inside = stage.inside
            for index, leaf in enumerate(inside.inputs if inside else ()):
                path = f"pipeline.stages[{number}].inside.inputs[{index}]"
                if leaf.path not in shapes:
                    raise refuse(f"{path}.path", leaf.path, "the path of one of the plan's inputs")
                assert inside is not None  # noqa: S101 - it has leaves
                sizes = dict(inside.mesh.axes)
                check_spec(f"{path}.spec", leaf.spec, shapes[leaf.path], sizes)

    @property
    def has_transfer_seconds(self) -> bool:
        """Whether each stage that sends says how long that takes: an older automap did not write
        it.
        """
        return all(stage.transfer_seconds or not stage.sent_bytes for stage in self.stages)

    @property
    def is_sharded_inside(self) -> bool:
        """Whether some stage is."""
        return any(stage.inside is not None for stage in self.stages)


def pipeline_text(record: PipelineRecord | None) -> str:
    """`1f1b, 16 microbatches, 8+8 devices, cut after 994`, or `no`; `8 (data=8)` for a stage that
    is sharded inside.
    """
    if record is None:
        return "no"
    devices = "+".join(_devices_text(stage) for stage in record.groups)
    if record.stages_per_group > 1:
        devices = f"{record.stages_per_group} stages on each of {devices}"
    cuts = ", ".join(stage.cut_after for stage in record.stages if stage.cut_after is not None)
    parts = number_text(record.microbatches, "microbatch", "microbatches")
    text = f"{record.schedule}, {parts}, {devices} devices"
    return f"{text}, cut after {cuts}" if cuts else text


def stages_text(record: PipelineRecord) -> str:
    """`4 stages`; `8 stages, 2 on each of 4 groups of devices` where they are interleaved."""
    text, each = number_text(len(record.stages), "stage"), record.stages_per_group
    return (
        text if each == 1 else f"{text}, {each} on each of {len(record.groups)} groups of devices"
    )


def device_names(devices: Sequence[int]) -> str:
    """`device 3`, `devices 0 to 7`, `devices 0 to 7 in another order`, `devices 0, 2, 3`."""
    first, last = min(devices), max(devices)
    if len(devices) == 1:
        return f"device {first}"
    if sorted(devices) == list(range(first, last + 1)):
        is_numbered = list(devices) == sorted(devices)
        return f"devices {first} to {last}" + ("" if is_numbered else " in another order")
    return f"devices {', '.join(map(str, devices))}"


def _devices_text(stage: StageRecord) -> str:
    count = str(len(stage.devices))
    return count if stage.inside is None else f"{count} ({_mesh_text(stage.inside)})"


def _mesh_text(inside: InsideRecord) -> str:
    return " x ".join(f"{name}={size}" for name, size in inside.mesh.axes)


def pipeline_lines(record: PipelineRecord, roles: Mapping[str, str]) -> Sequence[str]:
    """What `explain` says: a line for the schedule and some for each stage; `roles` are those of
    inputs by path.
    """
    lines = [
        f"pipeline of {stages_text(record)}, {record.microbatches} microbatches, schedule "
        f"{record.schedule}"
    ]
    for number, stage in enumerate(record.stages):
        apart = stage.weights_seconds
        weights = f", weights {seconds_text(apart)}" if apart else ""
        lines += [
            f"  stage {number} on {device_names(stage.devices)}: {stage.layers}",
            f"    a microbatch: forward {seconds_text(stage.forward_seconds)}, backward "
            f"{seconds_text(stage.backward_seconds)}{weights}; sum and update "
            f"{seconds_text(stage.reduce_seconds)}; peak {bytes_text(stage.peak_bytes)}",
            *(_inside_lines(stage.inside, roles) if stage.inside else ()),
        ]
        if stage.cut_after is not None:
            taken = f", {seconds_text(stage.transfer_seconds)} each way"
            lines.append(
                f"    cut after {stage.cut_after}; sends {bytes_text(stage.sent_bytes)} a "
                "microbatch" + (taken if stage.transfer_seconds else "")
            )
    return lines


def _inside_lines(inside: InsideRecord, roles: Mapping[str, str]) -> Iterator[str]:
    """A stage's mesh, and of each axis how many leaves of each role it splits."""
    yield f"    mesh {_mesh_text(inside)}"
    for axis, _ in inside.mesh.axes:
        counts: dict[str, int] = {}
        for leaf in inside.inputs:
            if any(axis in (axes or ()) for axes in leaf.spec):
                role = roles.get(leaf.path, "other")
                counts[role] = counts.get(role, 0) + 1
        listed = ", ".join(f"{count} of {role}" for role, count in counts.items())
        yield f"      {axis} splits {listed or 'activations only'}"
