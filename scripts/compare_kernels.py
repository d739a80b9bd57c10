"""Predictions beside kernels that were measured one by one (`scripts.measure_kernels`).

    python -m scripts.compare_kernels scripts/data/kernels_h100.jsonl -o docs/reports/step_times.md

Cases of a group are of both halves by turns: what was fitted on such measurements was fitted on the
first, the third and so on; the others judge.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
import statistics
from typing import Final

import click
import jax
from rich.progress import track

from automap.topology import get_topology
from scripts.compare_measured import MACHINES, predicted_alone
from scripts.kernel_cases import CASES, KernelCase
from scripts.measure_kernels import MeasuredKernels
from scripts.tables import kept_rows, made_by, markdown, replace_table


COMMAND: Final = "python -m scripts.compare_kernels {rows} -o {output}"
_HALVES: Final = ("fitted", "judged")


def ratios(
    cases: Sequence[KernelCase], measured: Mapping[str, MeasuredKernels]
) -> Iterator[tuple[str, str, float]]:
    """(group, half, predicted over measured seconds) of each case that was measured."""
    numbers: dict[str, int] = defaultdict(int)
    for case in track([c for c in cases if c.name in measured], "predicting"):
        row = measured[case.name]
        half = _HALVES[numbers[case.group] % 2]
        numbers[case.group] += 1
        step = jax.jit(case.step, donate_argnums=case.donated)
        estimate = predicted_alone(step, case.args, get_topology(MACHINES[row.device]))
        yield case.group, half, estimate.step_seconds / row.seconds


def report(each: Sequence[tuple[str, str, float]]) -> str:
    """Ratios by group and half."""
    rows = [
        [group, half, str(len(own)), f"{statistics.median(own):.2f}", _ends(own)]
        for group in dict.fromkeys(group for group, _, _ in each)
        for half in _HALVES
        if (own := [r for g, h, r in each if (g, h) == (group, half)])
    ]
    return markdown(["kernels", "half", "number", "median ratio", "worst ratios"], rows)


def _ends(numbers: Sequence[float]) -> str:
    return f"{min(numbers):.2g}, {max(numbers):.2g}"


@click.command(help=(__doc__ or "").splitlines()[0])
@click.argument("measurements", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(measurements: Path, output: Path | None) -> None:
    """Make the table."""
    measured = [MeasuredKernels.from_row(row) for row in kept_rows(measurements)]
    ((device, version, day),) = {(r.device, r.jax_version, r.measured_on) for r in measured}
    table = report(list(ratios(CASES, {row.name: row for row in measured})))
    command = COMMAND.format(rows=measurements, output=output or "FILE")
    text = made_by(command, f"measured on one {device} with jax {version} on {day}") + table
    if output is None:
        click.echo(text)
    else:
        replace_table(output, text, "kernels")


if __name__ == "__main__":
    main()
