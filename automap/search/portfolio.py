"""`auto`: walk the whole space when it is small, else climb, then walk on from the best that was found.

Presets are priced before any strategy runs, and the context keeps the best at every moment, so that however early
it ends the result is no worse than the best preset.

    exhaustive    spaces of at most `_SMALL_SPACE` points
    greedy        most of what there is to gain, in a fraction of a second to a few seconds
    mcmc          short walks from the best of the best meshes: pairs of moves that only help together
"""

import random

from automap.search.context import Candidate, SearchContext
from automap.search.exhaustive import exhaustive, size
from automap.search.greedy import greedy
from automap.search.mcmc import walked
from automap.space.point import Mesh


# Beyond it, climbing is much faster than trying every point.
_SMALL_SPACE = 5_000
# Meshes from whose best points walks start: on no model of docs/strategies.md did more of them find better plans.
_WALKS = 2
# As many as climbing found best; most of them are on few meshes.
_LOOKED_AT = 1_000


def auto(context: SearchContext) -> None:
    """Exhaustive if at most `_SMALL_SPACE` points, else greedy with restarts and then walks."""
    if size(context, _SMALL_SPACE) <= _SMALL_SPACE:
        exhaustive(context)
        return
    greedy(context)
    of_mesh: dict[Mesh, Candidate] = {}
    for candidate in context.best_candidates(_LOOKED_AT):
        of_mesh.setdefault(candidate.point.mesh, candidate)
    walked(context, list(of_mesh.values())[:_WALKS], random.Random(context.seed))
