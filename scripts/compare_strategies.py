"""Every strategy of the registry on models and machines: the step it finds, evaluations and
seconds.

    python -m scripts.compare_strategies -o docs/reports/strategies.md

All search the same space with the same evaluator and seed. A step is given as how much longer it is
than the best that any of them found for this model on this machine; seconds are the processor's in
the search, without tracing, while the budget is of time that passes.

    python -m scripts.compare_strategies --table rainbow -o docs/reports/strategies.md

is of `rainbow` and the same player whose network is never updated, which may price as many plans
with the same seed; the best known is the best of all of these and of `auto`. Its steps are those of
`scripts.plan_matrix`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
import platform
import time

import click
import jax

from automap.config import Options
from automap.planner.sharding import find
from automap.program.trace import Workload, trace_step
from automap.search import STRATEGIES, get_strategy
from automap.search.rainbow.env import CONFIG
from automap.search.rainbow.strategy import searched_by
from automap.topology import get_topology
from models import bert, dlrm, gpt, llama, moe, nmt, resnet, t5, vgg, vit
from models.training import Target
from scripts.compare_sharding_agent import Cells, traced
from scripts.tables import kept, made_by, markdown, replace_table, spread


COMMAND = "python -m scripts.compare_strategies"
# One network and two levels of it.
TOPOLOGIES = ("v5e:2x4", "2x8xh100")
BUDGET_SECONDS = 30.0
RAINBOW_STEPS = ("models.nmt:nmt", "models.gpt:gpt_124m")
RAINBOW_SEEDS = range(3)
RAINBOW_HEADER = [
    "step",
    "machine",
    "best known, ms",
    "rainbow",
    "learning off",
    "plans priced",
    "learning off",
    "processor s",
    "learning off",
    "rainbow better",
    "equal",
    "learning off better",
    "auto",
]
MODELS: Mapping[str, Callable[[], Target]] = {
    "t5-base": lambda: t5.t5_base(batch=64),
    "gpt-124m": lambda: gpt.gpt_124m(batch=64),
    "bert-48": lambda: bert.bert_48(batch=16),
    "vit-b16": lambda: vit.vit_b16(batch=256),
    "moe-8x": lambda: moe.moe_8x(batch=8),
    "dlrm": lambda: dlrm.dlrm_kaggle(batch=8192),
    "vgg-19": lambda: vgg.vgg_19(batch=256),
    "resnet-50": lambda: resnet.resnet_50(batch=256),
    "nmt": lambda: nmt.nmt(batch=512, steps="scanned"),
    "llama-1b": lambda: llama.llama_1b(batch=16, seq=1024),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one strategy found in processor seconds; `ended`: within its budget.

    `gap` is what the step is above a proven bound, as a fraction; None if nothing was proven.
    """

    strategy: str
    step_seconds: float
    fits: bool
    evaluations: int
    seconds: float
    ended: bool
    gap: float | None


def searched(workload: Workload, topology: str, strategy: str, budget_seconds: float) -> Outcome:
    """One search."""
    options = Options(strategy=strategy, budget_seconds=budget_seconds)
    begin = time.process_time()
    outcome = find(workload, get_topology(topology), options)
    seconds = time.process_time() - begin
    return Outcome(
        strategy=strategy,
        step_seconds=outcome.best.estimate.step_seconds,
        fits=outcome.context.objective.fits(outcome.best.estimate),
        evaluations=outcome.context.evaluations,
        seconds=seconds,
        # A search that ran out of its budget says so in a warning.
        ended=not outcome.warnings,
        gap=outcome.context.gap(outcome.best),
    )


def best_preset(workload: Workload, topology: str) -> float | None:
    """The step of the best preset that fits, None if none does."""
    # The cheapest way to have all presets evaluated.
    options = Options(preset="data-parallel")
    context = find(workload, get_topology(topology), options).context
    fitting = [
        c.estimate.step_seconds
        for c in context.best_per_preset.values()
        if context.objective.fits(c.estimate)
    ]
    return min(fitting, default=None)


def row(model: str, topology: str, preset: float | None, outcomes: list[Outcome]) -> list[str]:
    """A row of the table."""
    best = min((f.step_seconds for f in outcomes if f.fits), default=None)
    if best is None:
        return [model, topology, "nothing fits", "", *("" for _ in outcomes)]
    cells = [
        f"{f.step_seconds / best - 1:+.2%} ({f.evaluations:,} in {f.seconds:.1f} s"
        f"{'' if f.ended else ', not done'}){'' if f.gap is None else f', gap {f.gap:.2%}'}"
        if f.fits
        else "does not fit"
        for f in outcomes
    ]
    beside = "does not fit" if preset is None else f"{preset / best - 1:+.2%}"
    return [model, topology, f"{best * 1e3:.2f}", beside, *cells]


def rows(
    models: list[str], topologies: list[str], strategies: list[str], budget_seconds: float
) -> Iterator[list[str]]:
    """A row for each model on each machine."""
    for model in models:
        step, args = MODELS[model]()
        for topology in topologies:
            workload = trace_step(step, args, platform=get_topology(topology).platform)
            outcomes = [searched(workload, topology, s, budget_seconds) for s in strategies]
            cells = row(model, topology, best_preset(workload, topology), outcomes)
            click.echo(" | ".join(cells), err=True)
            yield cells


def rainbow_runs(step: str, machine: str) -> dict[str, list[list[float]]]:
    """By player, of each seed (step seconds, plans priced, processor seconds); of `auto` one."""
    workload = traced(step, get_topology(machine).platform)
    runs: dict[str, list[list[float]]] = {"rainbow": [], "learning off": []}
    off = replace(CONFIG, steps_per_update=None)
    for seed in RAINBOW_SEEDS:
        cells = Cells(workload, machine, seed)
        learnt = cells.run(lambda context: searched_by(context, CONFIG), None)
        runs["rainbow"].append([*learnt])
        runs["learning off"].append([*cells.run(lambda c: searched_by(c, off), learnt[1])])
    return {**runs, "auto": [[*Cells(workload, machine).run(get_strategy("auto"), None)]]}


def rainbow_row(step: str, machine: str, folder: Path) -> list[str]:
    """A row of the table of `rainbow`."""
    name = f"{step}-{machine}".replace(":", "_")
    runs = kept(folder, name, lambda: rainbow_runs(step, machine))
    best = min(seconds for each in runs.values() for seconds, *_ in each)
    learnt, off = runs["rainbow"], runs["learning off"]
    ratios = [own[0] / other[0] for own, other in zip(learnt, off, strict=True)]
    better, worse = (sum(r < 1 - 1e-6 for r in ratios), sum(r > 1 + 1e-6 for r in ratios))

    def column(place: int, text: Callable[[float], str]) -> list[str]:
        return [spread([run[place] for run in each], text) for each in (learnt, off)]

    return [
        step.rpartition(":")[2],
        machine,
        f"{best * 1e3:.4g}",
        *column(0, lambda seconds: f"{seconds / best - 1:+.2%}"),
        *column(1, "{:,.0f}".format),
        *column(2, "{:.1f}".format),
        *map(str, (better, len(ratios) - better - worse, worse)),
        f"{runs['auto'][0][0] / best - 1:+.2%}",
    ]


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option(
    "--table", "which", type=click.Choice(("table", "rainbow")), default="table", show_default=True
)
@click.option("--kept", "folder", type=click.Path(path_type=Path), help="where rows are kept")
@click.option("--model", "models", multiple=True, type=click.Choice(list(MODELS)))
@click.option("--topology", "topologies", multiple=True, default=TOPOLOGIES)
@click.option("--strategy", "strategies", multiple=True, type=click.Choice(list(STRATEGIES)))
@click.option("--budget", "budget_seconds", default=BUDGET_SECONDS, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(
    which: str,
    folder: Path | None,
    models: tuple[str, ...],
    topologies: tuple[str, ...],
    strategies: tuple[str, ...],
    budget_seconds: float,
    output: Path | None,
) -> None:
    """Print the table, or put it in OUTPUT."""
    jax.config.update("jax_platforms", "cpu")
    if which == "rainbow":
        if folder is None:
            raise click.UsageError("--table rainbow needs --kept FOLDER")
        rainbow_rows = [rainbow_row(s, t, folder) for s in RAINBOW_STEPS for t in topologies]
        where_to = "".join(f" --topology {t}" for t in topologies)
        command = f"{COMMAND} --table rainbow{where_to} --kept FOLDER -o {output}"
        where = f"{platform.machine()}, one core, {len(RAINBOW_SEEDS)} seeds"
        text = made_by(command, where) + markdown(RAINBOW_HEADER, rainbow_rows)
        if output is None:
            click.echo(text)
        else:
            replace_table(output, text, "rainbow")
        return
    # Those of Auto-MAP have another objective than the step.
    names = list(strategies or [name for name in STRATEGIES if name not in ("adp", "opp")])
    header = ["model", "machine", "best step, ms", "best preset", *names]
    table_rows = rows(list(models or MODELS), list(topologies), names, budget_seconds)
    machine = f"{platform.machine()}, one core"
    chosen = "".join(f" --strategy {name}" for name in strategies)
    command = f"{COMMAND}{chosen} --budget {budget_seconds:g} -o {output}"
    table = made_by(command, machine) + markdown(header, list(table_rows))
    if output is None:
        click.echo(table)
    else:
        replace_table(output, table)


if __name__ == "__main__":
    main()
