"""`auto`: walk the whole space when it is small, else climb."""

from automap.search.context import SearchContext
from automap.search.exhaustive import exhaustive, size
from automap.search.greedy import greedy


# Beyond it, climbing is much faster than trying every point.
_SMALL_SPACE = 5_000


def auto(context: SearchContext) -> None:
    """Exhaustive if at most `_SMALL_SPACE` points, else greedy with restarts."""
    if size(context, _SMALL_SPACE) <= _SMALL_SPACE:
        exhaustive(context)
    else:
        greedy(context)
