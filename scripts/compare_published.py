"""Predicted steps beside published ones of whole clusters, each run laid out as it was.

    python -m scripts.compare_published -o docs/reports/published.md
    python -m scripts.compare_published --fit

A row of `scripts/data/published_steps.csv` that can be expressed (`scripts.published_rows`) is
predicted with its own parallelism (`scripts.published_prediction`). What a family of runs reaches
on a device (`Efficiencies`) is in `scripts/data/published_efficiencies.toml`: `--fit` sets it from
the half of the rows that does not judge, by the least

    mean |log r| + 2 mean (log r)^2,   r predicted over published seconds   -> in: `_loss`

and the table judges by the other half. `--parts` is a file of what was priced: with it a second run
takes seconds, and it must be deleted when the cost model changes.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
import json
from pathlib import Path
import platform
import statistics
import tomllib
from typing import Final

import click
import jax
import numpy as np
from rich.progress import track
from scipy.optimize import minimize

from scripts.published_prediction import (
    Efficiencies,
    PartsStore,
    Prediction,
    Run,
    price_run,
)
from scripts.published_rows import Row, read_rows, why_not
from scripts.published_runs import DEVICES, JUDGED
from scripts.tables import made_by, markdown, replace_table


COMMAND: Final = "python -m scripts.compare_published -o docs/reports/published.md"
EFFICIENCIES: Final = Path(__file__).parent / "data" / "published_efficiencies.toml"
# A family on a device, as "PyTorch FSDP on h100".
Group = str
_NAMES: Final = tuple(f.name for f in fields(Efficiencies))
# Where the search for a group's efficiencies begins, and what it leaves as it is.
_START: Final[Mapping[str, float]] = {
    "products": 0.9,
    "memory": 0.6,
    "collectives": 0.8,
    "attention": 0.35,
    "host_seconds": 3e-5,
    "pass_seconds": 2e-3,
}
_HOST: Final = ("host_seconds", "pass_seconds")
FITTED: Final[Mapping[str, tuple[str, ...]]] = {
    "PyTorch FSDP": ("products", "memory", "attention"),
    "Megatron-LM": ("products", "memory", "collectives", *_HOST),
    "MaxText": ("attention",),
}
"""What is fitted of a family's groups; of others nothing."""
_TOLERANCE: Final = {"xatol": 1e-2, "fatol": 2e-4}  # of logarithms, and of the loss


def group_name(row: Row) -> Group:
    """The family of a row and its device."""
    return f"{row.family.name} on {DEVICES[row.chip]}"


def read_efficiencies(path: Path = EFFICIENCIES) -> dict[Group, Efficiencies]:
    """By group. Raises `ClickException` for names or numbers that are none."""
    read = tomllib.loads(path.read_text(encoding="utf-8"))
    result: dict[Group, Efficiencies] = {}
    for group, numbers in read.items():
        unknown = sorted(set(numbers) - set(_NAMES))
        if unknown:
            raise click.ClickException(
                f"{path}: {group}: {', '.join(unknown)}; allowed: {', '.join(_NAMES)}"
            )
        for name, number in numbers.items():
            if not isinstance(number, float) or number < 0 or (name in _SHARES and not number):
                raise click.ClickException(
                    f"{path}: {group}: {name} is {number!r}; expected a number above 0"
                )
        result[group] = Efficiencies(**numbers)
    return result


_SHARES: Final = frozenset(name for name in _NAMES if not name.endswith("_seconds"))


def price_runs(rows: Sequence[Row], store: PartsStore) -> list[Run]:
    """All rows by the catalogue, those of one model after another: each decoder is traced once."""
    ordered = sorted(rows, key=lambda row: (row.model.partition(" L")[0], row.length, row.chips))
    return [price_run(row, store) for row in track(ordered, "pricing")]


def fit(runs: Sequence[Run]) -> Mapping[Group, Efficiencies]:
    """What each group's runs reach, by those of its rows that do not judge."""
    result: dict[Group, Efficiencies] = {}
    for group in sorted({group_name(run.row) for run in runs}):
        own = [run for run in runs if group_name(run.row) == group and not run.row.is_held_out]
        names = FITTED.get(group.partition(" on ")[0], ())
        if own and names:
            result[group] = _fitted(own, names)
    return result


def _fitted(runs: Sequence[Run], names: Sequence[str]) -> Efficiencies:
    def given(logs: np.ndarray) -> Efficiencies:
        return Efficiencies(**dict(zip(names, np.exp(logs).tolist(), strict=True)))

    def loss(logs: np.ndarray) -> float:
        return _loss([run.predict(given(logs)).ratio for run in runs])

    start = np.log([_START[name] for name in names])
    result = minimize(loss, start, method="Nelder-Mead", options=_TOLERANCE)
    return given(np.asarray(result.x))


def _loss(ratios: Sequence[float]) -> float:
    logs = np.abs(np.log(ratios))
    return float(logs.mean() + 2 * (logs**2).mean())


HEADER: Final = ["rows of", "half", "rows", "median error", "within 25 %", "worst", "worst row"]


def summary(predicted: Sequence[Prediction]) -> str:
    """Errors by device and by group, of both halves."""
    lines = []
    for title, chosen in _cuts(predicted):
        for half, is_held_out in (("judged", True), ("set on", False)):
            half_rows = [p for p in chosen if p.row.is_held_out == is_held_out]
            if half_rows:
                lines.append([title, half, *_errors(half_rows)])
    return markdown(list(HEADER), lines)


def _cuts(predicted: Sequence[Prediction]) -> Iterator[tuple[str, list[Prediction]]]:
    for name, devices in JUDGED.items():
        yield f"**{name}**", [p for p in predicted if DEVICES[p.row.chip] in devices]
    for group in sorted({group_name(p.row) for p in predicted}):
        yield group, [p for p in predicted if group_name(p.row) == group]


def _errors(predicted: Sequence[Prediction]) -> list[str]:
    errors = [abs(p.ratio - 1) for p in predicted]
    worst = max(predicted, key=lambda p: abs(p.ratio - 1))
    near = sum(error <= 0.25 for error in errors)
    return [
        str(len(errors)),
        f"{statistics.median(errors):.1%}",
        f"{near} of {len(errors)}",
        f"{max(errors):.1%}",
        _row_text(worst.row),
    ]


def _row_text(row: Row) -> str:
    return f"{row.model}, {row.chips} chips, {row.length} tokens, {row.parallelism}"


Class = Callable[[Prediction], str]
_CLASSES: Final[tuple[tuple[str, Class], ...]] = (
    ("what decides a pass", lambda p: "the host's launches" if p.by_host else "the device"),
    ("tensor parallel", lambda p: f"{p.row.layout().tensor:2d}"),
    ("stages", lambda p: f"{p.row.layout().stages:2d}"),
    ("sequences of a microbatch", lambda p: _up_to(p.row.layout().microbatch, (1, 2, 4, 8, 32))),
    ("tokens of a sequence", lambda p: _up_to(p.row.length, (1024, 2048, 8192))),
    ("machines", lambda p: "one host" if p.row.chips <= 8 else "several hosts"),
)


def _up_to(number: int, bounds: Sequence[int]) -> str:
    fitting = [bound for bound in bounds if number <= bound]
    return f"up to {fitting[0]:5d}" if fitting else f"{'':6}more"


def where_errors_are(predicted: Sequence[Prediction]) -> str:
    """Of judged rows: the median ratio and error by class, and the share of all error."""
    lines = []
    for name, devices in JUDGED.items():
        judged = [p for p in predicted if DEVICES[p.row.chip] in devices and p.row.is_held_out]
        total = sum(abs(p.ratio - 1) for p in judged)
        for title, klass in _CLASSES:
            for value in sorted({klass(p) for p in judged}):
                ratios = [p.ratio for p in judged if klass(p) == value]
                errors = [abs(ratio - 1) for ratio in ratios]
                lines.append(
                    [
                        name,
                        f"{title}: {' '.join(value.split())}",
                        str(len(ratios)),
                        f"{statistics.median(ratios):.2f}",
                        f"{statistics.median(errors):.1%}",
                        f"{max(errors):.1%}",
                        f"{sum(errors) / total:.0%}",
                    ]
                )
    header = ["rows of", "class", "rows", "median ratio", "median error", "worst", "share of error"]
    return markdown(header, lines)


def left_out(rows: Sequence[Row]) -> str:
    """How many rows of each device cannot be expressed, and why."""
    counts = Counter((row.chip, why_not(row)) for row in rows)
    lines = [
        [chip, reason or "predicted", str(count)]
        for (chip, reason), count in sorted(counts.items(), key=lambda c: (c[0][0], c[0][1] or ""))
    ]
    return markdown(["chip", "rows", "number"], lines)


def efficiency_table(efficiencies: Mapping[Group, Efficiencies]) -> str:
    """What was set, by group."""
    lines = [
        [group, *(_number(name, getattr(given, name)) for name in _NAMES)]
        for group, given in sorted(efficiencies.items())
    ]
    return markdown(["", *(name.replace("_", " ") for name in _NAMES)], lines)


def _number(name: str, number: float) -> str:
    return f"{number * 1e6:.0f} us" if name not in _SHARES else f"{number:.2f}"


def write_efficiencies(efficiencies: Mapping[Group, Efficiencies], path: Path) -> None:
    """The file that `read_efficiencies` reads."""
    lines = [
        "# Made by `python -m scripts.compare_published --fit`: what a family's runs reach on a",
        "# device, by the half of their published rows that does not judge. `products`, `memory`,",
        "# `collectives`: shares of what the catalogue says; of attention: fractions of the peak;",
        "# `host_seconds`: what the host takes to launch a kernel.",
    ]
    for group, given in sorted(efficiencies.items()):
        lines += ["", f'["{group}"]']
        default = Efficiencies()
        lines += [
            f"{name} = {number:.4g}" if name in _SHARES else f"{name} = {number:.3e}"
            for name, number in asdict(given).items()
            if number != getattr(default, name)
        ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("--only", default="", help="rows whose source, model or chip has this text")
@click.option("--fit", "is_fit", is_flag=True, help="set the efficiencies anew, and write them")
@click.option("--parts", type=click.Path(path_type=Path, dir_okay=False), help="what was priced")
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(only: str, is_fit: bool, parts: Path | None, output: Path | None) -> None:  # noqa: FBT001
    """Print the tables, or put them in OUTPUT."""
    # Else JAX looks for an accelerator here.
    jax.config.update("jax_platforms", "cpu")
    every = read_rows()
    rows = [
        row
        for row in every
        if why_not(row) is None and only in f"{row.source} {row.model} {row.chip}"
    ]
    known = json.loads(parts.read_text()) if parts is not None and parts.exists() else {}
    store = PartsStore(known)
    runs = price_runs(rows, store)
    if parts is not None:
        parts.write_text(json.dumps(store.known))
    if is_fit:
        write_efficiencies(read_efficiencies() | dict(fit(runs)), EFFICIENCIES)
    efficiencies = read_efficiencies()
    # A group that nothing was set of has the catalogue's efficiencies.
    predicted = [run.predict(efficiencies.get(group_name(run.row), Efficiencies())) for run in runs]
    tables = {
        "errors": summary(predicted),
        "classes": where_errors_are(predicted),
        "efficiencies": efficiency_table(efficiencies),
        "rows": left_out(every),
    }
    for name, table in tables.items():
        text = made_by(COMMAND, f"{platform.machine()}; nothing is timed") + table
        if output is None:
            click.echo(text)
        else:
            replace_table(output, text, name)


if __name__ == "__main__":
    main()
