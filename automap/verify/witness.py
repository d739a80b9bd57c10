"""The witness: what a compiler said of a planned step; frozen, JSON, the same in every process.

`automap.plan.codec` reads and writes it: unknown fields, wrong types and numbers out of range are
refused with the field's path.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from automap.choices import CompilerName
from automap.plan import codec as plan_json
from automap.plan.checks import check_numbers, check_sha256, check_version, refuse
from automap.verify.messages import MemoryBytes


FORMAT: Final = "automap-witness"
VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledRecord:
    """Equal collectives of the partitioned program: `bytes` each, `count` per step.

    `kind` is XLA's opcode, `axes` are mesh axes, or "?" for groups that are none; `site` is the
    equation it was made for, `op_name` what XLA calls it. Both are empty where the compiler forgot.
    """

    kind: str
    axes: tuple[str, ...]
    bytes: int
    count: int
    site: str
    op_name: str

    def __post_init__(self) -> None:
        """Raise `PlanError` for a number out of range."""
        check_numbers(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """The compiled schedule, replayed (`automap.verify.replayed`): seconds of one step, of its
    kernels and of its collectives and copies between memories, some of which run beside kernels.
    """

    seconds: float
    kernel_seconds: float
    collective_seconds: float

    def __post_init__(self) -> None:
        """Raise `PlanError` for a number out of range."""
        check_numbers(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """What one compiler says of one plan.

    `fits` is its verdict where it has one (the TPU compiler refuses what does not fit), else
    whether `peak_bytes` are within the device's memory. `peak_bytes` are the compiler's buffers on
    one device, or, when it refuses, what it says it would need; None if it does not say. `memory`
    is None when it refuses. `refusal` is its text then, "" otherwise. `collectives` is None where
    the program could not be read, and `program` names the file beside the witness that holds it
    (gzip of an HLO proto), None if there is none. `step` is None where its schedule has no seconds.
    """

    compiler: CompilerName
    versions: tuple[tuple[str, str], ...]
    topology: str
    planned_sha256: str
    fits: bool
    memory_limit_bytes: int
    peak_bytes: int | None
    memory: MemoryBytes | None
    refusal: str
    collectives: tuple[CompiledRecord, ...] | None
    compile_seconds: float
    program: str | None
    step: StepRecord | None = field(default=None, metadata=plan_json.ADDED_LATER)

    def __post_init__(self) -> None:
        """Raise `PlanError` for what contradicts itself."""
        check_numbers(self)
        check_sha256("planned_sha256", self.planned_sha256)
        # Either the program was compiled and has its memory, or it was refused with a text.
        if (self.memory is None) != bool(self.refusal):
            raise refuse("refusal", self.refusal, "a text if there is no memory, else none")
        if self.refusal and self.fits:
            raise refuse("fits", self.fits, "false for a program that the compiler refused")

    def to_json(self) -> dict[str, Any]:
        """JSON values, read back by `from_json`."""
        return {"format": FORMAT, "version": VERSION, **plan_json.encode(self)}

    @classmethod
    def from_json(cls, data: object) -> "Witness":
        """The witness that JSON values stand for. Raises `PlanError` with the field's path."""
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            got = data.get("format") if isinstance(data, Mapping) else data
            raise refuse("format", got, f'an object with "format": "{FORMAT}"')
        # A cache may hold witnesses of other versions: they are misses, and asked for again.
        check_version(data.get("version"), VERSION, "verify again")
        fields = {key: data[key] for key in data if key not in ("format", "version")}
        return plan_json.decode(cls, fields, "")
