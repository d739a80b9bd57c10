"""The corpus of third-party steps: what each is planned as, and what it computes under four plans
beside one device.

    make .venv-corpus/ready && .venv-corpus/bin/python -m scripts.corpus -o docs/reports/corpus.md

Each step has a process of its own (`tests/corpus/check.py` says what is done there), which may take
so many seconds; one that ends otherwise is a row that says so. The page has each row as soon as it
is made. With names, only the rows of steps that begin so are made, and the page keeps its others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
import math
import multiprocessing
from multiprocessing.connection import Connection
import os
from pathlib import Path
import platform
import time
import warnings

import click
import jax

from automap.api.plan import Plan
from scripts.tables import made_by, markdown, replace_table
from tests.corpus.check import DEVICES, MACHINES, RUNS, planned_for, reference
from tests.corpus.entries import ENTRIES
from tests.corpus.entry import Entry


COMMAND = "python -m scripts.corpus -o docs/reports/corpus.md"
_MOST_SECONDS = 1800
# More would make the table's rows unreadable.
_SHOWN_DECISIONS = 2


@dataclass
class Row:
    """What came of one step, filled as it goes: text by column, and what failed."""

    entry: Entry
    cells: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def gist(plan: Plan) -> str:
    """The preset that a plan costs the same as, else its mesh and first decisions."""
    predicted = plan.predicted
    for preset in plan.presets:
        if (preset.step_seconds, preset.peak_bytes) == (
            predicted.step_seconds,
            predicted.peak_bytes,
        ):
            return preset.name
    if not plan.decisions:
        return "all devices do the same"
    mesh = "x".join(str(size) for _, size in plan.mesh.axes)
    shown = [
        f"{'stores ' if d.kind == 'storage' else ''}{d.group} over {'+'.join(d.axes)}".replace(
            "|", ""
        )
        for d in plan.decisions[:_SHOWN_DECISIONS]
    ]
    rest = len(plan.decisions) - len(shown)
    return f"`{mesh}: {', '.join(shown)}`" + (f" and {rest} more" if rest else "")


def gain(plan: Plan) -> str:
    """Data parallelism's step over the plan's."""
    for preset in plan.presets:
        if preset.name == "data-parallel":
            return f"{preset.step_seconds / plan.predicted.step_seconds:.2f}"
    return "no batch"


def check(entry: Entry, results: Connection) -> None:
    """Plan and run one step in this process; the row is sent whenever it grows."""
    # Programs that run three times are compiled without LLVM's optimizations, as in the tests.
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    warnings.simplefilter("ignore")
    row = Row(entry)
    for machine in MACHINES:
        try:
            plan = planned_for(entry, machine)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what the table is for
            row.failures.append(f"{machine}: {_first_line(error)}")
        else:
            row.cells[f"{machine}, µs"] = f"{plan.predicted.step_seconds * 1e6:.0f}"
            row.cells[f"{machine}, plan"] = gist(plan)
            row.cells[f"{machine}, gain"] = gain(plan)
            row.notes += [w for w in plan.warnings if w not in row.notes]
        results.send(row)
    expected = None
    for name in ("one device", *RUNS):
        try:
            if name == "one device":
                expected = reference(entry)
            elif expected is not None:
                row.cells[name] = _compared(expected, RUNS[name](entry), row, name)
        except Exception as error:  # noqa: BLE001 - as above
            row.failures.append(f"{name}: {_first_line(error)}")
        results.send(row)


def _compared(expected, made, row: Row, name: str) -> str:
    if made is None:
        return "none"
    difference = expected.compare(made)
    if difference.excess > 1:
        row.failures.append(f"{name}: {difference.where} differs")
    return "0" if difference.excess == 0 else f"{difference.excess:.2g}"


def _first_line(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return text.replace("|", "/")


def run(entry: Entry) -> Row:
    """One step in a process of its own, which is ended after some time."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=check, args=(entry, sender))
    process.start()
    sender.close()
    row, deadline = Row(entry), time.monotonic() + _MOST_SECONDS
    try:
        while receiver.poll(max(0.0, deadline - time.monotonic())):
            row = receiver.recv()
        row.failures.append(f"not done after {_MOST_SECONDS} s")
    except EOFError:
        process.join()
        if process.exitcode:
            row.failures.append(f"the process ended with {process.exitcode}")
    # A step may leave threads or processes of its own behind.
    process.kill()
    process.join()
    return row


HEADER = [
    "step",
    "kind",
    *(f"{machine}, {what}" for machine in MACHINES for what in ("µs", "plan", "gain")),
    *RUNS,
    "notes",
]


def cells(row: Row) -> list[str]:
    """A row of the table; of warnings only their number, as plans say them in full."""
    counted = [f"{len(row.notes)} warnings"] if row.notes else []
    texts = [f"**{failure}**" for failure in row.failures] + counted
    # Bold text is how `report` counts failures in rows of an older run.
    named = {"step": row.entry.name, "kind": row.entry.kind, "notes": "; ".join(texts)}
    return [(row.cells | named).get(column, "") for column in HEADER]


def kept(path: Path | None) -> dict[str, list[str]]:
    """The rows that a page has, by step."""
    lines = [] if path is None else path.read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    names = {entry.name for entry in ENTRIES}
    return {row[0]: row for row in rows if len(row) == len(HEADER) and row[0] in names}


def report(rows: Sequence[Sequence[str]], command: str, versions: Mapping[str, str]) -> str:
    """Totals, the libraries' versions and the table."""
    library_by_step = {entry.name: entry.library for entry in ENTRIES}
    libraries = sorted({library_by_step[row[0]] for row in rows})
    failed = sum("**" in row[-1] for row in rows)
    runs = range(len(HEADER) - 1 - len(RUNS), len(HEADER) - 1)
    worst = max((_number(row[i]) for row in rows for i in runs), default=0.0)
    text = (
        f"{len(rows)} of the {len(ENTRIES)} steps were run, of {len(libraries)} libraries; "
        f"{len(rows) - failed} are planned for all machines and equal one device under all plans, "
        f"the largest difference of them all being {worst:.2g} of what is "
        f"allowed.\n\n{', '.join(f'{name} {versions[name]}' for name in libraries)}.\n\n"
    )
    machine = f"jax {jax.__version__}, {platform.machine()} with {os.cpu_count()} cores"
    return made_by(command, machine) + text + markdown(HEADER, [list(row) for row in rows])


def _number(text: str) -> float:
    return float(text) if text and text != "none" and math.isfinite(float(text)) else 0.0


@click.command(help=(__doc__ or "").splitlines()[0])
@click.argument("names", nargs=-1)
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(names: tuple[str, ...], output: Path | None) -> None:
    """Run all steps, or those whose names begin with one of NAMES; other rows are kept."""
    made = kept(output) if names else {}
    versions = {entry.library: version(entry.library) for entry in ENTRIES}
    for entry in ENTRIES:
        if names and not entry.name.startswith(names):
            continue
        start = time.monotonic()
        made[entry.name] = cells(run(entry))
        seconds = time.monotonic() - start
        click.echo(f"{seconds:.0f} s: {' | '.join(made[entry.name])}", err=True)
        rows = [made[e.name] for e in ENTRIES if e.name in made]
        table = report(rows, " ".join([COMMAND, *names]), versions)
        if output is not None:
            replace_table(output, table)
    if output is None:
        click.echo(table)


if __name__ == "__main__":
    main()
