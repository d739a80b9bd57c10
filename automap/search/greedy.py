"""Greedy search with restarts: improving moves (`automap.search.moves`) until none is left.

Climbs, each from a start to where no move helps                                  -> in: `greedy`
    1. every mesh, from its best preset or from the empty point
    2. the better half of the meshes, from their second best start
    3. the best few meshes, from random points
A round of a climb prices all moves, makes the best, and then others that helped as long as they
still do: most decisions do not touch each other, so a round makes several        -> in: `climb`
"""

from collections.abc import Iterable, Sequence
import random

from automap.search.context import Candidate, SearchContext
from automap.search.moves import Move, moves, toggle_class
from automap.search.presets import preset_points
from automap.space.point import Point, StorageLevel
from automap.topology.mesh import Mesh


_RESTARTS = 3
_RESTARTED_MESHES = 4
# Moves that are tried again after the best of a round is made.
_MORE_MOVES = 8


def greedy(context: SearchContext) -> None:
    """Climb from presets, from nothing, and from random points."""
    ranked = _ranked(context, context.meshes)
    reached = {mesh: climb(context, candidates[0]) for mesh, candidates in ranked.items()}
    # The start that prices best need not lead to the best end.
    for mesh in _best(context, reached, (len(reached) + 1) // 2):
        for start in ranked[mesh][1:2]:
            second = climb(context, start)
            if context.is_better(second, reached[mesh]):
                reached[mesh] = second
    # Its own generator, so that the plan depends on the seed and on nothing that other code draws.
    source = random.Random(context.seed)
    for mesh in _best(context, reached, _RESTARTED_MESHES):
        for _ in range(_RESTARTS):
            start = context.evaluate(
                context.pinned.nearest(random_point(context, mesh, source)), "greedy"
            )
            if start is not None:
                climb(context, start)


def climb_meshes(
    context: SearchContext, meshes: Sequence[Mesh], more: Iterable[Candidate] = ()
) -> None:
    """Climb on each of the meshes from the best of presets, nothing and `more` candidates."""
    for candidates in _ranked(context, meshes, more).values():
        climb(context, candidates[0])


def _ranked(
    context: SearchContext, meshes: Sequence[Mesh], more: Iterable[Candidate] = ()
) -> dict[Mesh, list[Candidate]]:
    """The starts on each of the meshes, the best first."""
    by_mesh: dict[Mesh, list[Candidate]] = {}
    for candidate in starts(context, more):
        if candidate.point.mesh in meshes:
            by_mesh.setdefault(candidate.point.mesh, []).append(candidate)
    return by_mesh


def _best(context: SearchContext, reached: dict[Mesh, Candidate], count: int) -> list[Mesh]:
    """The meshes on which the best points were reached, the best first."""
    return sorted(reached, key=lambda mesh: context.objective.key(reached[mesh].estimate))[:count]


def starts(context: SearchContext, more: Iterable[Candidate] = ()) -> list[Candidate]:
    """Presets, the empty points of all meshes and `more` candidates, best first."""
    # A move may break a pin, which is put back before the point is priced.
    points = [context.pinned.nearest(point) for _, point in preset_points(context)]
    points += [context.empty(mesh) for mesh in context.meshes]
    candidates = [c for c in context.evaluate_all(points, "greedy") if c is not None]
    return sorted(
        (*more, *candidates), key=lambda candidate: context.objective.key(candidate.estimate)
    )


def climb(context: SearchContext, start: Candidate, most_rounds: int | None = None) -> Candidate:
    """Rounds of improving moves until none helps, or `most_rounds`."""

    def after(candidate: Candidate, tried: Iterable[Move]) -> list[tuple[Candidate, Move]]:
        """The moves that make it better."""
        each = list(tried)
        points = [
            context.pinned.impose(move.apply(context.space, candidate.point)) for move in each
        ]
        changed = zip(context.evaluate_all(points, "greedy"), each, strict=True)
        return [(c, move) for c, move in changed if c and context.is_better(c, candidate)]

    current, rounds = start, 0
    while rounds != most_rounds:
        rounds += 1
        better = after(current, moves(context.space, current.point))
        if not better:
            break
        better.sort(key=lambda pair: context.objective.key(pair[0].estimate))
        current = better[0][0]
        # Each is priced again from where the climb is now: two moves that help alone may not help
        # together.
        for _, move in better[1 : 1 + _MORE_MOVES]:
            for changed, _ in after(current, [move]):
                current = changed
    return current


def random_point(context: SearchContext, mesh: Mesh, source: random.Random) -> Point:
    """Any compute classes that divide, joined by those they meet or not, one storage level for each
    axis.
    """
    compute, limits = [], context.space.problem.limits
    parts = dict.fromkeys(context.space.candidates, 1)
    for size in mesh.sizes:
        chosen: set[int] = set()
        for group_class in context.space.candidates:
            divides = limits[group_class] % (parts[group_class] * size) == 0
            if divides and source.random() < 0.5:
                joined = {*chosen, group_class}
                alone = toggle_class(context.space, chosen, group_class)
                # Beside a feature that it meets a class gets the axis only in some tensors, or the
                # other one leaves the axis.
                chosen = source.choice((alone, joined))
        for group_class in chosen:
            parts[group_class] *= size
        compute.append(chosen)
    levels = [source.choice(list(StorageLevel)) for _ in mesh.sizes]
    return context.space.point(mesh, compute, levels)
