"""What `auto` finds beside the best preset: by the evaluator, and by the compiler's own
schedule.

    python -m scripts.compare_presets -o docs/reports/presets.md
    python -m scripts.compare_presets --witness --topology v5e:2x4 --topology v5e:4x4 \
        --topology v5p:2x2x4 --topology 8xh100 --topology 2x8xh100 -o docs/reports/presets.md

With `--witness` (extras `tpu` and `gpu-compiler`), which makes the page's other table, the plan,
and every preset predicted within a quarter of the best preset, are compiled ahead of time, their
schedules are replayed, and the least of the presets' steps stands beside the plan's. What the
compiler said is kept: a second run compiles only plans that changed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
import math
from pathlib import Path
import platform
from typing import Any, Final

import click
import jax
from rich.progress import track

from automap.config import Options
from automap.errors import AutomapError, CompilerError
from automap.planner.records import Outcome, build_plan
from automap.planner.sharding import find
from automap.program import load_target, trace_step
from automap.search.context import Candidate
from automap.step.call import TracedCall
from automap.step.step import traced_call
from automap.topology import get_topology
from automap.verify.kernel_seconds import has_seconds
from scripts.tables import made_by, markdown, replace_table
from scripts.witnesses import compile_witness


COMMAND = "python -m scripts.compare_presets{flags}"
# The tables of the page: what is predicted, and what the compiler says.
_PREDICTIONS, _SCHEDULES = "table", "schedules"
# Two TPU generations on one and two dimensions, and GPUs with fast and slow networks.
TOPOLOGIES = ("v5e:2x4", "v5e:4x4", "v5p:2x2x4", "2x8xh100", "4x8xv100")
_SCANNED, _HALF = {"layers": "scanned"}, {"dtype": "bfloat16"}
MODELS: Final[Mapping[str, dict[str, str]]] = {
    "models.gpt:gpt_124m": {"batch": "32", **_SCANNED, **_HALF},
    "models.t5:t5_base": {"batch": "64", **_SCANNED},
    "models.bert:bert_48": {"batch": "16", **_SCANNED},
    "models.vit:vit_b16": {"batch": "256", **_SCANNED},
    "models.llama:llama_1b": {"batch": "16", "seq": "1024", **_SCANNED, **_HALF},
    "models.moe:moe_8x": {"batch": "16", **_SCANNED, **_HALF},
    "models.nmt:nmt": {"batch": "256", "steps": "scanned"},
    "models.rnnlm:rnnlm": {"batch": "256", "steps": "scanned"},
    "models.rnntc:rnntc": {"batch": "256", "steps": "scanned"},
    "models.mlp:mlp": {"batch": "4096"},
    "models.alexnet:alexnet": {"batch": "1024"},
    "models.vgg:vgg_19": {"batch": "256"},
    "models.resnet:resnet_50": {"batch": "256"},
    "models.dlrm:dlrm_kaggle": {"batch": "8192"},
}
# A preset predicted slower than this times the best is not compiled.
_NEAR = 1.25
_TIMEOUT_SECONDS = 420.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A model on a machine; seconds are None where nothing fits, or where the compiler's program
    cannot be read.

    `slow` names the plans that the compiler did not finish.
    """

    model: str
    topology: str
    plan: str
    seconds: float | None
    preset: str
    preset_seconds: float | None
    scheduled: float | None = None
    scheduled_preset: str = ""
    preset_scheduled: float | None = None
    slow: tuple[str, ...] = ()


def cells(
    models: Sequence[str],
    topologies: Sequence[str],
    budget_seconds: float,
    witness: bool,  # noqa: FBT001
) -> Iterator[Cell]:
    """The matrix, model after model."""
    for target in track(models, "planning"):
        step, args = load_target(target, MODELS[target])
        call = traced_call(step, tuple(args))
        for name in topologies:
            topology = get_topology(name)
            workload = trace_step(step, args, platform=topology.platform)
            outcome = find(workload, topology, Options(budget_seconds=budget_seconds))
            build_plan(outcome)  # raises where a plan cannot be applied
            cell = _predicted(target, name, outcome)
            # The compiler's estimates are seconds only where the clock is known.
            if witness and has_seconds(topology) and cell.seconds is not None:
                cell = _witnessed(cell, outcome, call)
            click.echo(" | ".join(row(cell)), err=True)
            yield cell


def _predicted(target: str, topology: str, outcome: Outcome) -> Cell:
    fits = outcome.context.objective.fits
    presets = _fitting_presets(outcome)
    best = outcome.best
    return Cell(
        model=target.partition(":")[2],
        topology=topology,
        plan=f"{best.origin} {_mesh_text(best)}",
        seconds=best.estimate.step_seconds if fits(best.estimate) else None,
        preset=f"{presets[0][0]} {_mesh_text(presets[0][1])}" if presets else "",
        preset_seconds=presets[0][1].estimate.step_seconds if presets else None,
    )


def _fitting_presets(outcome: Outcome) -> list[tuple[str, Candidate]]:
    """The presets that fit, each on its best mesh, the fastest first."""
    context = outcome.context
    fitting = [
        (name, c)
        for name, c in context.best_per_preset.items()
        if context.objective.fits(c.estimate)
    ]
    return sorted(fitting, key=lambda row: row[1].estimate.step_seconds)


def _mesh_text(candidate: Candidate) -> str:
    return "x".join(str(size) for _, size in candidate.point.mesh.axes)


def _witnessed(cell: Cell, outcome: Outcome, call: TracedCall) -> Cell:
    presets = _fitting_presets(outcome)
    slow: list[str] = []

    def scheduled(name: str, candidate: Candidate) -> float:
        try:
            said = compile_witness(replace(outcome, best=candidate), call, _TIMEOUT_SECONDS)
        except CompilerError as error:
            slow.append(f"{name}: {error}")
            return math.inf
        # What does not fit, or was not finished, is never the fastest.
        return math.inf if said.step is None or not said.fits else said.step.seconds

    # The evaluator may be wrong on the order of presets that are close.
    near = [
        (name, c)
        for name, c in presets
        if c.estimate.step_seconds <= _NEAR * presets[0][1].estimate.step_seconds
    ]
    times = [(scheduled(name, c), f"{name} {_mesh_text(c)}") for name, c in near]
    seconds, name = min(times, default=(math.inf, ""))
    return replace(
        cell,
        scheduled=_finite(scheduled("the plan", outcome.best)),
        preset_scheduled=_finite(seconds),
        scheduled_preset=name,
        slow=tuple(slow),
    )


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None


HEADER = [
    "model",
    "machine",
    "plan",
    "step, ms",
    "best preset",
    "its step, ms",
    "ratio",
    "scheduled, ms",
    "best preset as scheduled",
    "its step, ms",
    "ratio",
]
# Columns without what the compiler says.
_PREDICTED = 7


def row(cell: Cell) -> list[str]:
    """A row of the table."""
    if cell.seconds is None:
        return [cell.model, cell.topology, "nothing fits", *[""] * (len(HEADER) - 3)]
    return [
        cell.model,
        cell.topology,
        cell.plan,
        _ms(cell.seconds),
        cell.preset or "none fits",
        _ms(cell.preset_seconds),
        _ratio(cell.seconds, cell.preset_seconds),
        _ms(cell.scheduled),
        cell.scheduled_preset,
        _ms(cell.preset_scheduled),
        _ratio(cell.scheduled, cell.preset_scheduled),
    ]


def summary(compared: Sequence[Cell]) -> str:
    """Geometric means and the worst of both ratios."""
    lines = [
        _summary("By the evaluator", [(c.seconds, c.preset_seconds) for c in compared]),
        _summary(
            "By the compiler's schedule", [(c.scheduled, c.preset_scheduled) for c in compared]
        ),
    ]
    slow = [f"{c.model} on {c.topology}: {text}" for c in compared for text in c.slow]
    return "\n".join([*filter(None, lines), *slow]) + "\n\n"


def _summary(title: str, pairs: Sequence[tuple[float | None, float | None]]) -> str:
    ratios = [a / b for a, b in pairs if a is not None and b is not None]
    if not ratios:
        return ""
    # Geometric: twice as fast and twice as slow cancel.
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    over = sum(ratio > 1.02 for ratio in ratios)
    return (
        f"{title}: {len(ratios)} cells, geometric mean {mean:.3f} of the best preset, worst "
        f"{max(ratios):.3f}, {over} above 1.02."
    )


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.2f}"


def _ratio(seconds: float | None, beside: float | None) -> str:
    return "" if seconds is None or beside is None else f"{seconds / beside:.3f}"


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("--model", "models", multiple=True, type=click.Choice(list(MODELS)))
@click.option("--topology", "topologies", multiple=True, default=TOPOLOGIES)
@click.option("--budget", "budget_seconds", default=60.0, show_default=True)
@click.option("--witness", is_flag=True, help="compile for the TPU slices as well")
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(output: Path | None, **options: Any) -> None:
    """Print the table, or put it in OUTPUT."""
    # Else JAX looks for a TPU here, and holds the compiler that is to be asked.
    jax.config.update("jax_platforms", "cpu")
    flags = _flags(options, output)
    options["models"] = options["models"] or list(MODELS)
    try:
        compared = list(cells(**options))
    except AutomapError as error:
        raise click.ClickException(str(error)) from error
    table = made_by(COMMAND.format(flags=flags), platform.machine())
    columns = len(HEADER) if options["witness"] else _PREDICTED
    table += summary(compared) + markdown(
        HEADER[:columns], [row(cell)[:columns] for cell in compared]
    )
    if output is None:
        click.echo(table)
    else:
        replace_table(output, table, _SCHEDULES if options["witness"] else _PREDICTIONS)


def _flags(options: Mapping[str, Any], output: Path | None) -> str:
    """The options as they were given."""
    topologies = () if options["topologies"] == TOPOLOGIES else options["topologies"]
    words = [
        *(["--witness"] if options["witness"] else []),
        *(f"--model {model}" for model in options["models"]),
        *(f"--topology {topology}" for topology in topologies),
        *([] if output is None else [f"-o {output}"]),
    ]
    return "".join(f" {word}" for word in words)


if __name__ == "__main__":
    main()
