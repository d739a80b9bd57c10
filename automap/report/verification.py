"""A verification as text: the verdict, memory, collectives, where they differ, numerics."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from automap.backends import Backend
from automap.plan.pipeline import device_names
from automap.plan.record import PlanRecord
from automap.quantities import bytes_text, seconds_text
from automap.verify.comparison import CollectiveRow, Comparison
from automap.verify.compilers import COMPILERS
from automap.verify.numerics import Numerics
from automap.verify.verification import (
    PipelineVerificationRecord,
    StageVerification,
    VerificationRecord,
)
from automap.verify.witness import Witness


_SHOWN_ROWS: Final = 12
_SHOWN_LEAVES: Final = 5


def report(record: VerificationRecord) -> str:
    """Everything, for people."""
    lines = [
        *_verdict(record),
        *_step(record),
        *_memory(record),
        *_collectives(record.comparison, COMPILERS[record.witness.compiler].backend),
        *_places(record.comparison),
    ]
    if record.numerics is not None:
        lines += numerics_lines(record.numerics)
    return "\n".join(lines) + "\n"


def _versions_text(versions: tuple[tuple[str, str], ...]) -> str:
    """`jax 0.10.2, libtpu 0.0.51`."""
    return ", ".join(f"{name} {number}" for name, number in versions)


def _verdict(record: VerificationRecord) -> Iterator[str]:
    witness = record.witness
    title = COMPILERS[witness.compiler].title
    # Only the compiler of the plan's own machine can say whether the plan fits there.
    if record.is_verdict:
        verdict = "fits" if witness.fits else "DOES NOT FIT"
        yield f"{record.target} on {witness.topology}: {verdict}, says {title}"
    else:
        own = COMPILERS[record.plan_compiler]
        yield (
            f"{record.target} on {witness.topology}: compiled by {title}, which is not that of "
            f"{witness.topology}"
        )
        yield (
            f"  whether it fits there only {own.title} can say, which fuses and schedules "
            "otherwise: verify without "
            f"--compiler{own.installing}. What holds there too: it can be partitioned so"
            + (", and results agree" if record.numerics and record.numerics.agrees else "")
        )
    compiled_in = seconds_text(witness.compile_seconds)
    yield f"  {_versions_text(witness.versions)}; compiled in {compiled_in}"
    # Compilers say what does not fit in many lines, of which the first names the reason.
    if witness.refusal:
        yield f"  {witness.refusal.splitlines()[0]}"


def _step(record: VerificationRecord) -> Iterator[str]:
    """The predicted step beside the compiler's own schedule."""
    step, predicted = record.witness.step, record.comparison.predicted_step_seconds
    if step is None or not record.is_verdict:
        return
    waited = seconds_text(step.seconds - step.kernel_seconds)
    yield (
        f"step: predicted {seconds_text(predicted)}, {seconds_text(step.seconds)} by the compiled "
        f"schedule ({predicted / step.seconds - 1:+.1%})"
    )
    yield (
        f"  = kernels {seconds_text(step.kernel_seconds)} + {waited} in which they wait for "
        f"collectives and copies, which take {seconds_text(step.collective_seconds)}"
    )


def _memory(record: VerificationRecord) -> Iterator[str]:
    witness, comparison = record.witness, record.comparison
    predicted = bytes_text(comparison.predicted_peak_bytes)
    limit = bytes_text(witness.memory_limit_bytes)
    if comparison.compiled_peak_bytes is None:
        yield (
            f"peak memory: predicted {predicted} of {limit}; the compiler does not say what it "
            "needs"
        )
        return
    compiled = bytes_text(comparison.compiled_peak_bytes)
    # A compiler that refuses a plan says how much it lacks, and no parts.
    if witness.memory is None:
        yield (
            f"peak memory: predicted {predicted} of {limit}, the compiler would need at least "
            f"{compiled}"
        )
        return
    m = witness.memory
    if record.is_verdict:
        yield (
            f"peak memory: predicted {predicted}, compiled {compiled} of {limit} "
            f"({comparison.memory_error:+.1%})"
        )
    else:
        title = COMPILERS[witness.compiler].title
        yield (
            f"peak memory: predicted {predicted} of {limit}; {title} needs {compiled}, which does "
            "not measure the "
            "prediction"
        )
    yield (
        f"  = arguments {bytes_text(m.arguments)} + outputs {bytes_text(m.outputs)} - aliased "
        f"{bytes_text(m.aliased)} + temporaries {bytes_text(m.temporaries)}; "
        f"code {bytes_text(m.generated_code)} besides"
    )


def _collectives(comparison: Comparison, backend: Backend) -> Iterator[str]:
    if comparison.rows is None:
        yield "collectives: the partitioned program cannot be read"
        return
    if not comparison.rows:
        yield "collectives: none, as predicted"
        return
    # Rows come with the largest difference first.
    differing = sum(not row.agrees for row in comparison.rows)
    yield "collectives: " + (
        f"{differing} of {len(comparison.rows)} kinds differ, the largest difference first"
        if differing
        else "as predicted"
    )
    # What this compiler is known to do otherwise, so that nobody looks for it.
    if differing and backend.compiled.note:
        yield f"  ({backend.compiled.note})"
    yield from map(_row, comparison.rows[:_SHOWN_ROWS])
    if len(comparison.rows) > _SHOWN_ROWS:
        yield f"  and {len(comparison.rows) - _SHOWN_ROWS} more kinds"


def _row(row: CollectiveRow) -> str:
    text = f"  {row.kind} over {_axes(row.axes)}: "
    compiled = f"{row.compiled_count} tensors, {bytes_text(row.compiled_bytes)}"
    if row.agrees:
        return text + compiled
    return (
        f"{text}predicted {row.predicted_count} tensors, {bytes_text(row.predicted_bytes)}; "
        f"compiled {compiled}"
    )


def _places(comparison: Comparison) -> Iterator[str]:
    if comparison.places:
        yield "largest compiled tensors of the kinds that differ:"
    for place in comparison.places:
        # Equal tensors of repeated layers stand in one row.
        times = f"{place.count} x " if place.count > 1 else ""
        source = place.source.removeprefix(f"{Path.cwd()}/")
        where = f" at {source}" if source else ""
        yield (
            f"  {place.kind} over {_axes(place.axes)}, {times}{bytes_text(place.bytes)}: "
            f"{place.at or 'unnamed'}{where}"
        )


def _axes(axes: tuple[str, ...]) -> str:
    return "+".join(axes) or "no axis"


def numerics_lines(numerics: Numerics) -> Iterator[str]:
    """How far results are from those of the single device, the worst first."""
    if numerics.skipped:
        yield f"numerics: skipped: {numerics.skipped}"
        return
    count = len(numerics.leaves)
    wrong = sum(not leaf.agrees for leaf in numerics.leaves)
    yield "numerics: " + (
        f"{wrong} of {count} outputs DIFFER from the single-device step"
        if wrong
        else f"all {count} outputs agree with the single-device step"
    )
    if numerics.finite < 1:
        yield (
            f"  some results are not finite: only {numerics.finite:.1%} of the elements of one "
            "output are"
        )
    for leaf in numerics.leaves[:_SHOWN_LEAVES]:
        path = leaf.path or "the result"
        if leaf.agrees:
            yield f"  {path}: agrees, with {leaf.excess:.1%} of the difference that is allowed"
        else:
            yield (
                f"  {path}: DIFFERS by {leaf.error:.2e} of its change in the step; allowed "
                f"{leaf.allowed:.2e}, and one rounding of the inputs moves it by "
                f"{leaf.rounding:.2e}"
            )


def pipeline_report(record: PipelineVerificationRecord) -> str:
    """What a compiler says of a pipeline, stage by stage, for people."""
    compiler = COMPILERS[record.compiler]
    lines = []
    if record.is_verdict:
        verdict = "fits" if record.fits else "DOES NOT FIT"
        lines.append(f"{record.target} on {record.topology}: {verdict}, says {compiler.title}")
    else:
        own = COMPILERS[record.plan_compiler]
        lines += [
            f"{record.target} on {record.topology}: compiled by {compiler.title}, which is not "
            f"that of {record.topology}",
            f"  whether it fits there only {own.title} can say: verify without "
            f"--compiler{own.installing}",
        ]
    lines += [
        f"  {_versions_text(record.versions)}; {record.program_count} programs of "
        f"{len(record.stages)} stages, {record.compiled_count} of them different, compiled in "
        f"{seconds_text(record.compile_seconds)}",
        *_pipeline_step(record),
    ]
    for stage in record.stages:
        lines += _stage(stage, record)
    lines.append("numerics: skipped: verifying does not run a pipeline; `automap apply` does")
    return "\n".join(lines) + "\n"


def _pipeline_step(record: PipelineVerificationRecord) -> Iterator[str]:
    """The predicted step beside the one that the compiled stages make."""
    predicted, compiled = record.predicted_step_seconds, record.compiled_step_seconds
    if compiled is None or not record.is_verdict:
        yield f"step: predicted {seconds_text(predicted)}; no seconds of compiled stages"
        return
    yield (
        f"step: predicted {seconds_text(predicted)}, {seconds_text(compiled)} by the compiled "
        f"stages in the simulation of {record.schedule}, {record.microbatches} microbatches "
        f"({predicted / compiled - 1:+.1%})"
    )


def _stage(stage: StageVerification, record: PipelineVerificationRecord) -> Iterator[str]:
    refused = "" if stage.fits or not record.is_verdict else ": DOES NOT FIT"
    yield f"stage {stage.stage} on {device_names(stage.devices)}, {stage.layers}{refused}"
    limit, compiled = bytes_text(record.memory_limit_bytes), stage.compiled.peak_bytes
    said = "not said" if compiled is None else bytes_text(compiled)
    predicted = bytes_text(stage.predicted.peak_bytes or 0)
    yield f"  peak memory: predicted {predicted}, compiled {said} of {limit}"
    if stage.refusal:
        yield f"  {stage.refusal.splitlines()[0]}"
    parts = [
        f"{name} {seconds_text(predicted)} / {seconds_text(compiled)}"
        for name, predicted, compiled in (
            ("forward", stage.predicted.forward_seconds, stage.compiled.forward_seconds),
            ("backward", stage.predicted.backward_seconds, stage.compiled.backward_seconds),
            ("weights", stage.predicted.weights_seconds, stage.compiled.weights_seconds),
            ("once in a step", stage.predicted.reduce_seconds, stage.compiled.reduce_seconds),
        )
        # A schedule without weight passes has no seconds of them on either side.
        if predicted is not None and compiled is not None and (predicted or compiled)
    ]
    if parts and record.is_verdict:
        yield f"  predicted / compiled: {', '.join(parts)}"


def compiled_text(plan: PlanRecord, witness: Witness | PipelineVerificationRecord) -> str:
    """`compiled a plan of predicted 1.2 ms: peak 5 GiB, predicted 4.9 GiB: fits`: what a compiler
    says of one of the plans that `automap plan --verify` asks it about.
    """
    peak = "?" if witness.peak_bytes is None else bytes_text(witness.peak_bytes)
    verdict = "fits" if witness.fits else "does not fit"
    return (
        f"compiled a plan of predicted {seconds_text(plan.predicted.step_seconds)}: peak {peak}, "
        f"predicted {bytes_text(plan.predicted.expected_bytes)}: {verdict}"
    )
