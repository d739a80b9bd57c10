"""Tables in the docs: each stands between two marks and is replaced by the script that makes it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
import json
import lzma
import os
from pathlib import Path
import platform
import statistics
from typing import Any, TypeVar

import click

from automap.atomic_file import write_atomically


T = TypeVar("T")


def replace_table(path: Path, table: str, name: str = "table") -> None:
    """Put a new table between the marks of that name in a file. Raises `ClickException` if it has
    none.
    """
    # Comments: invisible on the page, and kept by whoever edits around them.
    first, last = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, begin, rest = path.read_text().partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise click.ClickException(f"{path} has no {first} ... {last}")
    path.write_text(f"{before}{first}\n{table}{last}{after}")


def made_by(command: str, machine: str) -> str:
    """The line above a table that says where it comes from."""
    return f"Made by `{command}` on {date.today()}, {machine}.\n\n"


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A table in markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def spread(numbers: Iterable[float], text: Callable[[float], str]) -> str:
    """The median, and the least and greatest where they read differently."""
    values = list(numbers)
    low, median, high = (text(f(values)) for f in (min, statistics.median, max))
    return median if low == high else f"{median} ({low} to {high})"


def kept_rows(path: Path) -> list[dict[str, Any]]:
    """Rows that runs before have kept in a file, a line of JSON each; compressed in one of .xz."""
    if not path.is_file():
        return []
    text = lzma.decompress(path.read_bytes()).decode() if _is_packed(path) else path.read_text()
    return [json.loads(line) for line in text.splitlines()]


def keep_row(path: Path, row: Mapping[str, Any]) -> None:
    """Add a row to those."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = f"{json.dumps(row)}\n"
    if _is_packed(path):
        # Such files may be put behind each other.
        with path.open("ab") as file:
            file.write(lzma.compress(line.encode()))
        return
    with path.open("a") as file:
        file.write(line)


def _is_packed(path: Path) -> bool:
    return path.suffix == ".xz"


def kept(folder: Path, name: str, make: Callable[[], T]) -> T:
    """What was made before under that name, else what is made now."""
    path = folder / f"{name}.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(make()))
    return json.loads(path.read_text())


@dataclass(frozen=True)
class Table:
    """A table of the page: its columns, and its rows by the names that they are kept under."""

    header: list[str]
    rows: Callable[[Path, int, int], list[list[str]]]


def tables_command(tables: Mapping[str, Table], script: str, about: str | None) -> click.Command:
    """A command that puts the chosen tables in their places of a page; `about` is its help."""
    path = click.Path(path_type=Path)
    where = f"{platform.machine()} with {os.cpu_count()} processors"

    @click.command(help=about)
    @click.option(
        "--table", "chosen", multiple=True, required=True, type=click.Choice(list(tables))
    )
    @click.option("--seeds", default=2, show_default=True, type=click.IntRange(1))
    @click.option("--updates", default=120, show_default=True, type=click.IntRange(1))
    @click.option("--kept", "folder", type=path, required=True, help="where rows are kept")
    @click.option("-o", "output", type=path, required=True)
    def main(
        *, chosen: tuple[str, ...], seeds: int, updates: int, folder: Path, output: Path
    ) -> None:
        for name in chosen:
            command = f"{script} --table {name} --seeds {seeds} --updates {updates}"
            rows = tables[name].rows(folder, seeds, updates)
            above = made_by(f"{command} --kept ROWS -o {output}", where)
            replace_table(output, above + markdown(tables[name].header, rows), name)

    return main
