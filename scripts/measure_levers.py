"""Plans with levers, and what people use in their place, measured on one GPU.

    python -m scripts.lever_frontier --kept rows.jsonl --only "GPT 1xh100"       # and the others
    python -m scripts.measure_levers run rows.jsonl FOLDER --seconds 300         # on the GPU
    python -m scripts.measure_levers show scripts/data/KEPT.jsonl.xz -o docs/reports/levers.md

The plans are those of `scripts.lever_frontier` for one device, under less and less memory; each
runs as its user would run it, `Plan.jit(step)`, in a process of its own, and is timed as
`scripts.measure_steps` times steps. The table holds the prediction of today beside the measured
step and the bytes that the compiler of that GPU gave the program. `show` needs the version of JAX
that measured: another one writes other equations, and the plans are of these.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
import json
from pathlib import Path
import statistics
import time
from typing import Any, Final

import click
from rich.progress import track

import automap
from automap.backends import backend_for
from automap.planner.rebuild import planned_workload, reprice_plan
from automap.topology import get_topology
from scripts.compare_measured import MACHINES
from scripts.frontier_rows import WITH_LEVERS, read_rows
from scripts.lever_models import MODELS, POLICIES, levers_words, milliseconds
from scripts.measure_steps import CASE_SECONDS, Measured, in_process, measured_step
from scripts.tables import keep_row, kept_rows, made_by, markdown, replace_table


COMMAND: Final = "python -m scripts.measure_levers show {rows} -o {output}"
_ALONE: Final = "1xh100"
# Of levers, what was predicted and is not run.
_PREDICTED: Final = ("without", "recompute_seconds", "host_bytes")
_ERRORS: Final = ((statistics.median, "in the median"), (max, "at worst"))
_HEADER: Final = (
    "model",
    "plan",
    "of the limits",
    "levers",
    "measured ms",
    "predicted ms",
    "ratio",
    "compiled GiB",
    "ratio of memory",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A plan for one device: of a model under a limit, with levers or by a policy."""

    model: str
    share: str
    name: str
    plan: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPlan:
    """A plan, and all limits (shares) that it was the plan of, as it was measured."""

    model: str
    name: str
    shares: tuple[str, ...]
    plan: Mapping[str, Any]
    measured: Measured

    @property
    def device_bytes(self) -> float:
        """The compiled bytes without the state in the host's memory, which this GPU's compiler
        counts among the arguments; what is kept on the host for the backward pass is still in.
        """
        levers = self.plan.get("levers") or {}
        return self.measured.compiled_bytes - levers.get("host_bytes", 0)


def planned_cases(path: Path) -> list[Case]:
    """All plans for one device of a file of `scripts.lever_frontier`."""
    return [
        Case(model=row.model, share=row.share, name=name, plan=plan.plan)
        for row in read_rows(path).values()
        if row.machine == _ALONE
        for name, plan in row.plans.items()
    ]


def different_plans(cases: Sequence[Case]) -> Iterator[list[Case]]:
    """The cases by what is run: one plan is often that of several limits."""
    groups: dict[str, list[Case]] = {}
    for case in cases:
        levers = json.dumps(case.plan.get("levers"), sort_keys=True)
        groups.setdefault(f"{case.model} {case.name} {_without_prices(levers)}", []).append(case)
    yield from groups.values()


def _without_prices(levers: str) -> str:
    """Levers as text, without what was predicted of them."""
    fields = json.loads(levers) or {}
    return json.dumps(
        {k: v for k, v in fields.items() if k not in ("without", "recompute_seconds")}
    )


def _measure(case: Case, folder: Path) -> Measured:
    step, args = MODELS[case.model]().target
    planned = automap.Plan.from_json(dict(case.plan)).jit(step)
    return measured_step(_name(case), planned, args, folder)[1]


def _name(case: Case) -> str:
    return f"{case.model} {case.name} {case.share}"


def _read(path: Path) -> list[MeasuredPlan]:
    """The rows of a run; a file that is kept is compressed, as plans have many words."""
    found = []
    for row in kept_rows(path):
        measured, shares = Measured.from_row(row.pop("measured")), tuple(row.pop("shares"))
        found.append(MeasuredPlan(**row, shares=shares, measured=measured))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Priced:
    """A measured plan, and what is predicted of it today; `is_told` says whether the plan warns of
    operations that take longer than is predicted.
    """

    row: MeasuredPlan
    seconds: float
    peak_bytes: float
    is_told: bool

    @property
    def ratio(self) -> float:
        return self.seconds / self.row.measured.seconds

    @property
    def ratio_of_bytes(self) -> float:
        return self.peak_bytes / self.row.device_bytes


def _priced(row: MeasuredPlan) -> _Priced:
    record = automap.Plan.from_json(dict(row.plan))
    topology = get_topology(MACHINES[row.measured.device])
    workload = planned_workload(record, *MODELS[row.model]().target, {})
    estimate = reprice_plan(record, workload, topology).estimate
    unpriced = backend_for(topology.platform).unpriced(workload.problem.graph)
    return _Priced(
        row=row,
        seconds=estimate.step_seconds,
        peak_bytes=estimate.peak_bytes,
        is_told=any(True for _ in unpriced),
    )


def report(found: Sequence[MeasuredPlan]) -> str:
    """All plans, with the errors of the predictions, and how the plans with levers compare."""
    priced = [_priced(row) for row in track(found, "predicting")]
    counted = [each for each in priced if not each.is_told]
    seconds, of_bytes = (
        ", ".join(f"{f(abs(r - 1) for r in ratios):.0%} {name}" for f, name in _ERRORS)
        for ratios in ([p.ratio for p in counted], [p.ratio_of_bytes for p in counted])
    )
    errors = (
        f"Predicted seconds are off by {seconds}, bytes by {of_bytes}, of {len(counted)} plans; of "
        f"{len(priced) - len(counted)} more (*) the plan itself warns of operations that take "
        "longer than is predicted.\n\n"
    )
    table = markdown(list(_HEADER), [_cells(each) for each in priced])
    return errors + table + "\n" + _beside_policies(found)


def _cells(priced: _Priced) -> list[str]:
    row = priced.row
    return [
        row.model,
        row.name,
        ", ".join(row.shares) if row.name == WITH_LEVERS else "",
        levers_words(automap.Plan.from_json(dict(row.plan)).levers),
        milliseconds(row.measured.seconds),
        milliseconds(priced.seconds) + (" *" if priced.is_told else ""),
        f"{priced.ratio:.2f}",
        f"{row.device_bytes / 2**30:.2f}",
        f"{priced.ratio_of_bytes:.2f}",
    ]


def _beside_policies(found: Sequence[MeasuredPlan]) -> str:
    """For each limit the measured plan with levers beside the fastest policy that needs no more
    bytes, by the compiled ones.
    """
    lines = []
    for ours in (row for row in found if row.name == WITH_LEVERS):
        fitting = [
            row
            for row in found
            if row.model == ours.model
            and row.name in POLICIES
            and row.device_bytes <= ours.device_bytes
        ]
        best = min(fitting, key=lambda row: row.measured.seconds, default=None)
        seconds = ours.measured.seconds
        lines.append(
            [
                ours.model,
                ", ".join(ours.shares),
                f"{ours.device_bytes / 2**30:.2f}",
                milliseconds(seconds),
                "none" if best is None else best.name,
                milliseconds(None if best is None else best.measured.seconds),
                "-" if best is None else f"{best.measured.seconds / seconds:.2f}",
            ]
        )
    header = ["model", "of the limits", "GiB", "with levers ms", "the best policy in no more"]
    return markdown([*header, "its ms", "times as fast"], lines)


@click.group(help=(__doc__ or "").splitlines()[0])
def main() -> None:
    """Measure, or make the table."""


@main.command()
@click.argument("rows", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--seconds", default=3600.0, help="no plan is begun after so long")
@click.option("--processes", default=4, help="how many run at once; one at a time is timed")
@click.option("--only", type=int, default=None, help="measure the plan of this number here")
def run(rows: Path, folder: Path, seconds: float, processes: int, only: int | None) -> None:
    """Measure all plans of ROWS that are not in FOLDER yet."""
    folder.mkdir(parents=True, exist_ok=True)
    groups = list(different_plans(planned_cases(rows)))
    if only is not None:
        click.echo(json.dumps(asdict(_measure(groups[only][0], folder))))
        return
    end, kept = time.monotonic() + seconds, folder / "rows.jsonl"
    known = {json.dumps(row["plan"], sort_keys=True) for row in kept_rows(kept)}

    def one(number: int) -> tuple[list[Case], Measured]:
        words = ["scripts.measure_levers", "run", str(rows), str(folder), "--only", str(number)]
        left = min(CASE_SECONDS, end - time.monotonic())
        return groups[number], in_process(_name(groups[number][0]), words, left)

    missing = [
        number
        for number, group in enumerate(groups)
        if json.dumps(group[0].plan, sort_keys=True) not in known
    ]
    with ThreadPoolExecutor(processes) as pool:
        for group, measured in pool.map(one, missing):
            ms = f"{measured.seconds * 1e3:.2f} ms"
            click.echo(f"{measured.name}: {measured.error or ms}")
            if measured.error:
                continue
            first, shares = group[0], tuple(case.share for case in group)
            row = MeasuredPlan(
                model=first.model,
                name=first.name,
                shares=shares,
                plan=first.plan,
                measured=replace(measured, others_compiled=processes > 1),
            )
            keep_row(kept, asdict(row))


@main.command()
@click.argument("measurements", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def show(measurements: Path, output: Path | None) -> None:
    """Make the table of what was measured."""
    found = _read(measurements)
    (device,) = {row.measured.device for row in found}
    (version,) = {row.measured.jax_version for row in found}
    (day,) = {row.measured.measured_on for row in found}
    command = COMMAND.format(rows=measurements, output=output or "FILE")
    text = made_by(command, f"measured on one {device} with jax {version} on {day}")
    text += report(found)
    if output is None:
        click.echo(text)
    else:
        replace_table(output, text, "levers measured")


if __name__ == "__main__":
    main()
