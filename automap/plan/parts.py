"""What a plan consists of: one frozen record per object of the plan file.

Field names are the names in the file (`automap.plan`); a field that would be a Python keyword ends
in an underscore, which the file leaves out. Values are checked when a record is made: numbers are
finite and not negative. What needs the mesh is checked by `Plan` itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final, Literal

from automap.plan.checks import Spec, check_dtype, check_numbers, check_sha256, refuse
from automap.plan.codec import ADDED_LATER
from automap.plan.memory_curve import MemoryRecord
from automap.plan.point import PointRecord
from automap.plan.rates import RatesRecord
from hlo_tools.errors import HloError
from hlo_tools.rules import parse_notation


Role = Literal[
    "parameter", "optimizer state", "other state", "batch", "rng key", "constant", "result"
]
"""Roles of inputs; an output has that of the input it replaces, else `result`."""

Phase = Literal["forward", "backward", "update"]
CollectiveName = Literal[
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRecord:
    """What was planned; the digests tell whether it is still the same.

    - `target`: what the command was given, `module:function` or a path; of a plan made in Python
      the name of the step. For people: nothing is imported or called because a file says so.
    - `hlo_sha256`: of the serialized HLO module, lowered for the plan's platform.
    - `jaxpr_sha256`: of the step's equations; None for a program that came without (an HLO file).
    - `rules`: the user's sharding rules, (name of a custom call or jitted function, rule).
    - `arguments`: what the target function was called with, (name, text), as the command's `--arg`.
    - `weak_inputs`: paths of the inputs whose type was weak, as a Python number's is.
    - `jax_version`: that which traced the step; "" in older files.
    - `made_from`: what `target` names: what the command was given ("target", and in older files),
      or the step itself, given in Python ("step"), which no command can be given.
    """

    target: str
    hlo_sha256: str
    jaxpr_sha256: str | None
    rules: tuple[tuple[str, str], ...]
    arguments: tuple[tuple[str, str], ...] = field(default=(), metadata=ADDED_LATER)
    weak_inputs: tuple[str, ...] = field(default=(), metadata=ADDED_LATER)
    jax_version: str = field(default="", metadata=ADDED_LATER)
    made_from: Literal["target", "step"] = field(default="target", metadata=ADDED_LATER)

    def __post_init__(self) -> None:
        """Raise `PlanError` for what is no SHA-256."""
        check_sha256("hlo_sha256", self.hlo_sha256)
        if self.jaxpr_sha256 is not None:
            check_sha256("jaxpr_sha256", self.jaxpr_sha256)
        # Rules are read again when the plan is applied, so a bad one is refused with the file.
        for index, (_, text) in enumerate(self.rules):
            try:
                parse_notation(text)
            except HloError as error:
                raise refuse(f"rules[{index}][1]", text, "a rule as ik,kj->ij") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshRecord:
    """The logical mesh.

    - `axes`: (name, size) of each axis, major first.
    - `devices`: the number of the topology's device at each place of the mesh, places row-major:
      the last axis varies fastest; null, and in older files, the devices in the order of their
      numbers. A TPU slice's are numbered row-major over the coordinates of its chips.
    """

    axes: tuple[tuple[str, int], ...]
    devices: tuple[int, ...] | None = field(default=None, metadata=ADDED_LATER)

    def __post_init__(self) -> None:
        """Raise `PlanError` for axes of one name or no size, and devices not each there once."""
        names = [name for name, _ in self.axes]
        for index, (name, size) in enumerate(self.axes):
            # A spec names axes, so two of one name could not be told apart.
            if not name or name in names[:index]:
                raise refuse(f"axes[{index}][0]", name, f"a name that differs from {names[:index]}")
            if size < 1:
                raise refuse(f"axes[{index}][1]", size, "an integer >= 1")
        given = self.devices
        # No more are listed than are given: a file's mesh may have more than there is memory for.
        if given is not None and sorted(given) != [*range(self.device_count)[: len(given) + 1]]:
            allowed = f"null, or each device from 0 to {self.device_count - 1} once"
            raise refuse("devices", list(given), allowed)

    @property
    def device_count(self) -> int:
        """Number of devices of the mesh."""
        return prod(size for _, size in self.axes)

    @property
    def order(self) -> tuple[int, ...]:
        """`devices`, written out where they are in the order of their numbers."""
        return tuple(range(self.device_count)) if self.devices is None else self.devices


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafRecord:
    """One input or output of the step.

    - `path`: as `jax.tree_util.keystr` has it, in the tuple of positional arguments.
    - `shape`, `dtype`: of the whole array, by JAX's names of types; a random key is one element.
    - `role`: what the step uses an input as; an output has that of the input that it takes the
      place of at the next step, else `result`.
    - `spec`: for each dimension None, or the mesh axes that split it, major first; the product of
      their sizes divides the dimension.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    role: Role
    spec: Spec

    def __post_init__(self) -> None:
        """Raise `PlanError` for an unknown dtype or a negative size."""
        check_dtype("dtype", self.dtype)
        for dim, size in enumerate(self.shape):
            # 0 is allowed: an array without elements is an input like any other.
            if size < 0:
                raise refuse(f"shape[{dim}]", size, "an integer >= 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintRecord:
    """A sharding imposed inside the step, where propagation from the inputs would give another.

    - `value`: on what, for people.
    - `at`: `<site>:<place>`, the equation and which of its operands or results
      (`automap.jaxpr.sites`).
    - `spec`: as of a leaf, of the whole tensor there.
    """

    value: str
    at: str
    spec: Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRecord:
    """The collectives of one kind, over the same axes and in the same phase, of one step.

    - `kind`, `axes`, `phase`: what they have in common; several axes are one group of devices.
    - `count`: how many run in a step, every trip of a loop counted.
    - `bytes`: the sum over all of them, each counted as `automap.cost.collectives` does.
    """

    kind: CollectiveName
    axes: tuple[str, ...]
    phase: Phase
    count: int
    bytes: int

    def __post_init__(self) -> None:
        """Raise `PlanError` for a number out of range."""
        check_numbers(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedRecord:
    """What one step is predicted to cost, on a device.

    - `step_seconds`: from the beginning of a step to that of the next; the sum of the next three,
      and of `host_seconds`.
    - `compute_seconds`: in which the device runs kernels; the mean over devices that differ.
    - `collective_seconds`: in which it waits for collectives.
    - `bubble_seconds`: in which it waits for other stages, or a placement's other devices; else 0.
    - `hidden_seconds`: of collectives that run beside computation, and so are no part of the step;
      0 in older files.
    - `host_seconds`: in which it waits for what its host's memory has; 0 without, and in older
      files.
    - `peak_bytes`: the most that is alive at once on a device, the fullest where they differ.
    - `on_chip_bytes`: by how much less the compiler is expected to ask for, as it keeps some of the
      peak in memory on the chip; whether a plan fits does not count on it. 0 in older files.
    - `fits`: whether `peak_bytes` are within the device's memory, or the limit that was given.
    - `memory_margin`: by which share of `peak_bytes` the compiler may need more; 0 where that is
      not known, and in older files.
    - `unsure`: whether the plan fits, would not with that margin, and no compiler was asked.
    - `memory`: what the peak is made of.
    - `collectives`: all of a step that a device takes part in; of a placement what devices send.
    - `rates`: utilization, samples and tokens a second, and where the seconds go; null in older
      files.
    """

    step_seconds: float
    compute_seconds: float
    collective_seconds: float
    bubble_seconds: float
    hidden_seconds: float = field(default=0.0, metadata=ADDED_LATER)
    host_seconds: float = field(default=0.0, metadata=ADDED_LATER)
    peak_bytes: int
    on_chip_bytes: int = field(default=0, metadata=ADDED_LATER)
    fits: bool
    memory_margin: float = field(default=0.0, metadata=ADDED_LATER)
    unsure: bool = field(default=False, metadata=ADDED_LATER)
    memory: MemoryRecord
    collectives: tuple[CollectiveRecord, ...]
    rates: RatesRecord | None = field(default=None, metadata=ADDED_LATER)

    def __post_init__(self) -> None:
        """Raise `PlanError` for a number out of range."""
        check_numbers(self)
        if self.memory_margin > 1:
            raise refuse("memory_margin", self.memory_margin, "a share from 0 to 1")
        if self.unsure and not self.fits:
            raise refuse("unsure", self.unsure, "false for a plan that does not fit")
        if self.on_chip_bytes > self.peak_bytes:
            raise refuse("on_chip_bytes", self.on_chip_bytes, f"up to {self.peak_bytes}, the peak")

    @property
    def expected_bytes(self) -> int:
        """What the compiler is expected to ask for on a device."""
        return self.peak_bytes - self.on_chip_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedRecord:
    """What a compiler said of the plan, compiled ahead of time for its topology.

    - `compiler`: which one.
    - `versions`: (package, version) of what decided it.
    - `fits`: whether the compiler's own memory is enough.
    - `peak_bytes`: of its buffers on one device; of a pipeline those of the fullest stage.
    - `compile_seconds`: what this plan's compilation took, of a pipeline that of all its programs.
    - `tried`: how many plans were compiled until this one was confirmed, this one included.
    """

    compiler: Literal["cpu", "gpu", "tpu"]
    versions: tuple[tuple[str, str], ...]
    fits: bool
    peak_bytes: int
    compile_seconds: float
    tried: int

    def __post_init__(self) -> None:
        """Raise `PlanError` for a number out of range."""
        check_numbers(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetRecord:
    """What the best plan of a preset would cost, for comparison.

    - `name`: of the preset.
    - `step_seconds`, `peak_bytes`, `fits`: as of the plan itself.
    """

    name: str
    step_seconds: float
    peak_bytes: int
    fits: bool

    def __post_init__(self) -> None:
        """Raise `PlanError` for a number out of range."""
        check_numbers(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierRecord:
    """A plan that was priced, and that no other one is both faster and smaller than.

    - `step_seconds`, `peak_bytes`: as of the plan itself, without levers.
    """

    step_seconds: float
    peak_bytes: int

    def __post_init__(self) -> None:
        """Raise `PlanError` for a number out of range."""
        check_numbers(self)


_MOST_FRONTIER: Final = 64


def frontier_records(points: Sequence[tuple[float, float]]) -> tuple[FrontierRecord, ...]:
    """The points of a frontier from the fastest to the smallest; of many some, ends included."""
    count = min(len(points), _MOST_FRONTIER)
    places = [round(n * (len(points) - 1) / max(count - 1, 1)) for n in range(count)]
    rows = (points[place] for place in places)
    return tuple(FrontierRecord(step_seconds=s, peak_bytes=round(b)) for s, b in rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRecord:
    """How the plan was found, and which point of the space it is.

    - `strategy`: its name, or that of the preset where one was asked for.
    - `seconds`: of planning on the clock, from when the step was traced.
    - `evaluations`: different plans priced; of a pipeline the choices that were looked at.
    - `seed`: the same seed gives the same plan, if the search ended within its budget.
    - `gap`: (step - bound) / bound, the bound being what no plan is below; None if none is proven.
    - `point`: the point, with which the plan can be priced again; None for a pipeline, a placement
      and streams, and in files of earlier versions.
    - `imposed`: pins, PATH=SPEC, that no point keeps by itself, which were imposed on the step.
    - `memory_limit_bytes`: per device, what was given; None for the device's memory.
    - `frontier`: step over memory of the plans that were priced, from the fastest to the smallest.
    """

    strategy: str
    seconds: float
    evaluations: int
    seed: int
    gap: float | None
    point: PointRecord | None = field(default=None, metadata=ADDED_LATER)
    imposed: tuple[str, ...] = field(default=(), metadata=ADDED_LATER)
    memory_limit_bytes: int | None = field(default=None, metadata=ADDED_LATER)
    frontier: tuple[FrontierRecord, ...] = field(default=(), metadata=ADDED_LATER)

    def __post_init__(self) -> None:
        """Raise `PlanError` for a number out of range."""
        check_numbers(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """One decision and why it was taken.

    - `group`: what people call it: an input's dimension, "batch", or the leaves that are stored.
    - `kind`: a compute decision splits the dimensions of a linkage group, a storage decision keeps
      leaves split between their uses.
    - `axes`: the mesh axes; none where small tensors are left whole.
    - `level`: of a storage decision: `optimizer`, gradients and optimizer state only (ZeRO-1), or
      `full`, the parameter too (ZeRO-3); None of a compute decision.
    - `covers`: paths of the inputs that it concerns.
    - `reason`: what the same plan would cost without it.
    """

    group: str
    kind: Literal["compute", "storage"]
    axes: tuple[str, ...]
    level: Literal["full", "optimizer"] | None
    covers: tuple[str, ...]
    reason: str

    def __post_init__(self) -> None:
        """Raise `PlanError` for a level on a compute decision, or none on a storage one."""
        # The two kinds share a record, so one field has to be empty for one of them.
        if (self.kind == "storage") != (self.level is not None):
            allowed = "full | optimizer" if self.kind == "storage" else "null"
            raise refuse("level", self.level, f"{allowed} for a {self.kind} decision")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeRecord:
    """One way to settle a conflict, and what the same plan would cost with it.

    - `name`: what is done.
    - `step_seconds`, `peak_bytes`, `fits`: as of the plan itself.
    """

    name: str
    step_seconds: float
    peak_bytes: int
    fits: bool

    def __post_init__(self) -> None:
        """Raise `PlanError` for a number out of range."""
        check_numbers(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictRecord:
    """Two groups that meet on one tensor or op, or one that meets itself, and what can be done.

    - `group`, `with_`: their names, the same one for a group that meets itself.
    - `at`: where they first meet, and in how many more places.
    - `outcome`: the name of the one of `outcomes` that the plan has.
    - `outcomes`: the ways to settle it that fit on the mesh, the plan's own among them.
    """

    group: str
    with_: str
    at: str
    outcome: str
    outcomes: tuple[OutcomeRecord, ...]
