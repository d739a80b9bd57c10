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
from automap.plan.record import PlanRecord
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


def check_options(
    plan: PlanRecord, compiler: CompilerName | None, timeout_seconds: float, limit_gib: float
) -> CompilerName:
    """The compiler to ask. Raises `InputError` for options out of range or an unknown compiler."""
    for option, value, unit in (
        ("timeout", timeout_seconds, "seconds"),
        ("numerics limit", limit_gib, "GiB"),
    ):
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{option} {value}: must be a positive number of {unit}")
    if compiler is not None and compiler not in COMPILERS:
        raise InputError(f"compiler {compiler!r}; allowed: {', '.join(get_args(CompilerName))}")
    # Plans of HLO files have no step, whose equations the constraints count.
    if plan.workload.jaxpr_sha256 is None:
        raise InputError(
            f"the plan was made from the program {plan.workload.target}: there is no step to "
            "compile; plan module:function, which returns the step, to verify it"
        )
    return compiler or plan_compiler(plan)


def plan_compiler(plan: PlanRecord) -> CompilerName:
    """The compiler of the plan's topology."""
    return COMPILER_BY_PLATFORM[Topology.from_dict(plan.topology).platform]
