"""Plans with one lever under less and less memory, by the evaluator and by the compilers.

    python -m scripts.compare_levers -o docs/reports/levers.md --microbatches     with accumulation
    python -m scripts.compare_levers -o docs/reports/levers.md --compiler tpu     and its memory
    python -m scripts.compare_levers -o docs/reports/levers.md --compiler gpu --offload
                                                                  and that with state offloaded

Models are those of `scripts.lever_models`; a limit is a share of what the fastest plan needs that
memory does not limit. With `--microbatches` it is GPT with accumulation alone and with
rematerialization, to the least that is possible. With `--compiler` the plan without a limit and
those with either lever are compiled ahead of time; with `--offload` too of a wider GPT of few
samples, whose optimizer state decides, and of the small models, whose kept values do. Beside what
people use all levers stand in `scripts.lever_frontier`.
"""

from dataclasses import replace
from pathlib import Path
import shlex
from statistics import median
from typing import Final

import click
import jax
from rich.progress import track

from automap.choices import CompilerName
from automap.errors import CompilerError, NotSeparableError
from automap.planner.levers import find_with_levers
from automap.planner.records import Outcome, build_plan
from automap.planner.sharding import find
from automap.program.trace import trace_step
from automap.step.call import TracedCall
from automap.step.step import traced_call
from automap.topology import get_topology
from automap.topology.model import Topology
from scripts.lever_models import MODELS, OFFLOADED, SEARCH, milliseconds
from scripts.tables import made_by, markdown, replace_table
from scripts.witnesses import compile_witness


MICROBATCH_SHARES: Final = (0.7, 0.5, 0.35, 0.25, 0.18, 0.12)
COMPILED_SHARE: Final = 0.5
_TOPOLOGIES: Final = {"tpu": "v5e:2x2", "gpu": "4xh100"}
_MICROBATCH_LEVERS: Final = (("accumulate",), ("accumulate", "remat"))
OFFLOAD_SHARES: Final = (0.8, 0.6)


def microbatches_table(name: str, topology: Topology) -> str:
    """Step over memory with accumulation, alone and with rematerialization."""
    workload = trace_step(*MODELS[name]().target, platform=topology.platform, target=name)
    fastest = find(workload, topology, replace(SEARCH, levers=())).best.estimate
    header = ["model", "share", "limit GiB"]
    rows = []
    for levers in _MICROBATCH_LEVERS:
        header += [f"{' and '.join(levers)} ms", "microbatches", "peak GiB"]
    for share in track(MICROBATCH_SHARES, "planning"):
        limit = share * fastest.peak_bytes
        cells = [name, f"{share:.0%}", f"{limit / 2**30:.2f}"]
        for levers in _MICROBATCH_LEVERS:
            options = replace(SEARCH, memory_limit_bytes=limit, levers=levers)
            outcome = find_with_levers(workload, topology, options)
            estimate = outcome.best.estimate
            fits = outcome.context.objective.fits(estimate)
            count = 1 if outcome.levers is None else outcome.levers.microbatches
            cells += [
                milliseconds(estimate.step_seconds) if fits else "-",
                f"{count}",
                f"{estimate.peak_bytes / 2**30:.2f}",
            ]
        rows.append(cells)
    return markdown(header, rows)


def memory_table(names: list[str], topology: Topology) -> str:
    """Predicted and compiled bytes of plans with and without levers."""
    header = ["model", "plan", "predicted GiB", "compiled GiB", "ratio"]
    rows, off = [], []
    for name in track(names, "compiling"):
        workload = trace_step(*MODELS[name]().target, platform=topology.platform, target=name)
        call = traced_call(*MODELS[name]().target)
        fastest = find(workload, topology, replace(SEARCH, levers=()))
        limit = COMPILED_SHARE * fastest.best.estimate.peak_bytes
        before = _bytes_of(name, "fastest", fastest, call)
        rows += _cells(name, "fastest", before)
        for lever in ("remat", "accumulate"):
            options = replace(SEARCH, memory_limit_bytes=limit, levers=(lever,))
            try:
                outcome = find_with_levers(workload, topology, options)
            except NotSeparableError as error:
                click.echo(f"{name} {lever}: {error}", err=True)
                continue
            after = _bytes_of(name, lever, outcome, call)
            rows += _cells(name, lever, after)
            if before is not None and after is not None:
                fall = tuple(less / more for less, more in zip(after, before, strict=True))
                off.append(fall[0] / fall[1])
                cells = (f"{part:.2f}" for part in (*fall, off[-1]))
                rows.append([name, f"{lever} over fastest", *cells])
    table = markdown(header, rows)
    if off:
        within = f"{median(abs(ratio - 1) for ratio in off):.0%}"
        table += f"\nPredicted falls are {within} off the compiled ones (median of {len(off)}).\n"
    return table


def offload_table(names: list[str], topology: Topology) -> str:
    """Predicted and compiled bytes, and the seconds of the link, with state and kept values in host
    memory.
    """
    header = ["model", "plan", "predicted GiB", "compiled GiB", "ratio", "on the host GiB"]
    rows, off = [], []
    for name in track(names, "compiling"):
        target = OFFLOADED[name]().target
        workload = trace_step(*target, platform=topology.platform, target=name)
        call = traced_call(*target)
        fastest = find(workload, topology, replace(SEARCH, levers=()))
        before = _bytes_of(name, "fastest", fastest, call)
        rows += [
            [*row, "0.00", *_seconds(fastest, call)] for row in _cells(name, "fastest", before)
        ]
        for share in OFFLOAD_SHARES:
            limit = share * fastest.best.estimate.peak_bytes
            options = replace(SEARCH, memory_limit_bytes=limit, levers=("offload",))
            outcome = find_with_levers(workload, topology, options)
            after = _bytes_of(name, f"{share:.0%}", outcome, call)
            levers = build_plan(outcome).levers
            host = f"{0 if levers is None else levers.host_bytes / 2**30:.2f}"
            cells = _cells(name, f"{share:.0%} of its memory", after)
            rows += [[*row, host, *_seconds(outcome, call)] for row in cells]
            if before is not None and after is not None:
                off.append((after[0] / before[0]) / (after[1] / before[1]))
    table = markdown([*header, "step ms", "of it for the host ms", "compiled step ms"], rows)
    within = f"{median(abs(ratio - 1) for ratio in off):.1%}" if off else "-"
    return f"{table}\nPredicted falls are {within} off the compiled ones (median of {len(off)}).\n"


def _seconds(outcome: Outcome, call: TracedCall) -> list[str]:
    estimate, step = outcome.best.estimate, compile_witness(outcome, call).step
    compiled = float("inf") if step is None else step.seconds
    return [milliseconds(s) for s in (estimate.step_seconds, estimate.host_seconds, compiled)]


def _bytes_of(
    name: str, plan: str, outcome: Outcome, call: TracedCall
) -> tuple[float, float] | None:
    """Predicted and compiled bytes of a device; None if the compiler has no answer."""
    try:
        compiled = compile_witness(outcome, call).peak_bytes
    except CompilerError as error:
        click.echo(f"{name} {plan}: {error}", err=True)
        return None
    return None if compiled is None else (outcome.best.estimate.peak_bytes, float(compiled))


def _cells(name: str, plan: str, pair: tuple[float, float] | None) -> list[list[str]]:
    if pair is None:
        return []
    predicted, compiled = pair
    cells = (predicted / 2**30, compiled / 2**30, predicted / compiled)
    return [[name, plan, *(f"{cell:.2f}" for cell in cells)]]


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--only", multiple=True, help="of these models, as the table names them")
@click.option("--compiler", type=click.Choice(["tpu", "gpu"]), help="compare memory with it")
@click.option("--microbatches", is_flag=True, help="GPT with accumulation")
@click.option("--offload", is_flag=True, help="with --compiler: state and kept values offloaded")
def main(
    output: Path | None,
    only: tuple[str, ...],
    compiler: CompilerName | None,
    *,
    microbatches: bool,
    offload: bool,
) -> None:
    """Run the comparison."""
    # Else JAX looks for a TPU here, and holds the compiler that is to be asked.
    jax.config.update("jax_platforms", "cpu")
    if bool(compiler) == microbatches or (offload and not compiler):
        raise click.UsageError("give --microbatches, or --compiler with or without --offload")
    models = OFFLOADED if offload else MODELS
    if unknown := sorted(set(only) - set(models)):
        allowed = ", ".join(map(repr, models))
        raise click.BadParameter(f"got {unknown[0]!r}; allowed: {allowed}", param_hint="--only")
    names = [name for name in models if not only or name in only]
    topology = get_topology(_TOPOLOGIES[compiler or "tpu"])
    if microbatches:
        mark, table = "microbatches", microbatches_table("GPT", topology)
    elif offload:
        mark, table = f"offload on {compiler}", offload_table(names, topology)
    else:
        mark, table = str(compiler), memory_table(names, topology)
    if output is None:
        click.echo(table)
        return
    flags = "".join(f" --only {shlex.quote(name)}" for name in only)
    flags += f" --compiler {compiler}" if compiler else ""
    flags += " --microbatches" if microbatches else ""
    flags += " --offload" if offload else ""
    machine = f"jax {jax.__version__}, {topology.name}, planned on a CPU host"
    command = f"python -m scripts.compare_levers -o {output}{flags}"
    replace_table(output, made_by(command, machine) + table, mark)


if __name__ == "__main__":
    main()
