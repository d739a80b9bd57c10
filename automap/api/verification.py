"""`verify`: a plan held against what a compiler makes of it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from automap.api.records import FromRecord
from automap.choices import DEFAULT_COMPILE_TIMEOUT_SECONDS, DEFAULT_NUMERICS_GIB, CompilerName
from automap.plan.record import PlanRecord
from automap.report import verification
from automap.step.step import traced_call
from automap.verify.cache import default_folder
from automap.verify.comparison import compare
from automap.verify.compilers import COMPILERS
from automap.verify.compiling import ask
from automap.verify.numerics import compare_numerics
from automap.verify.pipelines import verify_pipeline
from automap.verify.program import planned_program
from automap.verify.stages import list_programs
from automap.verify.verification import (
    PipelineVerificationRecord,
    VerificationRecord,
    check_options,
    plan_compiler,
)


class PipelineVerification(FromRecord, PipelineVerificationRecord):
    """What a compiler says of a pipeline: `stages`, each predicted and compiled, the step that they
    make (`compiled_step_seconds`), `peak_bytes`, and whether it `fits`.

    `automap.verify.verification.PipelineVerificationRecord` has all attributes.
    """

    __slots__ = ()

    def explain(self) -> str:
        """All of it as text."""
        return verification.pipeline_report(self)


class Verification(VerificationRecord):
    """What was found about a plan: `witness`, what the compiler says (its `peak_bytes` and more),
    `comparison` of collectives, `numerics` (None if not asked for), and whether it `fits`.

    `automap.verify.verification.VerificationRecord` has all attributes.
    """

    __slots__ = ()

    def explain(self) -> str:
        """All of it as text."""
        return verification.report(self)


def verify(
    plan: PlanRecord,
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
) -> Verification | PipelineVerification:
    """Compile the planned step ahead of time, without the hardware, and compare with what the plan
    predicts. Of a pipeline the programs of each stage are compiled, equal ones once.

    Args:
        plan: a plan of this step.
        step: the function that was planned.
        args: its positional arguments: arrays, or `jax.ShapeDtypeStruct`s.
        kwargs: its keyword arguments.
        compiler: "cpu", "gpu" or "tpu"; by default that of the plan's topology. "cpu" takes any
            plan but a placement, and partitions it alike, but needs other memory.
        timeout: seconds that each compilation or run may take; all stages of a pipeline together
            are one compilation.
        cache_dir: where witnesses are kept; by default in the user's cache folder.
        cache: whether to look there, and to keep the answer.
        numerics: whether to run the step beside the planned one on fake CPU devices; a pipeline is
            not run.
        numerics_limit: GiB that this may take; a larger model is skipped.

    Returns:
        What the compiler says (bytes of one device, seconds of the compilation), the collectives
        that it made beside those that were predicted, and how far the results of the planned step
        are from those of the single-device step. Of a pipeline the seconds and bytes of each stage,
        and the step that they make, each beside what was predicted.

    Raises:
        CompilerError: a compiler that is missing, fails, or is not done in time.
        InputError: a bad option, or a step that cannot be traced or exported.
        PlanError: a plan of another step, or a placement.
    """
    name = check_options(plan, compiler, timeout, numerics_limit)
    call = traced_call(step, args, kwargs, name=plan.workload.target, mesh=plan.mesh.axes)
    # None keeps nothing and looks nowhere.
    folder = (default_folder() if cache_dir is None else Path(cache_dir)) if cache else None
    if plan.pipeline is not None:
        listing = list_programs(plan, call, COMPILERS[name].platform)
        return PipelineVerification.from_record(
            verify_pipeline(plan, listing, name, timeout_seconds=timeout, cache_folder=folder)
        )
    program = planned_program(plan, call)
    witness = ask(program, name, timeout_seconds=timeout, cache_folder=folder)
    sources = program.reemitter.source_by_path
    return Verification(
        target=plan.workload.target,
        plan_compiler=plan_compiler(plan),
        witness=witness,
        comparison=compare(plan, witness, COMPILERS[name].backend, sources),
        numerics=compare_numerics(
            program,
            jax.tree.leaves(call.args),
            timeout_seconds=timeout,
            limit_bytes=numerics_limit * 2**30,
        )
        if numerics
        else None,
    )
