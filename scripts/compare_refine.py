"""`--refine` beside the presets and beside `--verify` in as many seconds, by the compilers' own
schedules.

    python -m scripts.compare_refine --seconds 120 --kept rows.jsonl -o docs/reports/refine.md

Steps are those of `scripts.compare_presets` that are held out (`scripts.halves`). Each is planned,
then refined for so many seconds of processor time, of the planner and its compilers together:
what other programs on the machine take is not counted (but that they keep a compiler waiting for
its limit). A machine that does nothing else is as fast with one core. What is compiled when they
are over is not counted. Nothing is in the cache before. Beside it stand

    verify   the plan that `--verify` returns: the best as predicted, if the compiler confirms it
    preset   the least scheduled step of the presets: all that are predicted within a quarter of the
             best preset, which are compiled after it, without a limit

(extras `tpu` and `gpu-compiler`). Rows are kept as they are made, and a second run goes on: with
`--show` it makes the table of those that there are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
import json
import math
import os
from pathlib import Path
import platform
import resource
import signal
import tempfile
import time
from typing import Any

import click
import jax

from automap.config import Options
from automap.errors import AutomapError
from automap.plan.record import CompiledPlanRecord, RefinedRecord
from automap.planner.records import Outcome
from automap.planner.sharding import find
from automap.program import load_target, trace_step
from automap.program.trace import Workload
from automap.refine.loop import RefinementProgress, refined_plan
from automap.refine.refinement import Refinement
from automap.search.context import Candidate
from automap.step.call import TracedCall
from automap.step.step import traced_call
from automap.topology import get_topology
from automap.verify.confirm import Confirmation, compile_candidate
from scripts.compare_presets import MODELS
from scripts.halves import is_held_out
from scripts.tables import made_by, markdown, replace_table


COMMAND = "python -m scripts.compare_refine"
TOPOLOGIES = ("v5e:2x4", "v5e:4x4", "8xh100", "2x8xh100")
HELD_OUT = tuple(target for target in MODELS if is_held_out(target))
# A preset predicted slower than this times the best is not compiled.
_NEAR = 1.25
_TIMEOUT_SECONDS = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A step on a machine; seconds are those of compiled schedules, None where there is none.

    `first_error` is of the search's own plan, `last_error` of the plan that was compiled last, each
    compiled over what was expected of it, less 1.
    """

    model: str
    topology: str
    seconds: float
    compiled: int
    ended: str
    plan: str
    refined: float | None
    verified: float | None
    preset: str
    preset_seconds: float | None
    first_error: float | None
    last_error: float | None


def rows(
    targets: Sequence[str], topologies: Sequence[str], seconds: float, kept: Path, *, is_shown: bool
) -> Iterator[Row]:
    """The matrix, machine after machine."""
    known = _kept(kept)
    for name in topologies:
        for target in targets:
            row = known.get((target, name, seconds))
            if row is None and is_shown:
                continue
            if row is None:
                row = _row(target, name, seconds)
                kept.parent.mkdir(parents=True, exist_ok=True)
                with kept.open("a") as file:
                    file.write(json.dumps(_fields(row)) + "\n")
            click.echo(" | ".join(cells(row)), err=True)
            yield row


def _fields(row: Row) -> dict[str, Any]:
    return {name: getattr(row, name) for name in Row.__slots__}


def _kept(path: Path) -> dict[tuple[str, str, float], Row]:
    lines = path.read_text().splitlines() if path.is_file() else []
    made = [Row(**json.loads(line)) for line in lines]
    return {(row.model, row.topology, row.seconds): row for row in made}


def _row(target: str, name: str, seconds: float) -> Row:
    topology = get_topology(name)
    step, args = load_target(target, MODELS[target])
    call = traced_call(step, tuple(args))
    options = Options()
    workload = trace_step(step, args, platform=topology.platform)
    outcome = find(workload, topology, options)
    with tempfile.TemporaryDirectory() as folder:
        # Cold: what others compiled before would cost nothing.
        cold = Path(folder)
        said, within = _refined(workload, outcome, call, options, seconds, cold)
        begin = time.monotonic()
        first = outcome.context.best_candidates(1)[0]
        verified = _scheduled(outcome, first, call, cold)
        preset, preset_seconds = _best_preset(outcome, call, cold)
        click.echo(f"{time.monotonic() - begin:.0f} s for the others", err=True)
    fitting = [row for row in within if row.fits and row.compiled_seconds is not None]
    chosen = min(fitting, key=lambda row: row.compiled_seconds or 0.0, default=None)
    errors = [
        row.compiled_seconds / row.expected_seconds - 1
        for row in within
        if row.compiled_seconds is not None
    ]
    return Row(
        model=target,
        topology=name,
        seconds=seconds,
        compiled=len(within),
        ended="the seconds were over" if said.ended == "interrupted" else said.ended,
        plan="the search's own" if chosen is None else chosen.plan,
        # Without a compiled plan it is the search's own, compiled here.
        refined=_scheduled(outcome, outcome.best, call, None)
        if chosen is None
        else chosen.compiled_seconds,
        verified=verified,
        preset=preset,
        preset_seconds=preset_seconds,
        first_error=errors[0] if errors else None,
        last_error=errors[-1] if len(errors) > 1 else None,
    )


def _refined(
    workload: Workload,
    outcome: Outcome,
    call: TracedCall,
    options: Options,
    seconds: float,
    folder: Path,
) -> tuple[RefinedRecord, list[CompiledPlanRecord]]:
    """The refinement, and the plans that were compiled within so many seconds of processor time."""
    begin, within = _processor_seconds(), list[CompiledPlanRecord]()

    def count(progress: RefinementProgress) -> None:
        if _processor_seconds() - begin <= seconds:
            within.append(progress.compiled)
        else:
            # The compiler's own limit is of the wall: with two cores it may take more.
            signal.raise_signal(signal.SIGINT)

    refinement = Refinement(seconds=seconds, cache_folder=folder, clock=_processor_seconds)
    plan = refined_plan(workload, outcome, call, options, refinement, on_compiled=count)
    if plan.refined is None:
        raise TypeError("a refined plan says how it was refined")
    return plan.refined, within


def _processor_seconds() -> float:
    """Of this process and of compilers that are done."""
    done = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + done.ru_utime + done.ru_stime


def _scheduled(
    outcome: Outcome, candidate: Candidate, call: TracedCall, folder: Path | None
) -> float | None:
    confirmation = Confirmation(timeout_seconds=_TIMEOUT_SECONDS, cache_folder=folder)
    try:
        _, compiled = compile_candidate(outcome, candidate, call, confirmation)
    except AutomapError as error:
        click.echo(f"{candidate.origin}: {error}", err=True)
        return None
    witness = compiled.witness
    return witness.step.seconds if witness.step is not None and witness.fits else None


def _best_preset(outcome: Outcome, call: TracedCall, folder: Path) -> tuple[str, float | None]:
    """The preset with the least scheduled step."""
    fits = outcome.context.objective.fits
    presets = [c for c in outcome.context.best_per_preset.values() if fits(c.estimate)]
    least = min((c.estimate.step_seconds for c in presets), default=math.inf)
    near = [c for c in presets if c.estimate.step_seconds <= _NEAR * least]
    times = [(_scheduled(outcome, c, call, folder) or math.inf, c.origin) for c in near]
    seconds, name = min(times, default=(math.inf, ""))
    return name, seconds if math.isfinite(seconds) else None


HEADER = [
    "model",
    "machine",
    "compiled",
    "then",
    "plan",
    "refined, ms",
    "verify, ms",
    "best preset, ms",
    "preset",
    "over verify",
    "over preset",
    "first error",
    "last error",
]


def cells(row: Row) -> list[str]:
    """A row of the table."""
    return [
        row.model.partition(":")[2],
        row.topology,
        str(row.compiled),
        row.ended,
        row.plan,
        _ms(row.refined),
        _ms(row.verified),
        _ms(row.preset_seconds),
        row.preset,
        _ratio(row.refined, row.verified),
        _ratio(row.refined, row.preset_seconds),
        _percent(row.first_error),
        _percent(row.last_error),
    ]


def summary(compared: Sequence[Row]) -> str:
    """Geometric means and the worst of both ratios."""
    lines = []
    for machine in dict.fromkeys(row.topology for row in compared):
        here = [row for row in compared if row.topology == machine]
        lines.append(f"{machine}: {_means(here)}")
    if compared:
        lines.append(f"All: {_means(compared)}")
    return "\n\n".join(lines) + "\n\n"


def _means(compared: Sequence[Row]) -> str:
    parts = []
    for title, beside in (("preset", "preset_seconds"), ("`--verify`", "verified")):
        pairs = [(row.refined, getattr(row, beside)) for row in compared]
        ratios = [a / b for a, b in pairs if a is not None and b is not None]
        if ratios:
            mean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
            parts.append(
                f"{mean:.3f} of the best {title} in the geometric mean, worst {max(ratios):.3f}"
                if beside == "preset_seconds"
                else f"{mean:.3f} of {title} in as many seconds, worst {max(ratios):.3f}"
            )
    steps = "1 step" if len(compared) == 1 else f"{len(compared)} steps"
    return f"{steps}, {'; '.join(parts)}."


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.2f}"


def _ratio(seconds: float | None, beside: float | None) -> str:
    return "" if seconds is None or beside is None else f"{seconds / beside:.3f}"


def _percent(fraction: float | None) -> str:
    return "" if fraction is None else f"{fraction:+.1%}"


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("--model", "targets", multiple=True, type=click.Choice(list(MODELS)))
@click.option("--topology", "topologies", multiple=True, default=TOPOLOGIES)
@click.option("--seconds", default=120.0, show_default=True)
@click.option("--kept", type=click.Path(path_type=Path, dir_okay=False), required=True)
@click.option("--show", "is_shown", is_flag=True, help="only rows that are kept")
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(
    *,
    targets: tuple[str, ...],
    topologies: tuple[str, ...],
    seconds: float,
    kept: Path,
    is_shown: bool,
    output: Path | None,
) -> None:
    """Print the tables of GPUs and of TPUs, or put them in OUTPUT."""
    # Else JAX looks for a TPU here, and holds the compiler that is to be asked.
    jax.config.update("jax_platforms", "cpu")
    try:
        compared = list(rows(targets or HELD_OUT, topologies, seconds, kept, is_shown=is_shown))
    except AutomapError as error:
        raise click.ClickException(str(error)) from error
    options = [*(f"--model {t}" for t in targets), f"--seconds {seconds:g}", "--kept ROWS"]
    options += ["--show"] if is_shown else []
    load = f"{os.cpu_count()} cores, busy" if os.getloadavg()[0] > 1 else f"{os.cpu_count()} cores"
    machine = f"jax {jax.__version__}, {platform.machine()}, {load}"
    for name, machines in _by_kind(topologies).items():
        here = [row for row in compared if row.topology in machines]
        words = [COMMAND, *options, *(f"--topology {one}" for one in machines)]
        table = made_by(" ".join(words), machine) + summary(here)
        table += markdown(HEADER, [cells(row) for row in here])
        if output is None:
            click.echo(table)
        else:
            replace_table(output, table, name)


def _by_kind(topologies: Sequence[str]) -> dict[str, list[str]]:
    """The machines of each table, by the name of its marks: GPUs and TPUs are not made in one."""
    result: dict[str, list[str]] = {}
    for topology in topologies:
        result.setdefault(get_topology(topology).platform, []).append(topology)
    return result


if __name__ == "__main__":
    main()
