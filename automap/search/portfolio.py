"""`auto`: walk the whole space when it is small, else the least sums of seconds, climbs, and walks
from the best plans.

Presets are priced before any strategy runs, and the context keeps the best at every moment, so that
however early it ends the result is no worse than the best preset.

1. `exhaustive`: spaces of at most `small_space` points.
2. `optcnn`: the best plan of meshes where seconds add up and memory does not bind, and a start on
   the others.
3. `climb_meshes`: from the best of these, presets and the empty point, on each mesh that is left
   open. In 35 searches second starts gave nothing better.
4. `optcnn` again: on the best meshes whose tables are too large in part, a start and a climb.
5. `mcmc`: short walks from the best points of the best meshes, where nothing is proven there: pairs
   of moves that only help together.
6. `exact`: where memory is what keeps plans from being faster, or where there are pins: there
   climbs and walks get stuck.
7. `mcmc` again: there, and where collectives run beside kernels, unless little is left to gain.

It is done as soon as the best plan is proven to be one. How far each part goes is in
`automap/policy.toml`. A brief search ends before 6: of the choices of levers only the best are
searched on                                                                   -> in: `search_on`

What is returned is the best preset, unless another plan is surely faster -> in: `keep_preset`

    step(preset) > (1 + g) step(plan)        as predicted, with g = `preset_margin`
    step'(preset) > (1 + g') step'(plan)     if nothing stays in the memory on the chip, with
                                             g' = `preset_margin_off_chip`

Predicted steps of near plans are not surer than g (docs/reports/schedules.md), and a plan that
people know is worth having. What stays on the chip is XLA's choice and the least sure part of a
prediction: a gain that is there only if XLA chooses as predicted is none.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
import random
from typing import Final, TypeAlias

from automap.policy import Policy
from automap.quantities import seconds_text
from automap.search.context import Candidate, SearchContext
from automap.search.exact.strategy import exact
from automap.search.exhaustive import exhaustive, size
from automap.search.greedy import climb, climb_meshes
from automap.search.mcmc import walk_from
from automap.search.optcnn import Summing, runs_beside
from automap.topology.mesh import Mesh


Starts: TypeAlias = Callable[[SearchContext, Sequence[Mesh]], Sequence[Candidate]]
"""Plans on some meshes at which climbs begin besides."""
# A share of the step.
_SHOWN_GAIN: Final = 0.01


def auto(context: SearchContext) -> None:
    """Exhaustive if at most `small_space` points, else climbs, walks, and exact where memory
    binds.
    """
    begun_with(context, None)


def begun_with(context: SearchContext, starts: Starts | None) -> None:
    """`auto`, whose climbs begin at the `starts` too, such as an agent's roll-outs; None is what
    users get, as it is no worse (docs/reports/sharding_agent.md).
    """
    try:
        if _is_small(context):
            exhaustive(context)
        else:
            _portfolio(context, starts)
    # Also when the budget ends the search: a preset is kept whatever found the plan that is not
    # surely faster.
    finally:
        keep_preset(context)


def search_on(context: SearchContext) -> None:
    """What `auto` left out because the search was brief."""
    if _is_small(context):
        return
    # Whatever was fastest, a preset that was kept in its place apart.
    context.best = next(iter(context.best_candidates(1)), context.best)
    try:
        _dear_parts(context)
    finally:
        keep_preset(context)


def _is_small(context: SearchContext) -> bool:
    small = context.policy.small_space
    return size(context, small) <= small


def _portfolio(context: SearchContext, starts: Starts | None) -> None:
    summing = Summing(context)
    least = summing.on_complete_meshes()
    # Where seconds add up and every table is small the least sum is the best plan, if it fits.
    if context.is_proven:
        return
    more = () if starts is None else starts(context, least.unsolved)
    climb_meshes(context, least.unsolved, (*least.plans, *more))
    for candidate in _best_by_mesh(context):
        # Of its tables some are too large, so its sum is that of the rest: a start for a climb, no
        # bound.
        if candidate.point.mesh in least.partial:
            _, plan = summing.on_mesh(candidate.point.mesh)
            if plan is not None and _is_near(context, plan, candidate):
                climb(context, plan)
    unsolved = [c for c in _best_by_mesh(context) if c.point.mesh in least.unsolved]
    close = [c for c in unsolved if _is_close(context, c)]
    # Without a note: nobody misses what walks do not find.
    with context.within(context.policy.walk_seconds):
        walk_from(context, close, random.Random(context.seed))
    if not context.is_brief:
        _dear_parts(context)


def _dear_parts(context: SearchContext) -> None:
    why_stuck = _why_stuck(context)
    # It is the dearest part, so only where climbs and walks are known to get stuck.
    if not context.is_proven and why_stuck is not None:
        most_seconds = context.policy.exact_seconds
        note = (
            f"{why_stuck}, and the exact search was ended after as much work as takes about "
            f"{most_seconds:g} s; --strategy exact goes on"
        )
        with context.within(most_seconds, note):
            exact(context)
    if _is_open(context) and (why_stuck is not None or runs_beside(context)):
        with context.within(context.policy.open_walk_seconds):
            # Several walks from each start, which differ by what they draw.
            best = _best_by_mesh(context) * context.policy.open_walks
            walk_from(context, best, random.Random(context.seed))


def _best_by_mesh(context: SearchContext) -> list[Candidate]:
    """The best points of the best meshes."""
    by_mesh = dict[Mesh, Candidate]()
    for candidate in context.best_candidates(context.policy.ranked_plans):
        if candidate.point.mesh in context.distinct_meshes:
            by_mesh.setdefault(candidate.point.mesh, candidate)
    return list(by_mesh.values())[: context.policy.best_meshes]


def _is_near(context: SearchContext, start: Candidate, best: Candidate) -> bool:
    """Whether a climb may lead from `start` to what beats the best of its mesh."""
    far = start.estimate.step_seconds > context.policy.far_start * best.estimate.step_seconds
    return not (far and context.objective.fits(best.estimate))


def _is_close(context: SearchContext, start: Candidate) -> bool:
    """Whether a walk from `start` may lead to what beats the best."""
    fits, best = context.objective.fits, context.best
    if best is None or not fits(best.estimate):
        return True
    limit = best.estimate.step_seconds * (1 + context.policy.close_start)
    return fits(start.estimate) and start.estimate.step_seconds <= limit


def _is_open(context: SearchContext) -> bool:
    """Whether a plan may be left that is better by more than `open_gap`."""
    gap = None if context.best is None else context.gap(context.best)
    return gap is None or gap > context.policy.open_gap


def _why_stuck(context: SearchContext) -> str | None:
    """Why single moves may not lead from where climbs ended to what is better."""
    best = context.best
    if best is None:
        return None
    if context.pins:
        return "pins leave few moves"
    # Something that does not fit is faster by that much, so memory is what decides.
    surely_slower_than = context.refused_seconds * (1 + context.policy.bound_by_memory)
    slower = best.estimate.step_seconds > surely_slower_than
    return "memory is short" if slower or not context.objective.fits(best.estimate) else None


def keep_preset(context: SearchContext) -> None:
    """Go back to the best preset that is allowed if no plan is surely faster."""
    policy, preset, context.kept_preset = context.policy, _best_preset(context), ()
    if preset is None or context.best is None:
        return
    step_seconds = preset.estimate.step_seconds
    preset_off_chip = _off_chip_seconds(context, preset)

    def is_surely_faster(plan: Candidate) -> bool:
        if not context.objective.fits(plan.estimate):
            return False
        if step_seconds <= plan.estimate.step_seconds * (1 + policy.preset_margin):
            return False
        return preset_off_chip > _off_chip_seconds(context, plan) * (
            1 + policy.preset_margin_off_chip
        )

    if not is_surely_faster(context.best):
        # The best plan may be faster only with the memory on the chip; one behind it may be faster
        # without.
        others = context.best_candidates(policy.preset_rivals)
        fastest, context.best = context.best, next(filter(is_surely_faster, others), preset)
        if context.best is preset:
            context.kept_preset = tuple(_kept_text(preset, fastest, policy))


def _kept_text(preset: Candidate, fastest: Candidate, policy: Policy) -> Iterator[str]:
    """Why a preset is returned though a faster plan was priced; nothing where none was."""
    slower = preset.estimate.step_seconds / fastest.estimate.step_seconds - 1
    # A smaller one would be asked about by nobody.
    if slower < _SHOWN_GAIN:
        return
    less = 1 - 1 / (1 + slower)
    if slower <= policy.preset_margin:
        why = f"predictions do not tell steps apart that are within {policy.preset_margin:.0%}"
    else:
        why = "that holds only if the compiler keeps what is expected in the memory on the chip"
    yield (
        f"{preset.origin.removeprefix('preset ')} kept: the fastest plan that was priced takes "
        f"{seconds_text(fastest.estimate.step_seconds)} in place of "
        f"{seconds_text(preset.estimate.step_seconds)}, {less:.1%} less by the prediction; {why}"
    )


def _best_preset(context: SearchContext) -> Candidate | None:
    priced = [context.consider(p.point, p.origin) for p in context.best_per_preset.values()]
    fitting = [c for c in priced if c is not None and context.objective.fits(c.estimate)]
    return min(fitting, key=lambda c: context.objective.key(c.estimate), default=None)


def _off_chip_seconds(context: SearchContext, plan: Candidate) -> float:
    """A plan's step if every access goes to the memory of the device."""
    evaluator = context.evaluator
    device = replace(evaluator.topology.device, on_chip_bytes=0)
    topology = replace(evaluator.topology, device=device)
    split_classes = context.space.split_classes(plan.point)
    return replace(evaluator, topology=topology).evaluate(split_classes).step_seconds
