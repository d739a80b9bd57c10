"""Where tables are printed: as wide as the terminal, as COLUMNS says, or 80 columns in a pipe."""

import os
from typing import Final

from rich.console import Console
from rich.table import Table


_PIPE_COLUMNS: Final = 80
_LEAST_COLUMNS: Final = 60
"""In fewer nobody could read a table, so its lines are longer than the terminal's."""


def table_console() -> Console:
    """A console for tables on stdout."""
    console = Console(highlight=False)
    # In a pipe rich would ask the terminal that stdin or stderr is.
    is_known = console.is_terminal or os.environ.get("COLUMNS", "").isdecimal()
    # Some programs set COLUMNS=0 where they do not know.
    columns = (console.width if is_known else 0) or _PIPE_COLUMNS
    return Console(width=max(columns, _LEAST_COLUMNS), highlight=False)


def print_table(table: Table) -> None:
    """Print a table on stdout, of which no cell is cut."""
    for column in table.columns:
        # An address may be longer than a line.
        column.overflow = "fold"
    table_console().print(table)
