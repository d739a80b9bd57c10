"""Predictions beside steps that were measured on a GPU (`scripts.measure_steps`), on any machine.

    python -m scripts.compare_measured scripts/data/steps_h200.jsonl -o docs/reports/step_times.md

The predictions are the catalogue's, without a calibration, of each step on one device. What was
fitted on measurements was fitted on those of the first half (`scripts.halves`); what is quoted is
of the second. Of a case that was timed while others were compiled the least counts of steps in a
row, of the trace's span, and of the sum of its kernels.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
import statistics
from typing import Any, Final

import click
from rich.progress import track

from automap.config import Options
from automap.cost.evaluate import Estimate
from automap.planner.sharding import find
from automap.program import trace_step
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from automap.topology.model import Topology
from scripts.measure_steps import Measured
from scripts.measured_steps import CASES, Case, Group, Half
from scripts.tables import kept_rows, made_by, markdown, replace_table


COMMAND: Final = "python -m scripts.compare_measured {rows} -o {output}"
MACHINES: Final[Mapping[str, str]] = {
    "NVIDIA H200": "1xh200",
    "NVIDIA H100 80GB HBM3": "1xh100",
}
"""Topologies by the names that JAX has for their devices."""
_KINDS: Final[Mapping[Group, str]] = {
    "model": "models of the zoo",
    "stranger": "strangers, all judged",
    "small": "single operations",
}
_HEADER: Final = ["step", "half", "measured ms", "predicted ms", "ratio", "ratio of memory"]
_WITHIN: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A case, as it was measured, and what is predicted of it."""

    case: Case
    measured: Measured
    predicted_seconds: float
    predicted_bytes: float

    @property
    def ratio(self) -> float:
        """Predicted over measured seconds."""
        return self.predicted_seconds / self.measured.seconds

    def cells(self) -> list[str]:
        """The row of the table."""
        return [
            self.case.name + (" *" if self.measured.others_compiled else ""),
            self.case.half,
            f"{self.measured.seconds * 1e3:.2f}",
            f"{self.predicted_seconds * 1e3:.2f}",
            f"{self.ratio:.2f}",
            f"{self.predicted_bytes / self.measured.compiled_bytes:.2f}",
        ]


def predicted_alone(step: Callable[..., Any], args: Sequence[Any], topology: Topology) -> Estimate:
    """A step on one device, by the catalogue without a calibration."""
    alone = Options(mesh=Mesh(("data",), (1,)), strategy="greedy", levers=("none",))
    return find(trace_step(step, args, platform=topology.platform), topology, alone).best.estimate


def rows(measured: Mapping[str, Measured]) -> Iterator[Row]:
    """All cases that were measured."""
    for case in track([c for c in CASES if c.name in measured], "predicting"):
        topology = get_topology(MACHINES[measured[case.name].device])
        estimate = predicted_alone(*case.load(), topology)
        yield Row(
            case=case,
            measured=measured[case.name],
            predicted_seconds=estimate.step_seconds,
            predicted_bytes=estimate.peak_bytes,
        )


def report(found: Sequence[Row]) -> str:
    """Errors by kind and half, and all rows."""
    halves: tuple[Half, ...] = ("fitted", "judged")
    errors = [
        [name, half, *_errors(chosen)]
        for group, name in _KINDS.items()
        for half in halves
        if (chosen := [r for r in found if r.case.group == group and r.case.half == half])
    ]
    header = ["steps", "half", "number", "median error", "within 25 %", "worst ratios"]
    return markdown(header, errors) + "\n" + markdown(_HEADER, [row.cells() for row in found])


def _errors(found: Sequence[Row]) -> list[str]:
    ratios = [row.ratio for row in found]
    errors = [abs(ratio - 1) for ratio in ratios]
    return [
        str(len(found)),
        f"{statistics.median(errors):.0%}",
        f"{sum(error <= _WITHIN for error in errors)}",
        f"{min(ratios):.2f}, {max(ratios):.2f}",
    ]


@click.command(help=(__doc__ or "").splitlines()[0])
@click.argument("measurements", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(measurements: Path, output: Path | None) -> None:
    """Make the table."""
    measured = [Measured.from_row(row) for row in kept_rows(measurements)]
    (device,) = {row.device for row in measured}
    (version,) = {row.jax_version for row in measured}
    (day,) = {row.measured_on for row in measured}
    table = report(list(rows({row.name: row for row in measured if not row.error})))
    command = COMMAND.format(rows=measurements, output=output or "FILE")
    text = made_by(command, f"measured on one {device} with jax {version} on {day}") + table
    if output is None:
        click.echo(text)
    else:
        replace_table(output, text, "gpu")


if __name__ == "__main__":
    main()
