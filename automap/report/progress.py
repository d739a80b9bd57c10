"""Progress of planning on a terminal: what is done, how far, the best plan so far, the time left.

Silent where stderr is no terminal. The bar is the share of the time budget that is spent; a search may end
before it.
"""

from contextlib import ExitStack
import math
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

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

from automap.report.terminal import printable
from automap.search import SearchContext
from automap.simulate.jit import compilation_heard


if TYPE_CHECKING:
    from automap.pipeline.search import Tried


COMPILING: Final = "compiling solvers (once per machine)"


class _Bar:
    """Context manager around a bar with `columns`, cleared whatever happens."""

    def __init__(self, first: str, *columns: ProgressColumn) -> None:
        """`first` is said until there is an update."""
        console = Console(stderr=True)
        self._progress = Progress(
            SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), *columns,
            TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._progress.add_task(first, total=None)

    def __enter__(self) -> Self:
        """Start drawing."""
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Clear the bar, whatever happened."""
        self._progress.stop()


class SearchProgress(_Bar):
    """A bar for tracing and search; `update` is the planner's `on_progress`, `update_stages` its `on_stages`."""

    def __init__(self, budget_seconds: float) -> None:
        """`budget_seconds` is the length of the whole bar."""
        super().__init__("tracing and lowering")
        self._budget_seconds = budget_seconds
        self._while_shown = ExitStack()

    def __enter__(self) -> Self:
        """Start drawing, and say when our own solvers are compiled."""
        self._while_shown.enter_context(compilation_heard(self._say_compiling))
        return super().__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Clear the bar."""
        self._while_shown.close()
        super().__exit__(kind, error, trace)

    def _say_compiling(self) -> None:
        self._progress.update(self._task, description=COMPILING)

    def update(self, context: SearchContext) -> None:
        """Show how far the search is and its best candidate."""
        text = f"{context.evaluations} plans priced"
        if context.best is not None:
            best = context.best.estimate
            fits = "" if context.objective.fits(best) else ", does not fit yet"
            text += f", best {best.step_seconds * 1e3:.3f} ms and {best.peak_bytes / 2**30:.2f} GiB{fits}"
        spent = self._budget_seconds - context.seconds_left
        self._progress.update(
            self._task, description=text, total=self._budget_seconds, completed=spent
        )

    def update_stages(self, tried: "Tried") -> None:
        """Show which stages are looked at, and the best step so far."""
        text = tried.what
        if math.isfinite(tried.best_seconds):
            text += f", best {tried.best_seconds * 1e3:.3f} ms"
        self._progress.update(
            self._task, description=printable(text), total=tried.of or None, completed=tried.done
        )


class ItemProgress(_Bar):
    """A bar for a list of things to measure; `update` says which of how many is next."""

    def __init__(self) -> None:
        """Nothing is drawn before `__enter__`."""
        super().__init__("starting", MofNCompleteColumn())

    def update(self, number: int, total: int, item: object) -> None:
        """Show that item `number` of `total` is being measured."""
        text = printable(f"measuring {str(item)[:60]}")
        self._progress.update(self._task, description=text, total=total, completed=number)
