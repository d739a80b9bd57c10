"""The result of holding a plan against a compiler, and the planned step against the step; and the
options of doing so (`automap.api.verification` does it):

    plan, step, args -> trace, check that they belong together -> witness -> comparison
                                                               -> both steps on the CPU -> numerics
"""

from dataclasses import dataclass
import math
from typing import Any, get_args

from automap.choices import CompilerName
from automap.errors import InputError
from automap.plan.codec import encode
from automap.plan.record import PlanRecord, check_is_one_program
from automap.topology.model import Topology
from automap.verify.comparison import Comparison
from automap.verify.compilers import COMPILER_BY_PLATFORM, COMPILERS
from automap.verify.numerics import Numerics
from automap.verify.witness import Witness


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationRecord:
    """What a compiler and a run say of a plan; `numerics` is None if it was not asked for.

    `plan_compiler` is that of the plan's topology. The witness of another one says nothing of
    whether the plan fits there.
    """

    target: str
    plan_compiler: CompilerName
    witness: Witness
    comparison: Comparison
    numerics: Numerics | None

    @property
    def is_verdict(self) -> bool:
        """Whether the plan's own compiler was asked, whose word on memory counts."""
        return self.witness.compiler == self.plan_compiler

    @property
    def fits(self) -> bool:
        """Whether the compiler that was asked has room for it; see `is_verdict`."""
        return self.witness.fits

    def to_json(self) -> dict[str, Any]:
        """JSON values, as `automap verify --json` prints them."""
        return {
            "target": self.target,
            "plan_compiler": self.plan_compiler,
            "witness": self.witness.to_json(),
            "comparison": encode(self.comparison),
            "numerics": encode(self.numerics),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StageNumbers:
    """Seconds and bytes of a stage, None where a compiler does not say them.

    Passes are of one microbatch, `reduce_seconds` of what is done once in a step; `peak_bytes` are
    those of each of its devices, all stages that they have together.
    """

    forward_seconds: float | None
    backward_seconds: float | None
    weights_seconds: float | None
    reduce_seconds: float | None
    peak_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageVerification:
    """One stage: predicted, and by the compiler. `refusal` is the compiler's text if it refuses one
    of its programs, else "".
    """

    stage: int
    devices: tuple[int, ...]
    layers: str
    fits: bool
    refusal: str
    predicted: StageNumbers
    compiled: StageNumbers


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineVerificationRecord:
    """What a compiler says of a pipeline; `plan_compiler` is that of the plan's topology.

    `program_count` programs are `compiled_count` different ones. `compiled_step_seconds` is None
    where the compiler does not say what its kernels take.
    """

    target: str
    plan_compiler: CompilerName
    compiler: CompilerName
    versions: tuple[tuple[str, str], ...]
    topology: str
    schedule: str
    microbatches: int
    memory_limit_bytes: int
    program_count: int
    compiled_count: int
    compile_seconds: float
    predicted_step_seconds: float
    compiled_step_seconds: float | None
    stages: tuple[StageVerification, ...]

    @property
    def is_verdict(self) -> bool:
        """Whether the plan's own compiler was asked, whose word on memory counts."""
        return self.compiler == self.plan_compiler

    @property
    def fits(self) -> bool:
        """Whether the compiler that was asked has room for all stages; see `is_verdict`."""
        return all(stage.fits for stage in self.stages)

    @property
    def peak_bytes(self) -> int | None:
        """Of the fullest stage; None if the compiler does not say it of all."""
        peaks = [stage.compiled.peak_bytes for stage in self.stages]
        known = [peak for peak in peaks if peak is not None]
        return max(known) if len(known) == len(peaks) else None

    @property
    def numerics(self) -> None:
        """None: a pipeline's numbers are held against the step's by running it."""
        return None

    def to_json(self) -> dict[str, Any]:
        """JSON values, as `automap verify --json` prints them."""
        return {**encode(self), "fits": self.fits, "peak_bytes": self.peak_bytes}


def check_options(
    plan: PlanRecord, compiler: CompilerName | None, timeout_seconds: float, limit_gib: float
) -> CompilerName:
    """The compiler to ask. Raises `InputError` for options out of range or an unknown compiler,
    `PlanError` for a plan that no compiler verifies.
    """
    # Said first: a graph of devices has no compiler of its own.
    if plan.placement is not None:
        check_is_one_program(plan)
    _check_positive("timeout", timeout_seconds, "seconds")
    check_numerics_limit(limit_gib)
    if compiler is not None and compiler not in COMPILERS:
        raise InputError(f"compiler {compiler!r}; allowed: {', '.join(get_args(CompilerName))}")
    _check_has_step(plan, "compile", "verify")
    return compiler or plan_compiler(plan)


def check_can_apply(plan: PlanRecord, limit_gib: float) -> None:
    """Raise `InputError` for a plan without a step to run, or a limit out of range."""
    check_numerics_limit(limit_gib)
    _check_has_step(plan, "run", "apply")


def check_numerics_limit(limit_gib: float) -> None:
    """Raise `InputError` for a limit out of range."""
    _check_positive("numerics limit", limit_gib, "GiB")


def _check_positive(option: str, value: float, unit: str) -> None:
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{option} {value}: must be a positive number of {unit}")


def _check_has_step(plan: PlanRecord, done: str, doing: str) -> None:
    # Plans of HLO files have no step, whose equations the constraints count.
    if plan.workload.jaxpr_sha256 is None:
        raise InputError(
            f"the plan was made from the program {plan.workload.target}: there is no step to "
            f"{done}; plan module:function, which returns the step, to {doing} it"
        )


def plan_compiler(plan: PlanRecord) -> CompilerName:
    """The compiler of the plan's topology."""
    return COMPILER_BY_PLATFORM[Topology.from_dict(plan.topology).platform]
