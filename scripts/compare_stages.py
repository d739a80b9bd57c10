"""The stages of pipelines as their compiler has them, beside what was predicted.

    python -m scripts.compare_stages -o docs/reports/pipelines.md
    python -m scripts.compare_stages -m vit-b16 --topology v5e:2x4 -o docs/reports/pipelines.md

Of each model the best pipeline of S stages and M microbatches on a machine, every stage compiled
ahead of time for its devices (`automap verify`). A row for each stage, and one for the step: the
simulation with the compiled seconds in the place of the predicted ones. What compilers said is
kept in the user's cache folder, so that a run that was ended goes on.
"""

from collections.abc import Iterator
import os
from pathlib import Path
import platform
from typing import Final

import click
from rich.progress import track

import automap
from automap.api.verification import PipelineVerification
from automap.quantities import bytes_text
from automap.verify.verification import StageVerification
from scripts.compare_schedules import MICROBATCHES, MODELS, STAGES
from scripts.tables import made_by, markdown, replace_table


COMMAND: Final = "python -m scripts.compare_stages"
TIMEOUT_SECONDS: Final = 3600.0
TOPOLOGY: Final = "8xh100"
HEADER: Final = [
    "model",
    "schedule",
    "stage",
    "devices",
    "forward, ms",
    "backward and weights, ms",
    "once in a step, ms",
    "a device",
]


def _pair(predicted: float, compiled: float | None) -> str:
    """`1.58 / 2.12 (-25%)`, milliseconds of seconds."""
    if compiled is None:
        return f"{1e3 * predicted:.2f} / -"
    error = f" ({predicted / compiled - 1:+.0%})" if compiled else ""
    return f"{1e3 * predicted:.2f} / {1e3 * compiled:.2f}{error}"


def _bytes_pair(predicted: int, compiled: int | None) -> str:
    if compiled is None:
        return f"{bytes_text(predicted)} / -"
    return f"{bytes_text(predicted)} / {bytes_text(compiled)} ({predicted / compiled - 1:+.0%})"


def _gradients(stage: StageVerification) -> tuple[float, float | None]:
    """Seconds of the backward and the weight pass: the first stage has all in the second one."""
    sums = [
        None
        if each.backward_seconds is None or each.weights_seconds is None
        else each.backward_seconds + each.weights_seconds
        for each in (stage.predicted, stage.compiled)
    ]
    return sums[0] or 0.0, sums[1]


def rows(model: str, verified: PipelineVerification) -> Iterator[list[str]]:
    """One for each stage, then one for the step."""
    for stage in verified.stages:
        predicted, compiled = stage.predicted, stage.compiled
        yield [
            model,
            verified.schedule,
            str(stage.stage),
            str(len(stage.devices)),
            _pair(predicted.forward_seconds or 0.0, compiled.forward_seconds),
            _pair(*_gradients(stage)),
            _pair(predicted.reduce_seconds or 0.0, compiled.reduce_seconds),
            _bytes_pair(predicted.peak_bytes or 0, compiled.peak_bytes),
        ]
    step = _pair(verified.predicted_step_seconds, verified.compiled_step_seconds)
    programs = f"{verified.compiled_count} of {verified.program_count} programs compiled"
    peak = max(stage.predicted.peak_bytes or 0 for stage in verified.stages)
    yield [
        model,
        verified.schedule,
        "all",
        str(sum(len(stage.devices) for stage in verified.stages)),
        f"step {step}",
        programs,
        f"in {verified.compile_seconds:.0f} s",
        _bytes_pair(peak, verified.peak_bytes),
    ]


def verified_pipeline(model: str, machine: str) -> PipelineVerification:
    """The best pipeline of a model, with what its compiler says."""
    step, args = MODELS[model]()
    plan = automap.plan(
        step, args, topology=machine, space="pipeline", stages=STAGES, microbatches=MICROBATCHES
    )
    verified = automap.verify(plan, step, args, timeout=TIMEOUT_SECONDS)
    assert isinstance(verified, PipelineVerification)  # noqa: S101 - of a pipeline
    return verified


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("-m", "--model", "models", multiple=True, type=click.Choice(list(MODELS)))
@click.option("--topology", default=TOPOLOGY, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(models: tuple[str, ...], topology: str, output: Path | None) -> None:
    """Compile the stages of each model's pipeline."""
    table_rows: list[list[str]] = []
    for model in track(models or list(MODELS), "models"):
        table_rows += rows(model, verified_pipeline(model, topology))
    where = f"{platform.machine()}, {os.cpu_count()} cores"
    given = "".join(f" -m {model}" for model in models)
    # One table for each machine.
    is_first = topology == TOPOLOGY
    given += "" if is_first else f" --topology {topology}"
    text = made_by(f"{COMMAND}{given} -o docs/reports/pipelines.md", where)
    text += markdown(HEADER, table_rows)
    if output is None:
        click.echo(text)
    else:
        replace_table(output, text, "stages" if is_first else f"stages on {topology}")


if __name__ == "__main__":
    main()
