"""Where tables are printed: as wide as the terminal, as COLUMNS says, or 80 columns in a pipe."""

import os
from typing import Final

from rich.console import Console


_PIPE_COLUMNS: Final = 80


def table_console() -> Console:
    """A console for tables on stdout."""
    console = Console(highlight=False)
    # In a pipe rich would ask the terminal that stdin or stderr is.
    if console.is_terminal or os.environ.get("COLUMNS", "").isdecimal():
        return console
    return Console(width=_PIPE_COLUMNS, highlight=False)
