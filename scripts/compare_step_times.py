"""Predicted step times beside measured ones, after a calibration of the machine they are measured
on.

    python -m scripts.compare_step_times -o docs/reports/step_times.md

It measures eight fake devices of this processor; `scripts.compare_measured` is of a GPU.

For each model different plans are compiled and run in turn, one step each, many times over, so that
whatever else the machine does at a time slows all of them; a plan's time is the least, which that
disturbs least. With `-o` the table is replaced in the file.
"""

from dataclasses import dataclass
from pathlib import Path
from statistics import median
import time
from typing import Any

import click
import jax
from rich.progress import track
from scipy.stats import kendalltau

from automap.calibrate.calibration import calibrate
from automap.config import Options
from automap.cost.profile import KernelProfile
from automap.errors import AutomapError
from automap.planner.records import Outcome, build_plan
from automap.planner.sharding import find
from automap.program import Workload, load_target, trace_step
from automap.topology.mesh import Mesh
from automap.topology.model import Topology
from scripts.step_time_cases import CPU_TARGETS
from scripts.step_time_runs import ROUNDS, runner
from scripts.tables import made_by, markdown, replace_table


COMMAND = "python -m scripts.compare_step_times -o docs/reports/step_times.md"
# As many as the fake devices of the tests.
DEVICES, SEARCH_SECONDS = 8, 10.0
FLAT, GRID, TALL = {"data": 8}, {"data": 2, "model": 4}, {"data": 4, "model": 2}
PLANS: tuple[tuple[str, dict[str, int]], ...] = (
    ("data-parallel", FLAT),
    ("zero-1", FLAT),
    ("zero-3", FLAT),
    ("megatron", {"model": 8}),
    ("megatron", GRID),
    ("megatron", TALL),
    ("sequence-parallel", GRID),
    ("one-weird-trick", FLAT),
    ("zero-3", GRID),
)
HEADER = [
    "model",
    "plan",
    "mesh",
    "measured ms",
    "median ms",
    "predicted ms",
    "ratio",
    "roofline ms",
]
TAU_HEADER = [
    "model",
    "plans",
    "tau",
    "tau of medians",
    "tau, roofline only",
    "ratio, median",
    "ratios",
    "best measured",
    "best predicted",
]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One plan of one model; `seconds` is the least of its measured steps."""

    model: str
    plan: str
    mesh: dict[str, int]
    seconds: float
    median_seconds: float
    predicted_seconds: float
    roofline_seconds: float

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted_seconds / self.seconds

    @property
    def name(self) -> str:
        """Plan and mesh."""
        return f"{self.plan} {'x'.join(map(str, self.mesh.values()))}"

    def cells(self) -> list[str]:
        """The row of the table."""
        return [
            self.model,
            self.plan,
            "x".join(map(str, self.mesh.values())),
            f"{self.seconds * 1e3:.2f}",
            f"{self.median_seconds * 1e3:.2f}",
            f"{self.predicted_seconds * 1e3:.2f}",
            f"{self.ratio:.2f}",
            f"{self.roofline_seconds * 1e3:.2f}",
        ]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A plan ready to run; `run` does a step on the plan's own state."""

    plan: str
    mesh: dict[str, int]
    predicted_seconds: float
    roofline_seconds: float
    run: Any


def compare(target: str, topology: Topology, profile: KernelProfile) -> list[Row]:
    """All plans of one model."""
    step, args = load_target(target, {})
    workload = trace_step(step, args, platform=topology.platform, target=target)
    cases: list[Case] = []
    seen: set[object] = set()
    for name, mesh in (*PLANS, ("search", {})):
        outcome = _outcome(workload, topology, name, mesh, profile)
        if outcome is None:
            continue
        plan = build_plan(outcome)
        # Two presets may be one plan for a small model.
        key = (plan.mesh, plan.inputs, plan.outputs, plan.constraints)
        if key not in seen:
            seen.add(key)
            roofline = _roofline_seconds(outcome)
            cases.append(
                Case(
                    plan=name,
                    mesh=dict(plan.mesh.axes),
                    run=runner(plan, step, args),
                    predicted_seconds=plan.predicted.step_seconds,
                    roofline_seconds=roofline,
                )
            )
    times: list[list[float]] = [[] for _ in cases]
    # In turn, so that what else the machine does slows all plans alike.
    for _ in range(ROUNDS):
        for case, seconds in zip(cases, times, strict=True):
            start = time.perf_counter()
            case.run()
            seconds.append(time.perf_counter() - start)
    return [_row(target, case, seconds) for case, seconds in zip(cases, times, strict=True)]


def _row(target: str, case: Case, seconds: list[float]) -> Row:
    return Row(
        model=target.partition(":")[2],
        plan=case.plan,
        mesh=case.mesh,
        seconds=min(seconds),
        median_seconds=median(seconds),
        predicted_seconds=case.predicted_seconds,
        roofline_seconds=case.roofline_seconds,
    )


def _outcome(
    workload: Workload, topology: Topology, name: str, mesh: dict[str, int], profile: KernelProfile
) -> Outcome | None:
    """A preset's plan or the searched one; None if the preset does not suit."""
    given = Mesh(tuple(mesh), tuple(mesh.values())) if mesh else None
    preset = None if name == "search" else name
    options = Options(mesh=given, preset=preset, profile=profile, budget_seconds=SEARCH_SECONDS)
    try:
        return find(workload, topology, options)
    except AutomapError:
        return None


def _roofline_seconds(outcome: Outcome) -> float:
    """What the same plan is predicted to take by the hardware file alone."""
    evaluator = outcome.context.evaluator
    # The same tables without the profile.
    plain = type(evaluator)(evaluator.tables, evaluator.n_classes, evaluator.topology)
    return plain.evaluate(outcome.context.space.split_classes(outcome.best.point)).step_seconds


def report(rows: list[Row], machine: str) -> str:
    """Both tables of the processor's section."""
    models = list(dict.fromkeys(row.model for row in rows))
    taus = [_tau_cells(model, _of(rows, model)) for model in models]
    return (
        made_by(COMMAND, machine)
        + markdown(TAU_HEADER, taus)
        + "\n"
        + markdown(HEADER, [row.cells() for row in rows])
    )


def _of(rows: list[Row], model: str) -> list[Row]:
    return [row for row in rows if row.model == model]


def _tau_cells(model: str, rows: list[Row]) -> list[str]:
    least, medians = [row.seconds for row in rows], [row.median_seconds for row in rows]
    predicted, roofline = (
        [row.predicted_seconds for row in rows],
        [row.roofline_seconds for row in rows],
    )
    ratios = sorted(row.ratio for row in rows)
    pairs = ((least, predicted), (medians, predicted), (least, roofline))
    return [
        model,
        str(len(rows)),
        *(f"{float(kendalltau(*pair).statistic):.2f}" for pair in pairs),
        f"{median(ratios):.2f}",
        f"{ratios[0]:.2f} to {ratios[-1]:.2f}",
        min(rows, key=lambda row: row.seconds).name,
        min(rows, key=lambda row: row.predicted_seconds).name,
    ]


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--only", default="", help="models whose name contains this")
@click.option("--profile", type=click.Path(path_type=Path), help="the profile to go on with")
def main(output: Path | None, only: str, profile: Path | None) -> None:
    """Run the comparison."""
    targets = [t for t in CPU_TARGETS if only in t]
    done = calibrate(device_count=DEVICES, depth="quick", targets=targets, profile_path=profile)
    measured = done.session.profile
    rows: list[Row] = []
    for target in track(targets, "models"):
        rows += compare(target, done.topology, measured)
        cells = _tau_cells(rows[-1].model, _of(rows, rows[-1].model))
        click.echo(f"done: {' | '.join(cells)}", err=True)
    table = report(rows, f"jax {jax.__version__}, {DEVICES} fake devices")
    if output is None:
        click.echo(table)
    else:
        replace_table(output, table, "cpu")


if __name__ == "__main__":
    main()
