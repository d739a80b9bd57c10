"""`verify`: hold a plan against a compiler, and the planned step against the step.

plan, step, args -> trace, check that they belong together -> witness -> comparison
                                                          -> both steps on the CPU -> numerics
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
import math
from pathlib import Path
from typing import Any, get_args

import jax

from automap.choices import (
    DEFAULT_COMPILE_TIMEOUT_SECONDS,
    DEFAULT_NUMERICS_GIB,
    CompilerName,
)
from automap.errors import InputError
from automap.plan import Plan
from automap.plan_json import encode
from automap.topology.model import Topology
from automap.verify.cache import default_folder
from automap.verify.comparison import Comparison, compare
from automap.verify.compilers import COMPILERS, OF_PLATFORM
from automap.verify.compiling import ask
from automap.verify.numerics import Numerics, compare_numerics
from automap.verify.program import planned_program
from automap.verify.witness import Witness
from automap.workload.step import traced_call


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was found about a plan; `numerics` is None if it was not asked for.

    `plan_compiler` is that of the plan's topology. The witness of another one says nothing of whether the plan fits there.
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

    def explain(self) -> str:
        """All of it as text."""
        # The text needs nothing of a compiler, nor verifying anything of the text.
        from automap.verify.text import report

        return report(self)


def verify(
    plan: Plan,
    step: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    compiler: CompilerName | None = None,
    timeout: float = DEFAULT_COMPILE_TIMEOUT_SECONDS,
    cache_dir: str | Path | None = None,
    cache: bool = True,
    numerics: bool = True,
    numerics_limit: float = DEFAULT_NUMERICS_GIB,
) -> Verification:
    """Compile the planned step ahead of time, without the hardware, and compare with what the plan predicts.

    Args:
        plan: a plan of this step.
        step: the function that was planned.
        args: its positional arguments: arrays, or `jax.ShapeDtypeStruct`s.
        kwargs: its keyword arguments.
        compiler: "cpu", "gpu" or "tpu"; by default that of the plan's topology. "cpu" takes any plan, and partitions it alike,
            but needs other memory.
        timeout: seconds that each compilation or run may take.
        cache_dir: where witnesses are kept; by default in the user's cache folder.
        cache: whether to look there, and to keep the answer.
        numerics: whether to run the step beside the planned one on fake CPU devices.
        numerics_limit: GiB that this may take; a larger model is skipped.

    Raises:
        CompilerError: a compiler that is missing, fails, or is not done in time.
        InputError: a bad option, or a step that cannot be traced or exported.
        PlanError: a plan of another step.
    """
    name = check_options(plan, compiler, timeout, numerics_limit)
    call = traced_call(step, args, kwargs, name=plan.workload.target, mesh=plan.mesh.axes)
    program = planned_program(plan, call)
    folder = (default_folder() if cache_dir is None else Path(cache_dir)) if cache else None
    witness = ask(program, name, timeout_seconds=timeout, cache_folder=folder)
    sources = program.reemitter.source_of_path
    return Verification(
        target=plan.workload.target,
        plan_compiler=compiler_of(plan),
        witness=witness,
        comparison=compare(plan, witness, COMPILERS[name].backend, sources),
        numerics=compare_numerics(
            program, jax.tree.leaves(call.args), timeout_seconds=timeout,
            limit_bytes=numerics_limit * 2**30,
        ) if numerics else None,
    )  # fmt: skip


def check_options(
    plan: Plan, compiler: CompilerName | None, timeout_seconds: float, limit_gib: float
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
    if plan.workload.jaxpr_sha256 is None:
        raise InputError(
            f"the plan was made from the program {plan.workload.target}: there is no step to compile; "
            "plan module:function, which returns the step, to verify it"
        )
    return compiler or compiler_of(plan)


def compiler_of(plan: Plan) -> CompilerName:
    """The compiler of the plan's topology."""
    return OF_PLATFORM[Topology.from_dict(plan.topology).platform]
