"""Progress: a bar on a terminal, now and then a line where stderr is none.

In a pipe a job that takes long says what it is doing after `_FIRST_LINE_SECONDS` and then each time
that twice as much has gone by, so that an hour is ten lines of a log; with --verbose every second
in which something new is done.                                             -> in: `_Lines`
"""

from contextlib import suppress
import threading
import time
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from automap.terminal import Verbosity, printable, say_error, verbosity


_FIRST_LINE_SECONDS: Final = 5.0
_VERBOSE_SECONDS: Final = 1.0


class Bar:
    """Context manager around a bar with `columns`, cleared whatever happens."""

    def __init__(self, first: str, *columns: ProgressColumn) -> None:
        """`first` is said until there is an update."""
        # Stdout is the result's.
        console = Console(stderr=True)
        level = verbosity()
        self.progress = Progress(
            SpinnerColumn(),
            # Names of parameters have brackets, which rich would take for markup.
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            *columns,
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal or level is Verbosity.QUIET,
        )
        self.task = self.progress.add_task(first, total=None)
        is_log = not console.is_terminal and level is not Verbosity.QUIET
        self._lines = _Lines(self, level) if is_log else None

    @property
    def description(self) -> str:
        """What is said to be done now."""
        return self.progress.tasks[self.task].description

    def describe(self, text: str) -> None:
        """Say that something else is done now."""
        self.progress.update(self.task, description=printable(text))

    def __enter__(self) -> Self:
        """Start drawing."""
        self.progress.start()
        if self._lines is not None:
            self._lines.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Clear the bar, whatever happened."""
        if self._lines is not None:
            self._lines.stop()
        self.progress.stop()


class _Lines(threading.Thread):
    """Says in a log what a bar would show; a thread, as compilers give no sign of life."""

    def __init__(self, bar: Bar, level: Verbosity) -> None:
        # A daemon: whatever ends the process does not wait for a line.
        super().__init__(name="automap-progress", daemon=True)
        self._bar, self._is_verbose = bar, level is Verbosity.VERBOSE
        self._is_over = threading.Event()

    def run(self) -> None:
        """Say a line now and then until `stop`."""
        began, wait, said = time.monotonic(), _FIRST_LINE_SECONDS, ""
        while not self._is_over.wait(_VERBOSE_SECONDS if self._is_verbose else wait):
            text, seconds = self._bar.description, time.monotonic() - began
            # The first line after 5 s, then after 10, 20, 40: each wait is what has gone by.
            wait = seconds
            if not self._is_verbose or text != said:
                # Nobody reads: the work goes on, and what ends it is the result's broken pipe.
                with suppress(OSError, ValueError):
                    say_error(f"automap: {text} ({seconds:.0f} s)")
            said = text

    def stop(self) -> None:
        """Say nothing any more, from when this returns."""
        self._is_over.set()
        self.join()


class ItemProgress(Bar):
    """A bar for a list of things to measure; `update` says which of how many is next."""

    def __init__(self) -> None:
        """Nothing is drawn before `__enter__`."""
        super().__init__("starting", MofNCompleteColumn())

    def update(self, number: int, total: int | None, item: object) -> None:
        """Show that item `number` of `total`, None if that is not known, is being measured."""
        self.describe(f"measuring {str(item)[:60]}")
        self.progress.update(self.task, total=total, completed=number)
