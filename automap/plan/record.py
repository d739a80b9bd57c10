"""The plan: what the planner decided, what it predicts and why; frozen, explainable, JSON.

Attributes mirror the file: `plan.mesh.axes`, `plan.inputs[0].spec`, `plan.predicted.peak_bytes`.
Inputs are in flattened argument order; `path` is `jax.tree_util.keystr` of a leaf; a spec has one
entry per dimension, None or the mesh axes that split it, major first.

A plan that exists is valid: types are checked when it is read (`automap.plan.codec`), the values of
each record when it is made (`automap.plan.parts`), and what must agree between records by
`PlanRecord`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Self

from automap.atomic_file import write_atomically
from automap.errors import PlanError, TopologyError
from automap.plan import codec, file
from automap.plan.checks import (
    Spec as Spec,
    check_axes,
    check_constraints,
    check_spec,
    check_version,
    refuse,
    repeated,
)
from automap.plan.levers import LeversRecord as LeversRecord
from automap.plan.memory_curve import (
    HeldRecord as HeldRecord,
    MemoryCurveRecord as MemoryCurveRecord,
    MemoryRecord as MemoryRecord,
)
from automap.plan.parts import (
    CollectiveRecord as CollectiveRecord,
    ConflictRecord as ConflictRecord,
    ConstraintRecord as ConstraintRecord,
    DecisionRecord as DecisionRecord,
    LeafRecord as LeafRecord,
    MeshRecord as MeshRecord,
    OutcomeRecord as OutcomeRecord,
    PredictedRecord as PredictedRecord,
    PresetRecord as PresetRecord,
    SearchRecord as SearchRecord,
    VerifiedRecord as VerifiedRecord,
    WorkloadRecord as WorkloadRecord,
)
from automap.plan.pipeline import PipelineRecord as PipelineRecord, StageRecord as StageRecord
from automap.plan.placement import (
    PlacementRecord as PlacementRecord,
    check_fits,
    check_placement,
    placement_text,
)
from automap.plan.point import PointRecord as PointRecord
from automap.plan.program import ProgramRecord as ProgramRecord
from automap.plan.refined import (
    CompiledPlanRecord as CompiledPlanRecord,
    RefinedRecord as RefinedRecord,
)
from automap.plan.streams import StreamsRecord as StreamsRecord
from automap.quantities import bytes_text, number_text, seconds_text
from automap.topology import Graph, Topology, topology_graph


FORMAT: Final = "automap-plan"
VERSION: Final = 1
_SHOWN_DIFFERENCES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PlanRecord:
    """A plan: what was decided, what it is predicted to cost, and why.

    - `workload`: what was planned.
    - `topology`: the machine, everything that is needed to rebuild it, as `Topology.to_dict` gives;
      with a `placement` it may be a graph, as `Graph.to_dict` gives.
    - `mesh`: a logical shape of all of the machine's devices.
    - `inputs`, `outputs`: one leaf after the other, in flattened argument order. With a `pipeline`
      or `placement` every `spec` is whole: a leaf is on the devices of the stage that owns it,
      sharded as that says `inside`, or where the `placement` has it, in parts with its operator.
    - `constraints`: shardings imposed inside the step.
    - `pipeline`: the stages; None for one program on all devices.
    - `placement`: operators on devices; None for the others.
    - `streams`: the operators of one device in stages; None where they run one after another.
    - `levers`: what trades time for memory, applied to the step before its shardings; None where
      it runs as it was written, and in older files.
    - `predicted`: seconds and bytes of a step.
    - `verified`: what a compiler said; None if none was asked.
    - `refined`: the plans that were compiled to choose this one; None if none were.
    - `presets`: what plans that people write by hand would cost.
    - `search`: how the plan was found, and which point of the space it is.
    - `decisions`, `conflicts`: the reasons, in the order in which they are told.
    - `warnings`: what the user should know, a sentence each.
    - `program`: what one device does in a step; None for a pipeline or a placement, and in older
      files.
    - `memory_curve`: what a device holds over the step; None as for `program`.

    Making one raises `PlanError` with the path of the field that does not agree with the rest.
    """

    workload: WorkloadRecord
    topology: Mapping[str, Any] = field(hash=False)
    mesh: MeshRecord
    inputs: tuple[LeafRecord, ...]
    outputs: tuple[LeafRecord, ...]
    constraints: tuple[ConstraintRecord, ...] = ()
    pipeline: PipelineRecord | None = None
    placement: PlacementRecord | None = None
    streams: StreamsRecord | None = None
    levers: LeversRecord | None = field(default=None, metadata=codec.ADDED_LATER)
    predicted: PredictedRecord
    verified: VerifiedRecord | None = field(default=None, metadata=codec.ADDED_LATER)
    refined: RefinedRecord | None = field(default=None, metadata=codec.ADDED_LATER)
    presets: tuple[PresetRecord, ...] = ()
    search: SearchRecord
    decisions: tuple[DecisionRecord, ...] = ()
    conflicts: tuple[ConflictRecord, ...] = ()
    warnings: tuple[str, ...] = ()
    program: ProgramRecord | None = field(default=None, metadata=codec.ADDED_LATER)
    memory_curve: MemoryCurveRecord | None = field(default=None, metadata=codec.ADDED_LATER)

    def __repr__(self) -> str:
        """On one line what it is for, how fast it is and whether it fits."""
        return f"<Plan {title(self)}>"

    def __post_init__(self) -> None:
        """Raise `PlanError` for records that do not agree with each other."""
        self._check_topology()
        self._check_leaves()
        self._check_refined()
        sizes = dict(self.mesh.axes)
        check_constraints("constraints", [(row.at, row.spec) for row in self.constraints], sizes)
        for index, row in enumerate(self.predicted.collectives):
            check_axes(f"predicted.collectives[{index}].axes", row.axes, sizes)
        for index, row in enumerate(self.decisions):
            check_axes(f"decisions[{index}].axes", row.axes, sizes)
        if self.pipeline is not None:
            self.pipeline.check_devices(self.mesh.device_count)
            self.pipeline.check_leaves({leaf.path: leaf.shape for leaf in self.inputs})
            # A pipeline's stages run programs of their own, so one of one device means nothing.
            if self.mesh.devices is not None:
                allowed = "null for a pipeline, whose stages say their devices"
                raise refuse("mesh.devices", list(self.mesh.devices), allowed)
            if self.program is not None:
                raise refuse("program", "tasks", "null for a pipeline, whose stages have their own")
            if self.memory_curve is not None:
                allowed = "null for a pipeline, whose stages hold different things"
                raise refuse("memory_curve", "points", allowed)
        if self.streams is not None:
            self._check_streams(self.streams)
        if (
            self.levers is not None
            and (self.pipeline or self.streams or self.placement) is not None
        ):
            raise refuse("levers", "remat", "null for a plan with stages")
        self._check_offload()
        if self.placement is not None:
            self._check_placed(self.placement)
        if self.search.point is not None:
            self.search.point.check_axes("search.point", len(sizes))

    def _check_offload(self) -> None:
        role_by_path = {leaf.path: leaf.role for leaf in self.inputs}
        for index, path in enumerate(() if self.levers is None else self.levers.offload):
            if role_by_path.get(path) != "optimizer state":
                allowed = "the path of an input whose role is optimizer state"
                raise refuse(f"levers.offload[{index}]", path, allowed)

    def _check_streams(self, streams: StreamsRecord) -> None:
        if self.pipeline is not None:
            raise refuse(
                "streams", "stages", "null for a pipeline, whose stages have several devices"
            )
        is_merged = any(stage.together == "merged" for stage in streams.stages)
        if self.mesh.device_count != 1 and is_merged:
            raise refuse("streams", "merged stages", "concurrent ones only on several devices")

    def _check_placed(self, placement: PlacementRecord) -> None:
        for name in ("pipeline", "streams", "program"):
            if getattr(self, name) is not None:
                raise refuse(name, "a record", "null for a placement, whose operators say all")
        devices, limit = self._graph().devices, self.search.memory_limit_bytes
        check_placement(placement, [node.name for node in devices], len(self.inputs))
        memory = [node.device.memory_bytes for node in devices]
        check_fits(placement, [has if limit is None else min(has, limit) for has in memory])

    def _graph(self) -> Graph:
        if "links" in self.topology:
            return Graph.from_dict(self.topology)
        return topology_graph(Topology.from_dict(self.topology))

    def _check_topology(self) -> None:
        try:
            is_graph = self.placement is not None and "links" in self.topology
            topology = (Graph if is_graph else Topology).from_dict(self.topology)
        except TopologyError as error:
            raise PlanError(f"topology.{error}") from None
        if topology.device_count != self.mesh.device_count:
            raise refuse(
                "mesh.axes",
                [list(axis) for axis in self.mesh.axes],
                f"axes whose product is {topology.device_count}, the devices of {topology.name!r}",
            )

    def _check_refined(self) -> None:
        """A plan that was chosen among compiled ones was confirmed, and is one program."""
        if self.refined is None:
            return
        if self.pipeline is not None:
            raise refuse("refined", "plans", "null for a pipeline, which is not refined")
        if self.refined.chosen is not None and self.verified is None:
            raise refuse(
                "refined.chosen", self.refined.chosen, "null for a plan without `verified`"
            )

    def _check_leaves(self) -> None:
        sizes = dict(self.mesh.axes)
        for name, leaves in (("inputs", self.inputs), ("outputs", self.outputs)):
            again = repeated(leaf.path for leaf in leaves)
            if again is not None:
                raise refuse(f"{name}[{again[0]}].path", again[1], "a path that was not there yet")
            for index, leaf in enumerate(leaves):
                check_spec(f"{name}[{index}].spec", leaf.spec, leaf.shape, sizes)
        for index, leaf in enumerate(self.inputs):
            if leaf.role == "result":
                raise refuse(f"inputs[{index}].role", leaf.role, "the role of an input")

    def to_json(self) -> dict[str, Any]:
        """JSON values of the plan file, read back by `from_json`; shares nothing with the plan."""
        return {"format": FORMAT, "version": VERSION, **codec.encode(self)}

    @classmethod
    def from_json(cls, data: object) -> Self:
        """The plan that JSON values stand for.

        Raises `PlanError` with the field's path for another format or version, and for a field
        that is missing, unknown, of another type, out of range or at odds with the rest.
        """
        # The format first: another program's JSON is not a plan with mistakes.
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            got = data.get("format") if isinstance(data, Mapping) else data
            raise refuse("format", got, f'an object with "format": "{FORMAT}"')
        check_version(data.get("version"), VERSION, "upgrade automap, or plan again")
        # What is left is exactly the record's own fields.
        fields = {key: data[key] for key in data if key not in ("format", "version")}
        try:
            return codec.decode(cls, fields, "")
        except RecursionError:
            raise PlanError("topology: lists and objects are nested too deeply") from None

    def save(self, path: str | Path) -> None:
        """Write the plan file, whole or not at all; raises `PlanError` if it cannot be written."""
        write_atomically(path, file.layout(self.to_json()))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a plan file; raises `PlanError` with the file's name and the field's path."""
        try:
            return cls.from_json(file.read(path))
        except PlanError as error:
            raise PlanError(f"plan file {str(path)!r}: {error}") from error.__cause__


def plan_schema() -> dict[str, Any]:
    """The JSON Schema of the plan file, which is installed as `automap/plan/plan-1.schema.json`."""
    constants = {"format": FORMAT, "version": VERSION}
    return codec.schema(PlanRecord, f"automap plan, version {VERSION}", constants)


def title(plan: PlanRecord) -> str:
    """`train:mlp on v5e:4x4: mesh data=16 (16 devices), step 1.2 ms, peak 3 GiB, fits`."""
    cost = plan.predicted
    verdict = "fits" if cost.fits else "DOES NOT FIT"
    staged = plan.pipeline or plan.streams
    stages = "" if staged is None else f", {number_text(len(staged.stages), 'stage')}"
    if plan.placement is not None:
        stages = f", {placement_text(plan.placement)}"
    return (
        f"{plan.workload.target} on {plan.topology['name']}: mesh {mesh_text(plan)}{stages}, step "
        f"{seconds_text(cost.step_seconds)}, peak {bytes_text(cost.peak_bytes)}, {verdict}"
    )


def mesh_text(plan: PlanRecord) -> str:
    """`data=4 x model=2 (8 devices)`."""
    axes = " x ".join(f"{name}={size}" for name, size in plan.mesh.axes)
    return f"{axes or 'of one device'} ({number_text(plan.mesh.device_count, 'device')})"


def check_is_one_program(plan: PlanRecord) -> None:
    """Refuse a plan whose step is several programs: those of a pipeline's stages, or of a
    placement's operators. Raises `PlanError`.
    """
    if plan.placement is not None:
        raise PlanError(
            f"the plan is a placement of {len(plan.placement.operators)} operators, each in "
            "programs of its own, which no compiler verifies together; plan "
            f"{plan.workload.target} with --space sharding for that"
        )
    if plan.pipeline is not None:
        raise PlanError(
            f"the plan is a pipeline of {len(plan.pipeline.stages)} stages, each in programs of "
            f"its own; plan {plan.workload.target} with --space sharding for one program"
        )


def check_matches_leaves(
    plan: PlanRecord,
    which: Literal["inputs", "outputs"],
    leaves: Sequence[tuple[str, tuple[int, ...], str]],
) -> None:
    """Refuse a step whose inputs, or outputs, are not the plan's.

    `leaves` are (path, shape, dtype) of the step's leaves in flattened order. Raises
    `PlanError` that names the first differences: missing, extra, moved, another shape or dtype.
    """
    recorded = plan.inputs if which == "inputs" else plan.outputs
    # By path and not by place, so that one leaf more does not make all behind it differ.
    planned = {leaf.path: _array(leaf.dtype, leaf.shape) for leaf in recorded}
    given = {path: _array(dtype, shape) for path, shape, dtype in leaves}
    differences = [f"{p}: missing, the plan has {a}" for p, a in planned.items() if p not in given]
    differences += [f"{p}: {a} is not in the plan" for p, a in given.items() if p not in planned]
    differences += [
        f"{path}: got {given[path]}, the plan has {array}"
        for path, array in planned.items()
        if given.get(path, array) != array
    ]
    # All leaves are there; then only their order can differ.
    if not differences:
        pairs = zip(planned, given, strict=True)
        differences = [
            f"{new}: stands where the plan has {old}" for old, new in pairs if old != new
        ]
    if differences:
        rest = len(differences) - _SHOWN_DIFFERENCES
        raise PlanError(
            f"the step's {which} are not those of the plan:\n  "
            + "\n  ".join(differences[:_SHOWN_DIFFERENCES])
            + (f"\n  and {rest} more" if rest > 0 else "")
            + f"\n{plan_again_text(plan)}, or call the step that was planned"
        )


def plan_again_text(plan: PlanRecord) -> str:
    """What to type for a new plan of the same kind."""
    workload, topology = plan.workload, plan.topology["name"]
    if workload.made_from == "step":
        return f'plan again in Python, with automap.plan(step, args, topology="{topology}")'
    return f"plan again with `automap plan {workload.target} --topology {topology}`"


def _array(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"
