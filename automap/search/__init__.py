"""Strategies: search algorithms over one space with one evaluator, by name.

A strategy is a function of a `SearchContext`; it proposes points through `context.evaluate` and may
stop whenever it likes. To add one, write it in its own file and enter it here and, with a line on
what it is, in `automap.choices`.

`automap.search.agent`          the pretrained agent: how it plays
`automap.search.context`        what every strategy works with: the space, the evaluator, the
                                constraints, and the best so far
`automap.search.greedy`         greedy search with restarts: improving moves
                                (`automap.search.moves`) until none is left
`automap.search.pinned`         points that keep the pins: where moves lead, and the nearest
                                one to where a search would start
`automap.search.presets`        presets in a search: its starts, and the least that it returns
`automap.search.progress`       how far a search is that tries one choice after the other
`automap.search.torch_needed`   whether the learning agents' library is there; asked before
                                `rl` is imported
"""

from collections.abc import Callable, Mapping

from automap.choices import check_known
from automap.search.agent.play import agent
from automap.search.beam import beam
from automap.search.context import Candidate, Objective, OutOfBudget, SearchContext
from automap.search.counts.strategy import adp, opp
from automap.search.exact.strategy import exact
from automap.search.exhaustive import exhaustive
from automap.search.greedy import greedy
from automap.search.mcmc import mcmc
from automap.search.optcnn import optcnn
from automap.search.portfolio import auto, search_on
from automap.search.rainbow.strategy import rainbow


Strategy = Callable[[SearchContext], None]

STRATEGIES: Mapping[str, Strategy] = {
    "auto": auto,
    "adp": adp,
    "agent": agent,
    "beam": beam,
    "exact": exact,
    "exhaustive": exhaustive,
    "greedy": greedy,
    "mcmc": mcmc,
    "opp": opp,
    "optcnn": optcnn,
    "rainbow": rainbow,
}


def get_strategy(name: str) -> Strategy:
    """The strategy called `name`; an `InputError` lists them."""
    check_known("strategy", name, STRATEGIES)
    return STRATEGIES[name]


__all__ = [
    "STRATEGIES",
    "Candidate",
    "Objective",
    "OutOfBudget",
    "SearchContext",
    "Strategy",
    "get_strategy",
    "search_on",
]
