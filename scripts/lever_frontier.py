"""Plans with levers beside what people use, under less and less memory: the step over memory.

    python -m scripts.lever_frontier --kept rows.jsonl -o docs/reports/levers.md
    python -m scripts.lever_frontier --kept rows.jsonl --compiler gpu -o docs/reports/levers.md
    python -m scripts.lever_frontier --kept rows.jsonl --compiler gpu --refine 120 -o ...

Small variants of four models, and Llama 3 8B at its context length on four machines. A limit is a
share of what the fastest plan needs that memory does not limit, of Llama 3 8B a share of the
device's memory; the last one, "least", is the least memory that any plan was found for: that of a
search that is allowed one byte. Beside the plan with levers stand "none", "full" and "minimal", the
best preset that fits of the step as it is, with nothing kept of each layer, and with its products
(MaxText's policies).

With `--compiler` the plans of the rows that there are on machines of that compiler are compiled
ahead of time, those with levers and the presets (extras `tpu`, `gpu-compiler`). With `--refine`
rows that are searched have one more plan, "refined", which the compiler was in the loop of for so
many seconds (`automap plan --refine`), but for "least", where there is no other plan. Rows are kept
as they are made, and a second run goes on; `--show` makes the tables of those that there are. A
plan that was found in less memory and is faster is the plan of more memory too, and plans of before
are priced anew, but for `--show`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
import json
from pathlib import Path
import shlex
import time
from typing import Final

import click
import jax

import automap
from automap.choices import CompilerName
from automap.config import Options
from automap.errors import AutomapError, CompilerError, InfeasiblePlanError
from automap.planner.levers import find_with_levers
from automap.planner.rebuild import planned_workload, reprice_plan
from automap.planner.records import Outcome, build_plan
from automap.planner.sharding import find
from automap.program.trace import Workload, trace_step
from automap.refine.loop import refined_plan
from automap.refine.refinement import Refinement
from automap.step.step import traced_call
from automap.topology import get_topology
from automap.topology.model import Topology
from automap.verify.cache import default_folder
from automap.verify.compilers import COMPILER_BY_PLATFORM
from automap.verify.compiling import ask
from automap.verify.program import planned_program
from scripts.frontier_rows import (
    REFINED,
    WITH_LEVERS,
    Plan,
    Row,
    compiled_table,
    frontier_table,
    read_rows,
)
from scripts.lever_models import (
    LARGE,
    LLAMA,
    MODELS,
    SEARCH,
    Model,
    best_preset,
    policy_steps,
    preset_outcome,
)
from scripts.tables import keep_row, made_by, replace_table


COMMAND: Final = "python -m scripts.lever_frontier"
LEAST: Final = "least"
_SHARES: Final = ("100%", "70%", "50%", "35%", LEAST)
_LARGE_SHARES: Final = ("100%", "60%", LEAST)
_ALL_LEVERS: Final = ("accumulate", "offload", "remat")
_LARGE_SECONDS: Final = 120.0
_COMPILE_SECONDS: Final = 900.0
_MACHINES: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(MODELS, ("v5e:2x2", "8xh100", "8xa100", "1xh100")),
    LLAMA: ("v5e:4x4", "v6e:2x4", "8xh100", "8xa100"),
}
_ALL_MODELS: Final[Mapping[str, Model]] = {**MODELS, **LARGE}


@dataclass(frozen=True)
class Case:
    """A model on a machine."""

    model: str
    machine: str

    @property
    def topology(self) -> Topology:
        """The machine."""
        return get_topology(self.machine)

    @property
    def shares(self) -> Sequence[str]:
        """The limits."""
        return _LARGE_SHARES if self.model in LARGE else _SHARES

    @property
    def options(self) -> Options:
        """Of the search with levers."""
        seconds = _LARGE_SECONDS if self.model in LARGE else SEARCH.budget_seconds
        # Samples of a mixture of experts are mixed by the loss that balances the experts.
        levers = _ALL_LEVERS[1:] if self.model.startswith("MoE") else _ALL_LEVERS
        return replace(SEARCH, levers=levers, budget_seconds=seconds)

    def traced(self) -> Workload:
        """The step."""
        target = _ALL_MODELS[self.model]().target
        return trace_step(*target, platform=self.topology.platform, target=self.model)

    def whole_bytes(self, workload: Workload) -> float:
        """What shares are of."""
        if self.model in LARGE:
            return self.topology.device.memory_bytes
        return find(workload, self.topology, replace(SEARCH, levers=())).best.estimate.peak_bytes


def _limited(case: Case, workload: Workload, limit: float) -> Outcome:
    """The best outcome with levers in so much memory."""
    options = replace(case.options, memory_limit_bytes=limit)
    return find_with_levers(workload, case.topology, options)


def _least(case: Case, workload: Workload) -> tuple[float, Outcome]:
    """The least memory that a plan was found for, and the best outcome in it."""
    smallest = _limited(case, workload, 1.0)
    limit = smallest.best.estimate.peak_bytes
    again = _limited(case, workload, limit)
    # Of both, by the limit: the first one keeps to it in any case.
    return limit, min(
        (smallest, again), key=lambda outcome: again.context.objective.key(outcome.best.estimate)
    )


def _refined(case: Case, workload: Workload, outcome: Outcome, seconds: float) -> Plan | None:
    """The plan that the compiler was in the loop of for so many seconds; None if none fits."""
    options = replace(case.options, memory_limit_bytes=outcome.context.objective.memory_limit_bytes)
    refinement = Refinement(seconds=seconds, cache_folder=default_folder())
    call = traced_call(*_ALL_MODELS[case.model]().target)
    try:
        record = refined_plan(workload, outcome, call, options, refinement)
    except (CompilerError, InfeasiblePlanError) as error:
        click.echo(f"{case.model} on {case.machine}: {error}", err=True)
        return None
    predicted = record.predicted
    file = automap.Plan.from_record(record).to_json()
    return Plan(predicted.step_seconds, predicted.peak_bytes, file)


def _rows(case: Case, known: Collection[Row], refine_seconds: float | None) -> Iterator[Row]:
    """The rows of a case that are not known, from the most memory to the least: a plan that is the
    fastest in more memory is it in less that it fits in, and is not searched again.
    """
    workload = case.traced()
    steps = list(policy_steps(workload, case.topology))
    whole = case.whole_bytes(workload)
    made = {row.share: row for row in known}
    for share in case.shares:
        if share in made:
            continue
        begin = time.monotonic()
        is_least = share == LEAST
        limit = 0.0 if is_least else float(share.rstrip("%")) / 100 * whole
        larger = [row for row in made.values() if row.limit_bytes >= limit]
        fitting = _fitting(larger, limit)
        row = Row(case.model, case.machine, share, limit, 0.0)
        if fitting:
            row.plans[WITH_LEVERS] = replace(min(fitting, key=lambda plan: plan.seconds))
            refined = _fitting(larger, limit, REFINED)
            if refined:
                row.plans[REFINED] = replace(min(refined, key=lambda plan: plan.seconds))
        else:
            least = _least(case, workload) if is_least else None
            row.limit_bytes, levered = least or (limit, _limited(case, workload, limit))
            if levered.best.estimate.peak_bytes <= row.limit_bytes:
                row.plans[WITH_LEVERS] = _plan(levered)
            if refine_seconds is not None and not is_least:
                refined = _refined(case, workload, levered, refine_seconds)
                if refined is not None:
                    row.plans[REFINED] = refined
        row.search_seconds = time.monotonic() - begin
        options = replace(SEARCH, memory_limit_bytes=row.limit_bytes)
        for name, step in steps:
            preset = best_preset(step, case.topology, options)
            if preset is not None:
                outcome = preset_outcome(step, case.topology, options, preset.name)
                row.plans[name] = _plan(outcome)
        made[share] = row
        yield row


def _fitting(rows: Iterable[Row], limit: float, name: str = WITH_LEVERS) -> list[Plan]:
    """The rows' plans of a name, or those with levers, that fit in a limit."""
    plans = (row.plans.get(name) for row in rows)
    return [plan for plan in plans if plan is not None and plan.peak_bytes <= limit]


def _shared(rows: Sequence[Row]) -> Iterator[Row]:
    """The rows of a case for which a faster plan was found in less memory, with that plan: a search
    in more memory has more to look at, and its budget may go elsewhere.
    """
    for row in rows:
        own = row.plans.get(WITH_LEVERS)
        best = min(_fitting(rows, row.limit_bytes), key=lambda plan: plan.seconds, default=None)
        if best is not None and (own is None or best.seconds < own.seconds):
            plans = {WITH_LEVERS: replace(best)}
            yield replace(row, plans=plans | _presets(row), compiler="")


def _presets(row: Row) -> dict[str, Plan]:
    return {name: plan for name, plan in row.plans.items() if name != WITH_LEVERS}


def _plan(outcome: Outcome) -> Plan:
    record, estimate = build_plan(outcome), outcome.best.estimate
    return Plan(
        estimate.step_seconds, estimate.peak_bytes, automap.Plan.from_record(record).to_json()
    )


def _with_todays_prices(rows: Sequence[Row]) -> Iterator[Row]:
    """The rows of a case whose plans cost something else today, with the same plans; their search
    is not made again. For a machine that was described otherwise they are compiled anew, too.
    """
    if not rows:
        return
    topology, target = Case(rows[0].model, rows[0].machine).topology, rows[0].model
    step, args = _ALL_MODELS[target]().target
    priced: dict[str, Plan] = {}
    for row in rows:
        plans, compiler = dict(row.plans), row.compiler
        for name, plan in row.plans.items():
            record, key = automap.Plan.from_json(plan.plan), json.dumps(plan.plan)
            if key not in priced:
                workload = planned_workload(record, step, args, {})
                estimate = reprice_plan(record, workload, topology).estimate
                file = plan.plan | {"topology": topology.to_dict()}
                priced[key] = Plan(estimate.step_seconds, estimate.peak_bytes, file)
            now = priced[key]
            if Topology.from_dict(record.topology) == topology:
                plans[name] = replace(plan, seconds=now.seconds, peak_bytes=now.peak_bytes)
            else:
                plans[name], compiler = replace(now), ""
        if plans != row.plans:
            yield replace(row, plans=plans, compiler=compiler)


def _compiled(row: Row, compiler: CompilerName) -> Row:
    """The row with what a compiler makes of its plans."""
    call = traced_call(*_ALL_MODELS[row.model]().target)
    for plan in row.plans.values():
        record = automap.Plan.from_json(plan.plan)
        try:
            witness = ask(
                planned_program(record, call),
                compiler,
                timeout_seconds=_COMPILE_SECONDS,
                cache_folder=default_folder(),
            )
        except AutomapError as error:
            plan.refusal = str(error)
            continue
        plan.compiled_bytes, plan.refusal = witness.peak_bytes, witness.refusal
        plan.compiled_seconds = None if witness.step is None else witness.step.seconds
    return replace(row, compiler=compiler)


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--kept", type=click.Path(path_type=Path, dir_okay=False), required=True)
@click.option("--only", multiple=True, help="models and machines, by the beginning of their names")
@click.option("--compiler", type=click.Choice(["tpu", "gpu"]), help="compile the plans")
@click.option("--refine", type=float, help="seconds of refinement of plans that are searched")
@click.option("--show", is_flag=True, help="only rows that there are")
def main(
    output: Path | None,
    kept: Path,
    only: tuple[str, ...],
    compiler: CompilerName | None,
    refine: float | None,
    *,
    show: bool,
) -> None:
    """Make the rows and their table."""
    # Else JAX looks for a TPU here, and holds the compiler that is to be asked.
    jax.config.update("jax_platforms", "cpu")
    known, rows = read_rows(kept), []
    for model, machines in _MACHINES.items():
        for case in (Case(model, machine) for machine in machines):
            if only and not any(f"{case.model} {case.machine}".startswith(o) for o in only):
                continue
            keys = [(case.model, case.machine, share) for share in case.shares]
            if not show and not all(key in known for key in keys):
                kept_of_case = [known[key] for key in keys if key in known]
                for row in _rows(case, kept_of_case, refine):
                    known[row.key] = row
                    keep_row(kept, asdict(row))
            for change in () if show else (_with_todays_prices, _shared):
                for row in change([known[key] for key in keys if key in known]):
                    known[row.key] = row
                    keep_row(kept, asdict(row))
            for key in keys:
                row = known.get(key)
                if row is None or (
                    compiler and COMPILER_BY_PLATFORM[case.topology.platform] != compiler
                ):
                    continue
                if compiler and not row.compiler and not show:
                    row = _compiled(row, compiler)
                    keep_row(kept, asdict(row))
                rows.append(row)
    table = frontier_table(rows) if compiler is None else compiled_table(rows)
    if output is None:
        click.echo(table)
        return
    flags = "".join(f" --only {shlex.quote(name)}" for name in only)
    flags += f" --compiler {compiler}" if compiler else ""
    flags += f" --refine {refine:g}" if refine else ""
    flags += " --show" if show else ""
    command = f"{COMMAND} --kept {kept}{flags} -o {output}"
    machine = f"jax {jax.__version__}, planned on a CPU host"
    mark = f"frontier on {compiler}" if compiler else "frontier"
    replace_table(output, made_by(command, machine) + table, mark)


if __name__ == "__main__":
    main()
