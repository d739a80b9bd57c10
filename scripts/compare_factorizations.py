"""Predictions beside factorizations of matrices that others measured on GPUs.

    python -m scripts.compare_factorizations scripts/data/factorizations.csv \\
        -o docs/reports/factorizations.md

A row has a call of the library, the matrices and their sizes, the cores of the GPU, milliseconds,
and where they are published. Sizes of a call are of both halves by turns, the smallest first: what
is fitted is fitted on the first, the third and so on (`--show fit` gives the best numbers there),
the others judge.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
import csv
from dataclasses import dataclass
import math
from pathlib import Path
import statistics
from typing import Final, Literal

import click
import numpy as np

from automap.backends import FactorizationNumbers, backend_for
from automap.cost.kernels.factorizations import LocalFactorizations, least_seconds
from hlo_tools.analyses.factorizations import factorization
from scripts.tables import made_by, markdown, replace_table


COMMAND: Final = "python -m scripts.compare_factorizations {rows} -o {output}"
_HALVES: Final = ("fitted", "judged")
# The calls of a row, by the targets whose FLOPs are theirs.
_TARGETS: Final[Mapping[str, tuple[str, ...]]] = {
    "cholesky": ("cusolver_potrf_ffi",),
    "cholesky of many": ("cusolver_potrf_ffi",),
    "triangular solve": ("__cublas$triangularSolve",),
    "lu": ("cusolver_getrf_ffi",),
    "lu of many": ("cusolver_getrf_ffi",),
    "qr and q": ("cusolver_geqrf_ffi", "cusolver_orgqr_ffi"),
    "qr of many": ("cusolver_geqrf_ffi",),
    "eigenvectors": ("cusolver_syevd_ffi",),
    "eigenvectors of small": ("cusolver_syevd_ffi",),
    "singular vectors": ("cusolver_gesvd_ffi",),
    "singular vectors by jacobi": ("cusolver_gesvdj_ffi",),
    "singular vectors of small": ("cusolver_gesvdj_ffi",),
}
_NAMES: Final[Mapping[str, tuple[str, ...]]] = {"qr and q": ("qr", "q")}
_SECONDS: Final = [0.0, *np.geomspace(1e-7, 3e-4, 70)]
_RATES: Final = np.geomspace(3e8, 3e12, 80)


@dataclass(frozen=True, slots=True)
class Measured:
    """A row of the data; `half` is "fitted" or "judged"."""

    call: str
    device: str
    cores: int
    matrices: int
    rows: int
    columns: int
    seconds: float
    source: str
    half: Literal["fitted", "judged"]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the calls in the backend's data that it is made of."""
        return _NAMES.get(self.call, (self.call,))


def measured_rows(path: Path) -> list[Measured]:
    """The rows of a file, in its order. Raises `ClickException` if one cannot be read."""
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    unknown = sorted({line["call"] for line in lines} - set(_TARGETS))
    if unknown:
        raise click.ClickException(f"{path}: calls {unknown}; allowed: {', '.join(_TARGETS)}")
    sizes: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for line in lines:
        sizes[line["call"]].add((int(line["rows"]), int(line["columns"])))
    return [
        Measured(
            line["call"],
            line["device"],
            int(line["cores"]),
            int(line["matrices"]),
            *(size := (int(line["rows"]), int(line["columns"]))),
            float(line["milliseconds"]) / 1e3,
            line["source"],
            _HALVES[sorted(sizes[line["call"]]).index(size) % 2],
        )
        for line in lines
    ]


def predicted_seconds(row: Measured, numbers: FactorizationNumbers) -> float:
    """By the model of the planner, of the call that was measured."""
    total = 0.0
    for name, target in zip(row.names, _TARGETS[row.call], strict=True):
        operands = [(row.matrices, row.rows, row.columns)] * 2
        what = factorization("custom-call", target, "f32", operands)
        assert what is not None  # noqa: S101 - all targets are known
        local = LocalFactorizations(
            np.array([row.matrices]),
            np.array([what.dependent_columns]),
            np.array([what.flops]),
            ((name, name),),
            np.array([math.inf]),
        )
        total += float(least_seconds(local, numbers, row.cores)[0])
    return total


def errors(rows: Sequence[Measured], numbers: FactorizationNumbers) -> list[float]:
    """Of each row, predicted over measured seconds less one."""
    return [predicted_seconds(row, numbers) / row.seconds - 1 for row in rows]


def fitted(rows: Sequence[Measured], numbers: FactorizationNumbers) -> Iterator[list[str]]:
    """(call, rows, seconds of a column, FLOPs of a core) with the least mean error of the logarithm
    on the rows of the half that is fitted on.
    """
    for name, share, *_ in numbers.factorization_calls:
        own = [row for row in rows if row.half == "fitted" and row.names == (name,)]
        if not own:
            continue

        def mean(seconds: float, rate: float) -> float:
            trial = FactorizationNumbers(factorization_calls=((name, share, seconds, rate),))  # noqa: B023
            return statistics.mean(abs(math.log(1 + e)) for e in errors(own, trial))  # noqa: B023

        best = min(((s, r) for s in _SECONDS for r in _RATES), key=lambda pair: mean(*pair))
        yield [name, str(len(own)), f"{best[0] * 1e6:.3g} us", f"{best[1] / 1e9:.3g} G"]


def summary(rows: Sequence[Measured], numbers: FactorizationNumbers) -> str:
    """A line for each call and half."""
    lines: list[list[str]] = []
    for call in dict.fromkeys(row.call for row in rows):
        for half in _HALVES:
            own = [row for row in rows if row.call == call and row.half == half]
            if own:
                off = errors(own, numbers)
                lines.append(
                    [
                        call,
                        half,
                        ", ".join(sorted({row.device for row in own})),
                        str(len(own)),
                        f"{statistics.median(map(abs, off)):.0%}",
                        f"{max(off, key=abs):+.0%}",
                    ]
                )
    return markdown(["call", "half", "GPUs", "rows", "median error", "worst"], lines)


def details(rows: Sequence[Measured], numbers: FactorizationNumbers) -> str:
    """A line for each row."""
    header = ["call", "half", "GPU", "matrices", "measured ms", "predicted ms", "ratio", "from"]
    lines = []
    for row in rows:
        seconds = predicted_seconds(row, numbers)
        lines.append(
            [
                row.call,
                row.half,
                row.device,
                f"{row.matrices:,} of {row.rows:,} x {row.columns:,}",
                f"{row.seconds * 1e3:.4g}",
                f"{seconds * 1e3:.4g}",
                f"{seconds / row.seconds:.2f}",
                row.source,
            ]
        )
    return markdown(header, lines)


@click.command(help=(__doc__ or "").splitlines()[0])
@click.argument("rows", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-o", "--output", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--show",
    type=click.Choice(["tables", "fit"]),
    default="tables",
    help="fit: the best numbers on the half that is fitted on",
)
def main(rows: Path, output: Path | None, show: str) -> None:
    """Compare, and put the tables into a page."""
    numbers = backend_for("cuda").factorization_numbers
    assert numbers is not None  # noqa: S101 - the backend has them
    measured = measured_rows(rows)
    if show == "fit":
        header = ["call", "rows", "seconds of a column", "FLOPs of a core in a second"]
        click.echo(markdown(header, list(fitted(measured, numbers))))
        return
    table = f"{summary(measured, numbers)}\n{details(measured, numbers)}"
    if output is None:
        click.echo(table)
    else:
        line = made_by(COMMAND.format(rows=rows, output=output), "predictions on a CPU host")
        replace_table(output, line + table)


if __name__ == "__main__":
    main()
