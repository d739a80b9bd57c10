"""What a plan consists of: one frozen record per object of the plan file.

Field names are the names in the file (`automap.plan`); a field that would be a Python keyword ends
in an underscore, which the file leaves out. Values are checked when a record is made: numbers are
finite and not negative. What needs the mesh is checked by `Plan` itself.
"""

from dataclasses import dataclass, field
from math import prod
from typing import Literal

from automap.plan.checks import Spec, check_dtype, check_numbers, check_sha256, refuse
from automap.plan.codec import ADDED_LATER
from automap.plan.point import PointRecord
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
    """What was planned. `target` names it; the digests tell whether it is still the same.

    `hlo_sha256` is of the serialized HLO module; `jaxpr_sha256` is None for a program without a
    jaxpr (an HLO file); `rules` are the user's sharding rules, (name, rule); `arguments` are what
    the target function was called with, (name, text), as the command's `--arg`. `weak_inputs` are
    paths of inputs whose type was weak, as a Python number's is; `jax_version` is that which traced
    the step, "" in older files.
    """

    target: str
    hlo_sha256: str
    jaxpr_sha256: str | None
    rules: tuple[tuple[str, str], ...]
    arguments: tuple[tuple[str, str], ...] = field(default=(), metadata=ADDED_LATER)
    weak_inputs: tuple[str, ...] = field(default=(), metadata=ADDED_LATER)
    jax_version: str = field(default="", metadata=ADDED_LATER)

    def __post_init__(self) -> None:
        """Raise `PlanError` for what is no SHA-256."""
        check_sha256("hlo_sha256", self.hlo_sha256)
        if self.jaxpr_sha256 is not None:
            check_sha256("jaxpr_sha256", self.jaxpr_sha256)
        for index, (_, text) in enumerate(self.rules):
            try:
                parse_notation(text)
            except HloError as error:
                raise refuse(f"rules[{index}][1]", text, "a rule as ik,kj->ij") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshRecord:
    """The logical mesh: (name, size) of each axis, major first, row-major on the devices."""

    axes: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        """Raise `PlanError` for two axes of one name, or a size below one."""
        names = [name for name, _ in self.axes]
        for index, (name, size) in enumerate(self.axes):
            if not name or name in names[:index]:
                raise refuse(f"axes[{index}][0]", name, f"a name that differs from {names[:index]}")
            if size < 1:
                raise refuse(f"axes[{index}][1]", size, "an integer >= 1")

    @property
    def device_count(self) -> int:
        """Number of devices of the mesh."""
        return prod(size for _, size in self.axes)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafRecord:
    """One input or output of the step: `path` as `jax.tree_util.keystr` has it."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    role: Role
    spec: Spec

    def __post_init__(self) -> None:
        """Raise `PlanError` for an unknown dtype or a negative size."""
        check_dtype("dtype", self.dtype)
        for dim, size in enumerate(self.shape):
            if size < 0:
                raise refuse(f"shape[{dim}]", size, "an integer >= 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintRecord:
    """A sharding imposed inside the step: `value` says on what, for people; `at` is the site."""

    value: str
    at: str
    spec: Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRecord:
    """Bytes of each device at the peak; `inputs` are batch, random keys and constants."""

    parameters: int
    optimizer: int
    other_state: int
    inputs: int
    activations: int
    temporaries: int

    def __post_init__(self) -> None:
        """Raise `PlanError` for a number out of range."""
        check_numbers(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRecord:
    """The collectives of one kind, over the same axes and in the same phase, of one step.

    `bytes` is the sum over all `count` of them, each counted as `automap.cost.collectives` does.
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
    """What one step is predicted to cost; `peak_bytes` is per device.

    `collective_seconds` are those in which a device waits for collectives, a part of the step;
    `hidden_seconds` those of collectives that run beside computation.
    """

    step_seconds: float
    compute_seconds: float
    collective_seconds: float
    bubble_seconds: float
    hidden_seconds: float = field(default=0.0, metadata=ADDED_LATER)
    peak_bytes: int
    fits: bool
    memory: MemoryRecord
    collectives: tuple[CollectiveRecord, ...]

    def __post_init__(self) -> None:
        """Raise `PlanError` for a number out of range."""
        check_numbers(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedRecord:
    """What a compiler said of the plan: `peak_bytes` of its buffers on one device, and whether they
    fit.

    `versions` are (package, version) of what decided it; `tried` plans were compiled, this one
    last.
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
    """What the best plan of a preset would cost, for comparison."""

    name: str
    step_seconds: float
    peak_bytes: int
    fits: bool

    def __post_init__(self) -> None:
        """Raise `PlanError` for a number out of range."""
        check_numbers(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRecord:
    """How the plan was found, and what. `gap` is the fraction above the proven bound; None: no
    bound.

    `point` is None in files of earlier versions only; `imposed` are those pins, PATH=SPEC, that no
    point keeps by itself and that were imposed on the step; `memory_limit_bytes` is what was given,
    None for a device's memory.
    """

    strategy: str
    seconds: float
    evaluations: int
    seed: int
    gap: float | None
    point: PointRecord | None = field(default=None, metadata=ADDED_LATER)
    imposed: tuple[str, ...] = field(default=(), metadata=ADDED_LATER)
    memory_limit_bytes: int | None = field(default=None, metadata=ADDED_LATER)

    def __post_init__(self) -> None:
        """Raise `PlanError` for a number out of range."""
        check_numbers(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """One decision and why it was taken.

    A compute decision splits the dimensions of a linkage group, and has no `level`; a storage
    decision keeps leaves split along axes: the optimizer's part only, or the parameter too
    (`full`). `covers` are the paths of the leaves and the labels of the values it concerns.
    """

    group: str
    kind: Literal["compute", "storage"]
    axes: tuple[str, ...]
    level: Literal["full", "optimizer"] | None
    covers: tuple[str, ...]
    reason: str

    def __post_init__(self) -> None:
        """Raise `PlanError` for a level on a compute decision, or none on a storage one."""
        if (self.kind == "storage") != (self.level is not None):
            allowed = "full | optimizer" if self.kind == "storage" else "null"
            raise refuse("level", self.level, f"{allowed} for a {self.kind} decision")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeRecord:
    """One way to settle a conflict, and what the same plan would cost with it."""

    name: str
    step_seconds: float
    peak_bytes: int
    fits: bool

    def __post_init__(self) -> None:
        """Raise `PlanError` for a number out of range."""
        check_numbers(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictRecord:
    """Two groups that meet on one tensor or op (or one that meets itself), where, and what can be
    done.

    `outcome` is the name of the one of `outcomes` that the plan has.
    """

    group: str
    with_: str
    at: str
    outcome: str
    outcomes: tuple[OutcomeRecord, ...]
