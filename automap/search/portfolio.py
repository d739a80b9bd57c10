"""`auto`: walk the whole space when it is small, else the least sums of seconds, climbs, and walks
from the best found.

Presets are priced before any strategy runs, and the context keeps the best at every moment, so that
however early it ends the result is no worse than the best preset.

    exhaustive    spaces of at most `_SMALL_SPACE` points
    optcnn        the best plan of meshes where seconds add up and memory does not bind, and a start on others
    climbs        from the best of these, presets and nothing on each other mesh: in 35 searches second starts found nothing better
    optcnn        a start on the best meshes if their tables are too large in part, and a climb from it
    mcmc          short walks from the best of the best meshes, if near each other and nothing is proven there: pairs of moves that only help together
    exact         where memory is what keeps plans from being faster, or where there are pins: there climbs and walks get stuck
    mcmc          there too, and where collectives run beside kernels, unless little is left to gain: longer walks from what is best by then

It is done as soon as the best plan is proven to be one.

A preset is kept unless what was found is surely faster -> `automap.search.sure_gains`.
"""

import random

from automap.search.candidate import Candidate
from automap.search.context import SearchContext
from automap.search.exact.strategy import exact
from automap.search.exhaustive import exhaustive, size
from automap.search.greedy import climb, climbed
from automap.search.mcmc import walked
from automap.search.optcnn import Summing, runs_beside
from automap.search.sure_gains import keep_preset
from automap.topology.mesh import Mesh


# Beyond it, climbing is much faster than trying every point.
_SMALL_SPACE = 5_000
# Meshes from whose best points walks start, or that are summed up in part: on no model of
# docs/reports/strategies.md did walks from more of them find better plans.
_BEST_MESHES = 2
# Plans that leave tables out may be several times slower than what climbs have reached: from there
# climbs did not come near that (GPT, BERT and T5-11B on meshes of three axes).
_FAR = 1.5
# Of nine models on five machines walks from what was 0.8 to 9 % behind gained nothing, those from
# the best 0 to 6 %.
_CLOSE = 0.01
# In 76 searches of 16 models on six machines longer walks gained up to 0.8 %, in six of them, and
# took a third of the time.
_WALK_SECONDS = 0.1
# As many as climbing found best; most of them are on few meshes.
_LOOKED_AT = 1_000
# Memory binds if some plan that does not fit is faster by this than the best that does.
_BOUND_BY_MEMORY = 0.03
_EXACT_SECONDS = 10.0
# In 17 searches short of memory whose proof was left open such walks gained 0 to 17 %, over 3 % in
# five, in 1 to 5 s; in 28 on GPUs 0 to 7 %, over 2 % in two, in 3 s; in 42 on TPUs at most 0.6 %.
_OPEN_SECONDS, _OPEN_GAP, _OPEN_WALKS = 5.0, 0.01, 3
_CUT = f"the exact search was ended after as much work as takes about {_EXACT_SECONDS:g} s; --strategy exact goes on"


def auto(context: SearchContext) -> None:
    """Exhaustive if at most `_SMALL_SPACE` points, else climbs, walks, and exact where memory
    binds.
    """
    try:
        if size(context, _SMALL_SPACE) <= _SMALL_SPACE:
            exhaustive(context)
        else:
            _portfolio(context)
    finally:
        keep_preset(context)


def _portfolio(context: SearchContext) -> None:
    summing = Summing(context)
    least = summing.on_complete_meshes()
    if context.is_proven:
        return
    climbed(context, least.unsolved, least.plans)
    for candidate in _best_on_meshes(context):
        if candidate.point.mesh in least.partial:
            _, plan = summing.on_mesh(candidate.point.mesh)
            if plan is not None and _is_near(context, plan, candidate):
                climb(context, plan)
    unsolved = [c for c in _best_on_meshes(context) if c.point.mesh in least.unsolved]
    close = [c for c in unsolved if _is_close(context, c)]
    with context.within(_WALK_SECONDS):
        walked(context, close, random.Random(context.seed))
    why_stuck = _why_stuck(context)
    if not context.is_proven and why_stuck is not None:
        with context.within(_EXACT_SECONDS, f"{why_stuck}, and {_CUT}"):
            exact(context)
    if _is_open(context) and (why_stuck is not None or runs_beside(context)):
        with context.within(_OPEN_SECONDS):
            starts = _best_on_meshes(context) * _OPEN_WALKS
            walked(context, starts, random.Random(context.seed))


def _best_on_meshes(context: SearchContext) -> list[Candidate]:
    """The best points of the best meshes."""
    of_mesh = dict[Mesh, Candidate]()
    for candidate in context.best_candidates(_LOOKED_AT):
        if candidate.point.mesh in context.distinct_meshes:
            of_mesh.setdefault(candidate.point.mesh, candidate)
    return list(of_mesh.values())[:_BEST_MESHES]


def _is_near(context: SearchContext, start: Candidate, best: Candidate) -> bool:
    """Whether a climb may lead from `start` to what beats the best of its mesh."""
    far = start.estimate.step_seconds > _FAR * best.estimate.step_seconds
    return not (far and context.objective.fits(best.estimate))


def _is_close(context: SearchContext, start: Candidate) -> bool:
    """Whether a walk from `start` may lead to what beats the best."""
    fits, best = context.objective.fits, context.best
    if best is None or not fits(best.estimate):
        return True
    limit = best.estimate.step_seconds * (1 + _CLOSE)
    return fits(start.estimate) and start.estimate.step_seconds <= limit


def _is_open(context: SearchContext) -> bool:
    """Whether a plan may be left that is better by more than `_OPEN_GAP`."""
    gap = None if context.best is None else context.gap(context.best)
    return gap is None or gap > _OPEN_GAP


def _why_stuck(context: SearchContext) -> str | None:
    """Why single moves may not lead from where climbs ended to what is better."""
    best = context.best
    if best is None:
        return None
    if context.pins:
        return "pins leave few moves"
    slower = best.estimate.step_seconds > context.fastest_seconds * (1 + _BOUND_BY_MEMORY)
    return "memory is short" if slower or not context.objective.fits(best.estimate) else None
