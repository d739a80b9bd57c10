"""Tables in the docs: each stands between two marks and is replaced by the script that makes it."""

from datetime import date
from pathlib import Path

import click


_BEGIN, _END = "<!-- table -->", "<!-- end of table -->"


def replace_table(path: Path, table: str) -> None:
    """Put a new table between the marks of a file. Raises `ClickException` if it has none."""
    before, begin, rest = path.read_text().partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise click.ClickException(f"{path} has no {_BEGIN} ... {_END}")
    path.write_text(f"{before}{_BEGIN}\n{table}{_END}{after}")


def made_by(command: str, machine: str) -> str:
    """The line above a table that says where it comes from."""
    return f"Made by `{command}` on {date.today()}, {machine}.\n\n"


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A table in markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
