"""Progress of planning on a terminal: what is done, how far, the fastest plan so far (which is not
always the one returned: `automap.search.portfolio.keep_preset`), the time left.

The bar is the share of the time budget that is spent; a search may end before it.
"""

from contextlib import ExitStack
import math
from types import TracebackType
from typing import Final, Self

from automap.numba_jit import compilation_heard
from automap.progress_bar import Bar
from automap.quantities import bytes_text, number_text, seconds_text
from automap.search import SearchContext
from automap.search.progress import ChoiceProgress
from automap.terminal import printable


COMPILING: Final = "compiling solvers (once per machine)"


class SearchProgress(Bar):
    """A bar for tracing and search; `update` is the planner's `on_progress`, `update_stages` its
    `on_stages`.
    """

    def __init__(self, budget_seconds: float) -> None:
        """`budget_seconds` is the length of the whole bar."""
        super().__init__("tracing and lowering")
        self._budget_seconds = budget_seconds
        self._while_shown = ExitStack()

    def __enter__(self) -> Self:
        """Start drawing, and say when our own solvers are compiled."""
        # The first search of a machine compiles its solvers, which takes seconds in which nothing
        # is found.
        self._while_shown.enter_context(compilation_heard(self._say_compiling))
        return super().__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Clear the bar."""
        # First, or a compilation after the search would draw on a bar that is gone.
        self._while_shown.close()
        super().__exit__(kind, error, trace)

    def _say_compiling(self) -> None:
        self.describe(COMPILING)

    def update(self, context: SearchContext) -> None:
        """Show how far the search is and its fastest candidate, or the smallest if none fits."""
        text = f"{number_text(context.evaluations, 'plan')} priced"
        if context.best is not None:
            best = context.best.estimate
            is_fitting = context.objective.fits(best)
            which, but = ("fastest", "") if is_fitting else ("smallest", ", does not fit yet")
            peak = bytes_text(round(best.peak_bytes))
            text += f", {which} {seconds_text(best.step_seconds)} and {peak}{but}"
        # Seconds of processor time, as the budget is, and not of the clock.
        spent = self._budget_seconds - context.seconds_left
        self.progress.update(
            self.task, description=text, total=self._budget_seconds, completed=spent
        )

    def update_stages(self, tried: ChoiceProgress) -> None:
        """Show which stages are looked at, and the shortest step so far."""
        text = tried.what
        if math.isfinite(tried.best_seconds):
            text += f", fastest {seconds_text(tried.best_seconds)}"
        self.progress.update(
            self.task, description=printable(text), total=tried.of or None, completed=tried.done
        )
