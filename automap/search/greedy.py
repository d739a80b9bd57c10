"""Greedy search with restarts: the best move until none helps, from presets and from random points.

Moves from a point on one mesh                                                   -> in: `moves`
    toggle a class on an axis (classes it excludes leave the axis; no sequence beside the batch)
    exchange: move a class from one axis to another
    set the storage level of all leaves along an axis, or of one leaf class
    let a class split the other of the dimensions that it holds of one tensor
    swap the whole decisions of two axes
Climbs, each from a start to where no move helps                                  -> in: `greedy`
    1. every mesh, from its best preset or from the empty point
    2. the better half of the meshes, from their second best start
    3. the best few meshes, from random points
"""

from collections.abc import Iterator
from dataclasses import replace
import random

from automap.search.context import Candidate, SearchContext, preset_points
from automap.space.point import Level, Mesh, Point
from automap.space.space import Space


_RESTARTS = 3
_RESTARTED_MESHES = 4
# Beyond this many leaf classes, single leaves are tried only for the largest.
_SINGLE_LEAVES = 12


def greedy(context: SearchContext) -> None:
    """Climb from presets, from nothing, and from random points."""

    def key(candidate: Candidate) -> tuple[float, ...]:
        return context.objective.key(candidate.estimate)

    of_mesh: dict[Mesh, list[Candidate]] = {}
    for candidate in starts(context):
        of_mesh.setdefault(candidate.point.mesh, []).append(candidate)
    reached = {mesh: climb(context, ranked[0]) for mesh, ranked in of_mesh.items()}

    def best_meshes(count: int) -> list[Mesh]:
        return sorted(reached, key=lambda mesh: key(reached[mesh]))[:count]

    for mesh in best_meshes((len(reached) + 1) // 2):
        for start in of_mesh[mesh][1:2]:
            reached[mesh] = min(reached[mesh], climb(context, start), key=key)
    source = random.Random(context.seed)
    for mesh in best_meshes(_RESTARTED_MESHES):
        for _ in range(_RESTARTS):
            start = context.evaluate(context.pinned(random_point(context, mesh, source)), "greedy")
            if start is not None:
                climb(context, start)


def starts(context: SearchContext) -> list[Candidate]:
    """Presets and the empty points of all meshes, best first."""
    points = [context.pinned(point) for _, point in preset_points(context)]
    points += [context.empty(mesh) for mesh in context.meshes]
    found = [c for c in (context.evaluate(p, "greedy") for p in points) if c is not None]
    return sorted(found, key=lambda candidate: context.objective.key(candidate.estimate))


def climb(context: SearchContext, start: Candidate, most_moves: int | None = None) -> Candidate:
    """The best move, again and again, until none helps or `most_moves` are made."""
    current, made = start, 0
    while True:
        better = current
        for point in moves(context, current.point):
            candidate = context.evaluate(context.pinned(point), "greedy")
            if candidate is not None and context.is_better(candidate, better):
                better = candidate
        made += 1
        if better is current or made == most_moves:
            return better
        current = better


def moves(context: SearchContext, point: Point) -> Iterator[Point]:
    """Neighbours of a point."""
    space, axes = context.space, range(len(point.mesh.sizes))
    for axis in axes:
        for group_class in space.candidates:
            if _is_idle(space, point.compute[axis], group_class):
                continue
            yield _with(point, axis, _toggled(context, point.compute[axis], group_class), context)
            if group_class in point.compute[axis]:
                for other in (a for a in axes if a != axis):
                    moved = _with(point, axis, set(point.compute[axis]) - {group_class}, context)
                    target = _toggled(
                        context, set(moved.compute[other]) - {group_class}, group_class
                    )
                    yield _with(moved, other, target, context)
    for axis in axes:
        for level in Level:
            yield _stored(point, axis, (level,) * len(space.leaves))
            for leaf in range(min(len(space.leaves), _SINGLE_LEAVES)):
                levels = list(point.storage[axis])
                if levels[leaf] is not level:
                    levels[leaf] = level
                    yield _stored(point, axis, tuple(levels))
    for group_class in space.sided:
        if any(group_class in classes for classes in point.compute):
            yield replace(point, last=point.last ^ {group_class})
    for first in axes:
        for second in range(first + 1, len(point.mesh.sizes)):
            yield _swapped(point, first, second)


def _is_idle(space: Space, classes: tuple[int, ...], group_class: int) -> bool:
    """Whether a sequence would only take the axis from the batch, which costs less where it divides."""
    batch = space.problem.batch_class
    is_sequence = group_class in space.activations and group_class != batch
    return is_sequence and batch in classes and group_class not in classes


def _toggled(
    context: SearchContext, classes: tuple[int, ...] | set[int], group_class: int
) -> set[int]:
    if group_class in classes:
        return set(classes) - {group_class}
    return {c for c in classes if not context.space.excludes(c, group_class)} | {group_class}


def _with(point: Point, axis: int, classes: set[int], context: SearchContext) -> Point:
    compute = list(point.compute)
    compute[axis] = context.space.ordered(classes)
    used = frozenset(c for on_axis in compute for c in on_axis)
    return replace(point, compute=tuple(compute), last=point.last & used)


def _stored(point: Point, axis: int, levels: tuple[Level, ...]) -> Point:
    storage = list(point.storage)
    storage[axis] = levels
    return replace(point, storage=tuple(storage))


def _swapped(point: Point, first: int, second: int) -> Point:
    compute, storage = list(point.compute), list(point.storage)
    compute[first], compute[second] = compute[second], compute[first]
    storage[first], storage[second] = storage[second], storage[first]
    return replace(point, compute=tuple(compute), storage=tuple(storage))


def random_point(context: SearchContext, mesh: Mesh, source: random.Random) -> Point:
    """Any compute classes that do not exclude each other, one storage level for each axis."""
    compute = []
    for _ in mesh.sizes:
        chosen: set[int] = set()
        for group_class in context.space.candidates:
            if source.random() < 0.5:
                chosen = _toggled(context, chosen, group_class)
        compute.append(chosen)
    levels = [source.choice(list(Level)) for _ in mesh.sizes]
    return context.space.point(mesh, compute, levels)
