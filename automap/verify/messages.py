"""What the planner's process and the compiler's say to each other, as JSON files in a folder of
their own.

    request.json     what to do                                   planner -> compiler
    planned.bin      the step under its plan, a serialized `jax.export.Exported` with flat inputs
                     and outputs
    single.bin       the step for one device, likewise            (for `RunRequest` only)
    given-<i>.npy    input i, where the caller has it             (for `RunRequest` only)
    answer.json      what came of it                              compiler -> planner
    program.pb.gz    the partitioned program, an HLO proto        (for a step to compile)

and of a pipeline, whose step is several programs, for number i of `Request.stages`

    planned-<i>.bin  the program, likewise                        planner -> compiler
    program-<i>.pb.gz                                             compiler -> planner

The records are read by `automap.plan.codec`, so nothing malformed gets in.
"""

from dataclasses import dataclass, field
from typing import Final, Literal

from automap.plan.checks import Spec, check_numbers
from automap.plan.codec import ADDED_LATER
from automap.plan.pipeline import PipelineRecord
from automap.verify.compilers import CompilerMachine


REQUEST_FILE: Final = "request.json"
ANSWER_FILE: Final = "answer.json"
PLANNED_FILE: Final = "planned.bin"
SINGLE_FILE: Final = "single.bin"
PROGRAM_FILE: Final = "program.pb.gz"

InputKind = Literal["given", "weight", "normal", "zeros", "ones", "bits", "key"]
"""How an input of a numerics run is made (`automap.verify.inputs`)."""


def given_file(index: int) -> str:
    """The file of an input that the caller has."""
    return f"given-{index}.npy"


def stage_files(index: int) -> tuple[str, str]:
    """The files of a program of a pipeline's stage: as exported, and as compiled."""
    return f"planned-{index}.bin", f"program-{index}.pb.gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanShardings:
    """A plan as a compiler needs it: the mesh with the order of its devices, specs of flat inputs
    and outputs, donation, and the numbers of inputs and outputs that are in the host's memory.
    """

    axes: tuple[tuple[str, int], ...]
    devices: tuple[int, ...] | None
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    donated: tuple[int, ...]
    hosted_inputs: tuple[int, ...] = ()
    hosted_outputs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """How to run the step twice and compare.

    `state` has, per output, the number of the input it replaces, or None. `input_rounding` is the
    relative rounding error of the least precise type the step computes in.
    """

    kinds: tuple[InputKind, ...]
    state: tuple[int | None, ...]
    input_rounding: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageInput:
    """Where an input of a stage's program lies: as `spec` says, or as output (number of a program
    before it, number of its output) `made` does.

    What another stage made comes with the axes `received` on its dimensions, and keeps what both
    meshes can have of its parts; None for what the stage itself made.
    """

    spec: Spec | None = None
    made: tuple[int, int] | None = None
    received: tuple[tuple[str, ...], ...] | None = None


ProgramKind = Literal[
    "before", "start", "forward", "backward", "weights", "finish", "join", "update"
]
"""What a stage's program is: its passes, or what it does once in a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageProgram:
    """A program of a stage; an output whose spec is None is split as the compiler chooses, those
    `laid_freely` (their numbers) lie in memory in an order that it chooses.

    `sha256` is of its StableHLO without names: equal programs are compiled once.
    """

    kind: ProgramKind
    stage: int
    sha256: str
    inputs: tuple[StageInput, ...]
    outputs: tuple[Spec | None, ...]
    donated: tuple[int, ...]
    laid_freely: tuple[int, ...]

    @property
    def name(self) -> str:
        """`the forward pass of stage 0`."""
        is_pass = self.kind in ("forward", "backward", "weights")
        what = f"the {self.kind} pass" if is_pass else f"{self.kind!r}"
        return f"{what} of stage {self.stage}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagesRequest:
    """The programs of a pipeline's stages, each after those that make what it reads."""

    pipeline: PipelineRecord
    programs: tuple[StageProgram, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A job: compile the planned step, with `stages` its programs, or, with `run`, run it beside
    the single-device step.
    """

    machine: CompilerMachine
    shardings: PlanShardings
    run: RunRequest | None
    stages: StagesRequest | None = field(default=None, metadata=ADDED_LATER)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBytes:
    """What a compiler says one device holds, in bytes; `aliased` is in arguments and in outputs."""

    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    generated_code: int

    def __post_init__(self) -> None:
        """Raise `PlanError` for a number out of range."""
        check_numbers(self)

    @property
    def peak(self) -> int:
        """Bytes of all buffers of a step, code not counted."""
        # A donated input and the output in its place are one buffer, counted in both.
        return max(self.arguments + self.outputs - self.aliased + self.temporaries, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafErrors:
    """Root mean squares over one output leaf, in the units of the leaf.

    `value` and `change` are of the single-device result and of its difference to the state it
    replaces (to zero for other results), `error` of planned minus single, `rounding` of how far
    `change` moves when the inputs are rounded otherwise. `finite` is the fraction of elements that
    are finite in all runs.
    """

    value: float
    change: float
    error: float
    rounding: float
    finite: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramAnswer:
    """What came of a program of a stage: compiled, the `same_as` an earlier one, refused for memory
    with `message`, or unknown as something that it reads was.

    Bytes of each input and output are those on one device.
    """

    outcome: Literal["done", "out-of-memory", "unknown"]
    message: str
    same_as: int | None
    memory: MemoryBytes | None
    input_bytes: tuple[int, ...]
    output_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of a request; `message` is the compiler's, of an outcome that is not "done",
    `programs` are those of a pipeline.
    """

    # "busy" is for the process to try again, "out-of-memory" a result and no failure.
    outcome: Literal["done", "out-of-memory", "busy", "failed"]
    message: str
    seconds: float
    memory: MemoryBytes | None
    leaves: tuple[LeafErrors, ...]
    programs: tuple[ProgramAnswer, ...] = field(default=(), metadata=ADDED_LATER)
