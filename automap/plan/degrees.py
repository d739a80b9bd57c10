"""A plan as degrees of parallelism, the way MaxText and Megatron-LM are configured, and back.

A mesh axis has one role, which follows from what the plan's decisions split over it (the first row
that holds)                                                                -> in: `_axis_role`

    batch and parameters            expert       tokens move to the devices of their experts
    parameters and other batch dims tensor, with the sequence split beside it
    parameters                      tensor
    batch, parameters stored split  fsdp
    batch, or nothing               data         (optimizer state stored split is noted)
    another dimension of the batch  context

The degree of a role is the product of its axes' sizes; the part of it between hosts is the product
of their ranks in levels that reach over the network                       -> in: `plan_degrees`

    MaxText    ici_ROLE_parallelism inside hosts, dcn_ROLE_parallelism between them  -> `maxtext`
    Megatron   --tensor-model-parallel-size and its like; data is what is left       -> `megatron`

Back, degrees are options of `automap plan`: the mesh, and the preset that shards so where one does
                                                                           -> in: `plan_options`
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
import re
from typing import Final, Literal, get_args

from automap.choices import OtherProgram
from automap.errors import InputError
from automap.plan.record import PlanRecord
from automap.topology import Topology, lies_on
from automap.topology.spans import spans


Role = Literal["data", "fsdp", "tensor", "context", "expert", "pipeline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """How many ways each role splits.

    - `inside`, `between`: of hosts, the degree of each role that is not 1.
    - `splits_sequence`: whether tensors that no feature splits are split along the sequence.
    - `splits_optimizer`: whether optimizer state is stored split over the data degree (ZeRO-1).
    - `rematerializes_all`: whether blocks keep nothing for the backward pass but their operands.
    - `microbatches`: of a pipeline; None where none are said.
    - `notes`: what the degrees do not say of the plan or file that they are of, a sentence each.
    """

    inside: Mapping[Role, int] = field(hash=False)
    between: Mapping[Role, int] = field(hash=False)
    splits_sequence: bool = False
    splits_optimizer: bool = False
    rematerializes_all: bool = False
    microbatches: int | None = None
    notes: tuple[str, ...] = ()

    def degree(self, role: Role) -> int:
        """Inside of hosts and between them."""
        return self.inside.get(role, 1) * self.between.get(role, 1)

    @property
    def device_count(self) -> int:
        """Of all roles together."""
        return prod(self.degree(role) for role in get_args(Role))


@dataclass(frozen=True, slots=True)
class _Axis:
    role: Role
    splits_sequence: bool = False
    splits_optimizer: bool = False


def plan_degrees(plan: PlanRecord) -> Degrees:
    """The degrees of a plan; what they cannot say is noted, and nothing is refused."""
    notes = [] if plan.streams is None else ["the order of operators on the device is left out"]
    if plan.pipeline is not None:
        return _pipeline_degrees(plan, notes)
    topology, sizes = Topology.from_dict(plan.topology), [size for _, size in plan.mesh.axes]
    inside: dict[Role, int] = {}
    between: dict[Role, int] = {}
    axes = [_axis_role(plan, name) for name, _ in plan.mesh.axes]
    for number, (axis, size) in enumerate(zip(axes, sizes, strict=True)):
        away = 1
        # A mesh that does not lie on the levels has no part of its own between hosts.
        if lies_on(topology, sizes):
            over = spans(topology, sizes, (number,))
            away = prod(span.ranks for span in over if span.level.reach == "network")
        for part, degree in ((inside, size // away), (between, away)):
            if degree > 1:
                part[axis.role] = part.get(axis.role, 1) * degree
    if plan.mesh.devices is not None:
        notes.append("the order of the devices is left out")
    remat = () if plan.levers is None else plan.levers.remat
    if any(group.kept for group in remat):
        notes.append("which values blocks keep is left out (remat_policy custom names them)")
    if plan.levers is not None and plan.levers.microbatches > 1:
        notes.append(
            f"gradients are accumulated over {plan.levers.microbatches} microbatches "
            "(gradient_accumulation_steps, or the micro batch size, says so)"
        )
    if plan.levers is not None and plan.levers.offload:
        notes.append(
            "optimizer state in the host's memory is left out (optimizer_memory_host_offload)"
        )
    if plan.constraints:
        notes.append(f"{len(plan.constraints)} shardings inside of the step are left out")
    return Degrees(
        inside=inside,
        between=between,
        splits_sequence=any(axis.splits_sequence for axis in axes),
        splits_optimizer=any(axis.splits_optimizer for axis in axes),
        rematerializes_all=bool(remat) and not any(group.kept for group in remat),
        notes=(*notes, *_partial_notes(plan, axes)),
    )


def _axis_role(plan: PlanRecord, name: str) -> _Axis:
    """What the decisions split over an axis."""
    roles = {leaf.path: leaf.role for leaf in plan.inputs}
    computed = [row for row in plan.decisions if row.kind == "compute" and name in row.axes]
    levels = {row.level for row in plan.decisions if row.kind == "storage" and name in row.axes}
    has_parameters = any(roles.get(p) == "parameter" for row in computed for p in row.covers)
    # A group is called by an input's dimension, as "[1]['tokens'][1]", the batch by its name.
    batches = [row for row in computed if all(roles.get(p) == "batch" for p in row.covers)]
    has_batch = any(row.group.startswith("batch") for row in batches)
    has_other = any(not row.group.startswith("batch") for row in batches)
    if has_parameters:
        return _Axis("expert") if has_batch else _Axis("tensor", splits_sequence=has_other)
    if has_batch or not has_other:
        is_stored = has_batch and "full" in levels
        return _Axis("fsdp") if is_stored else _Axis("data", splits_optimizer=bool(levels))
    return _Axis("context")


def _partial_notes(plan: PlanRecord, axes: list[_Axis]) -> list[str]:
    """Where an axis does more than its role says."""
    notes = []
    for (name, size), axis in zip(plan.mesh.axes, axes, strict=True):
        stored = [r for r in plan.decisions if r.kind == "storage" and name in r.axes]
        if axis.role in ("tensor", "expert", "context") and stored:
            notes.append(
                f"axis {name} is {axis.role}={size}, and stores {stored[0].group} split besides"
            )
        if axis.role == "data" and not any(name in row.axes for row in plan.decisions):
            notes.append(f"axis {name}={size} splits nothing: its devices do the same")
    return notes


def _pipeline_degrees(plan: PlanRecord, notes: list[str]) -> Degrees:
    """Stages, and the devices of each as replicas; what a stage does inside is noted."""
    pipeline = plan.pipeline
    assert pipeline is not None  # noqa: S101 - the caller has looked
    counts = sorted({len(stage.devices) for stage in pipeline.stages})
    inside: dict[Role, int] = {"pipeline": len(pipeline.groups)}
    if len(counts) == 1 and counts[0] > 1:
        inside["data"] = counts[0]
    if len(counts) > 1:
        shown = ", ".join(str(len(stage.devices)) for stage in pipeline.stages)
        notes.append(f"stages have {shown} devices; degrees say one number for all")
    if any(stage.inside is not None for stage in pipeline.stages):
        notes.append("how stages are sharded inside is left out; their devices count as data")
    notes.append("where the stages are cut is left out: both programs cut layers evenly")
    each = pipeline.stages_per_group
    more = f", {each} stages on each group of devices" if each > 1 else ""
    notes.append(f"the schedule is {pipeline.schedule}{more}")
    return Degrees(
        inside=inside, between={}, microbatches=pipeline.microbatches, notes=tuple(notes)
    )


def maxtext(degrees: Degrees) -> list[str]:
    """Lines of a MaxText configuration (YAML): every parallelism, so that no default is left."""
    lines = []
    for prefix, part in (("dcn", degrees.between), ("ici", degrees.inside)):
        for role in get_args(Role):
            name, degree = role, part.get(role, 1)
            # MaxText has one axis for features alone and one for features beside the sequence.
            if role == "tensor" and degrees.splits_sequence and degree > 1:
                lines.append(f"{prefix}_tensor_parallelism: 1")
                name = "tensor_sequence"
            lines.append(f"{prefix}_{name}_parallelism: {degree}")
    if degrees.microbatches is not None:
        lines.append(f"num_pipeline_microbatches: {degrees.microbatches}")
    # Without a word on it the configuration's own stays: the plan has none to add.
    return lines + (["remat_policy: full"] if degrees.rematerializes_all else [])


def megatron(degrees: Degrees) -> list[str]:
    """Arguments of Megatron-LM; its data parallel size is what is left of the world."""
    sizes = {flag: degrees.degree(role) for role, flag in _MEGATRON_SIZES.items()}
    lines = [f"--{flag} {size}" for flag, size in sizes.items()]
    switches = {
        "sequence-parallel": degrees.splits_sequence,
        "use-distributed-optimizer": degrees.splits_optimizer,
        "use-megatron-fsdp": degrees.degree("fsdp") > 1,
    }
    lines += [f"--{flag}" for flag, is_on in switches.items() if is_on]
    return lines + (list(_MEGATRON_REMAT) if degrees.rematerializes_all else [])


_MEGATRON_SIZES: Final[Mapping[Role, str]] = {
    "tensor": "tensor-model-parallel-size",
    "pipeline": "pipeline-model-parallel-size",
    "context": "context-parallel-size",
    "expert": "expert-model-parallel-size",
}
_MEGATRON_REMAT: Final = (
    "--recompute-granularity full",
    "--recompute-method uniform",
    "--recompute-num-layers 1",
)
# What a MaxText axis is of ours; those that only inference has are not read.
_MAXTEXT_AXES: Final[Mapping[str, Role]] = {
    "data": "data",
    "fsdp": "fsdp",
    "fsdp_transpose": "fsdp",
    "sequence": "context",
    "context": "context",
    "tensor": "tensor",
    "tensor_transpose": "tensor",
    "tensor_sequence": "tensor",
    "expert": "expert",
    "pipeline": "pipeline",
}
_MAXTEXT_LINE: Final = re.compile(r"\b(ici|dcn)_(\w+)_parallelism\s*[:=]\s*['\"]?(-?\d+)")
_MAXTEXT_MICROBATCHES: Final = re.compile(r"\bnum_pipeline_microbatches\s*[:=]\s*(\d+)")
_MAXTEXT_REMAT: Final = re.compile(r"\bremat_policy\s*[:=]\s*['\"]?(\w+)")


def read_maxtext(text: str, device_count: int) -> Degrees:
    """The degrees of a MaxText configuration, or of its command line, on so many devices.

    One degree may be -1: what is left. Raises `InputError` for two of these, for an axis that is
    not known, and for degrees that are not those of the devices.
    """
    parts: dict[str, dict[Role, int]] = {"ici": {}, "dcn": {}}
    open_ended: list[tuple[str, Role]] = []
    named: dict[tuple[str, str], int] = {}
    # A later line overrides an earlier one, as a command line does a file.
    for prefix, axis, degree in _MAXTEXT_LINE.findall(text):
        named[prefix, axis] = _count(f"{prefix}_{axis}_parallelism", degree)
    for (prefix, axis), degree in named.items():
        if axis not in _MAXTEXT_AXES and degree != 1:
            known = ", ".join(_MAXTEXT_AXES)
            raise InputError(f"{prefix}_{axis}_parallelism: {degree}; allowed axes: {known}")
        role = _MAXTEXT_AXES.get(axis, "data")
        if degree == -1:
            open_ended.append((prefix, role))
        elif degree < 1:
            raise InputError(f"{prefix}_{axis}_parallelism: {degree}; allowed: -1, or from 1")
        elif degree > 1:
            parts[prefix][role] = parts[prefix].get(role, 1) * degree
    if not named:
        raise InputError("no ici_..._parallelism or dcn_..._parallelism; is it for MaxText?")
    _fill(parts, open_ended, device_count)
    microbatches, policies = _MAXTEXT_MICROBATCHES.findall(text), _MAXTEXT_REMAT.findall(text)
    count = _count("num_pipeline_microbatches", microbatches[-1]) if microbatches else None
    degrees = Degrees(
        inside=parts["ici"],
        between=parts["dcn"],
        splits_sequence=max(named.get((p, "tensor_sequence"), 1) for p in parts) > 1,
        microbatches=count,
        rematerializes_all=policies[-1:] == ["full"],
        notes=tuple(_remat_note(policy) for policy in policies[-1:]),
    )
    return _checked(degrees, device_count)


def _count(name: str, digits: str) -> int:
    """What a configuration says of `name`; more digits than a cluster has devices are no count."""
    if len(digits) > 10:
        raise InputError(f"{name}: got {digits[:20]}... of {len(digits)} digits; allowed: up to 10")
    return int(digits)


def _remat_note(policy: str) -> str:
    return (
        f"remat_policy {policy} is the model's: what the step itself rematerializes "
        "(jax.checkpoint) is planned as it is, and levers compute more again where memory decides"
    )


def _fill(
    parts: Mapping[str, dict[Role, int]], open_ended: list[tuple[str, Role]], device_count: int
) -> None:
    """Give what is left to the degree that is -1."""
    said = prod(degree for part in parts.values() for degree in part.values())
    if len(open_ended) > 1 and device_count != said:
        names = ", ".join(f"{prefix}_{role}_parallelism" for prefix, role in open_ended)
        raise InputError(f"{names} are -1; of {device_count} devices one can be what is left")
    if open_ended and device_count % said == 0 and device_count > said:
        prefix, role = open_ended[0]
        parts[prefix][role] = parts[prefix].get(role, 1) * (device_count // said)


def read_megatron(text: str, device_count: int) -> Degrees:
    """The degrees of Megatron-LM's arguments, from a script or a YAML file, on so many devices.

    Raises `InputError` for degrees that do not divide the devices.
    """
    inside: dict[Role, int] = {}
    is_any = False
    for role, flag in _MEGATRON_SIZES.items():
        pattern = rf"(?<![\w-]){flag.replace('-', '[-_]')}['\"]?(?:\s*[:=]\s*|\s+)(\d+)"
        sizes = re.findall(pattern, text.replace("--", " "))
        is_any = is_any or bool(sizes)
        if sizes and (degree := _count(f"--{flag}", sizes[-1])) > 1:
            inside[role] = degree
    if not is_any:
        known = ", ".join(f"--{flag}" for flag in _MEGATRON_SIZES.values())
        raise InputError(f"none of {known}; is it for Megatron?")

    def is_on(*flags: str) -> bool:
        names = "|".join(flag.replace("-", "[-_]") for flag in flags)
        return (
            re.search(rf"(?<![\w-])(?:--)?({names})(?![\w-])(?!\s*[:=]\s*false)", text) is not None
        )

    # Experts share the devices of data parallelism there, and of tensor parallelism: a group of
    # data-parallel ranks holds each expert once.
    said = prod(size for role, size in inside.items() if role != "expert")
    if device_count % said or (device_count // said) % inside.get("expert", 1):
        raise InputError(f"{inside} on {device_count} devices: each has to divide what is left")
    data: Role = "fsdp" if is_on("use-megatron-fsdp", "use-torch-fsdp2") else "data"
    left = device_count // said // inside.get("expert", 1)
    if left > 1:
        inside[data] = left
    return Degrees(
        inside=inside,
        between={},
        splits_sequence=is_on("sequence-parallel"),
        splits_optimizer=is_on("use-distributed-optimizer"),
        rematerializes_all=re.search(r"recompute[-_]granularity\s*[:=]?\s*full", text) is not None,
    )


def _checked(degrees: Degrees, device_count: int) -> Degrees:
    if degrees.device_count != device_count:
        said = ", ".join(f"{role}={degrees.degree(role)}" for role in get_args(Role))
        raise InputError(
            f"{said} are for {degrees.device_count} devices; the topology has {device_count}"
        )
    return degrees


WRITERS: Final[Mapping[OtherProgram, Callable[[Degrees], list[str]]]] = {
    "maxtext": maxtext,
    "megatron": megatron,
}
READERS: Final[Mapping[OtherProgram, Callable[[str, int], Degrees]]] = {
    "maxtext": read_maxtext,
    "megatron": read_megatron,
}


def plan_options(degrees: Degrees) -> tuple[list[str], list[str]]:
    """(words of `automap plan`, notes): the mesh, and the preset that is those degrees.

    Where no preset is, the search decides on the mesh that the degrees give.
    """
    notes = list(degrees.notes)
    model: tuple[Role, ...] = ("tensor", "expert", "context")
    if degrees.degree("pipeline") > 1:
        words = ["--space", "hybrid", "--stages", str(degrees.degree("pipeline"))]
        if degrees.microbatches is not None:
            words += ["--microbatches", str(degrees.microbatches)]
        if any(degrees.degree(role) > 1 for role in (*model, "fsdp")):
            notes.append("how stages are sharded inside is searched")
        return words, notes
    axes = {role: degrees.degree(role) for role in ("data", "fsdp", *model)}
    used = {role: size for role, size in axes.items() if size > 1}
    # Presets give features or experts to the axis called model.
    single = [role for role in model if role in used]
    is_model = single in (["tensor"], ["expert"])
    renamed = {"model" if is_model and r in single else r: size for r, size in used.items()}
    mesh = ",".join(f"{name}={size}" for name, size in renamed.items()) or "data=1"
    preset = _preset(degrees, set(used))
    if preset is None:
        notes.append("no preset shards so: the search decides on this mesh")
        return ["--mesh", mesh], notes
    return ["--mesh", mesh, "--preset", preset], notes


def _preset(degrees: Degrees, used: set[str]) -> str | None:
    """The preset that splits so; None if there is none."""
    data = "zero-1" if degrees.splits_optimizer else "data-parallel"
    names = {
        frozenset({"data"}): data,
        frozenset(): data,
        frozenset({"fsdp"}): "zero-3",
        frozenset({"expert"}): "expert-parallel",
        frozenset({"data", "expert"}): "expert-parallel",
    }
    tensor = "sequence-parallel" if degrees.splits_sequence else "megatron"
    if not degrees.splits_optimizer:
        names |= {frozenset({"tensor"}): tensor, frozenset({"data", "tensor"}): tensor}
    return names.get(frozenset(used))
