"""Tables in the docs: each stands between two marks and is replaced by the script that makes it."""

from datetime import date
from pathlib import Path

import click


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
