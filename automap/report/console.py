"""Where tables are printed: as wide as the terminal, as COLUMNS says, or as suits a pipe."""

import os

from rich.console import Console


def table_console(*, pipe_columns: int) -> Console:
    """A console for tables on stdout; in a pipe `pipe_columns` wide unless COLUMNS is set."""
    console = Console(highlight=False)
    # rich takes 80 columns in a pipe, and would cut what a script wants to read.
    if console.is_terminal or os.environ.get("COLUMNS", "").isdecimal():
        return console
    return Console(width=pipe_columns, highlight=False)
