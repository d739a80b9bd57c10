"""Progress bars on a terminal; silent where stderr is none."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

from automap.terminal import printable


class Bar:
    """Context manager around a bar with `columns`, cleared whatever happens."""

    def __init__(self, first: str, *columns: ProgressColumn) -> None:
        """`first` is said until there is an update."""
        # Stdout is the result's.
        console = Console(stderr=True)
        self.progress = Progress(
            SpinnerColumn(),
            # Names of parameters have brackets, which rich would take for markup.
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            *columns,
            TimeRemainingColumn(),
            console=console,
            transient=True,
            # In a pipe there is nobody to look, and lines of a log would be many.
            disable=not console.is_terminal,
        )
        self.task = self.progress.add_task(first, total=None)

    def __enter__(self) -> Self:
        """Start drawing."""
        self.progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Clear the bar, whatever happened."""
        self.progress.stop()


class ItemProgress(Bar):
    """A bar for a list of things to measure; `update` says which of how many is next."""

    def __init__(self) -> None:
        """Nothing is drawn before `__enter__`."""
        super().__init__("starting", MofNCompleteColumn())

    def update(self, number: int, total: int, item: object) -> None:
        """Show that item `number` of `total` is being measured."""
        text = printable(f"measuring {str(item)[:60]}")
        self.progress.update(self.task, description=text, total=total, completed=number)
