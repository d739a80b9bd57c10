"""`beam`: decide one thing after another, keep the best partial points.

    order     classes by the work that runs over them, each axis in turn; then its sides and its
              small part; then leaves, the largest first              -> in: `_choices`
    options   of one choice, for each point kept so far: leave it as it is, or make one of the
              choice's moves
    kept      the best `width` of them, equal plans once              -> in: `beam_from`

What is undecided is as the start has it. From the empty point a beam without limit prices every
point of the mesh: what is split so far is a part of what will be, which divides wherever that does.
"""

from collections.abc import Iterable, Iterator, Sequence

from automap.search.context import Candidate, SearchContext
from automap.search.greedy import starts
from automap.search.moves import (
    ClassJoin,
    ClassToggle,
    DimChange,
    LeafStorageChange,
    Move,
    SmallPartsChange,
)
from automap.space.point import Point, SplitClasses, StorageLevel
from automap.space.space import Space
from automap.topology.mesh import Mesh


# Points kept after each choice.
WIDTH = 8


def beam(context: SearchContext) -> None:
    """On every mesh from its best start and from the empty point, the best meshes first."""
    # Starts come best first, so the first of each mesh is its best.
    done = set[Mesh]()
    for start in starts(context):
        mesh = start.point.mesh
        if mesh not in done:
            done.add(mesh)
            beam_from(context, start, WIDTH)
    for mesh in sorted(done, key=context.meshes.index):
        # From what is decided already the beam cannot take a class off that a good plan does
        # without.
        empty = context.evaluate(context.empty(mesh), "beam")
        if empty is not None:
            beam_from(context, empty, WIDTH)


def beam_from(context: SearchContext, start: Candidate, width: int | None) -> list[Candidate]:
    """The best `width` points (None: all) after all choices on the start's mesh, the best first."""
    space, kept = context.space, [start]
    for options in _choices(space, start.point.mesh):
        # By what they split: different points may be one plan, and would fill the beam with copies
        # of it.
        candidates: dict[SplitClasses, Candidate] = {}
        for candidate in kept:
            point = candidate.point
            points = (move.apply(space, point) for move in options if _matters(move, point))
            priced = context.evaluate_all(map(context.pinned.impose, points), "beam")
            # The point as it is competes with its moves: leaving a thing undecided is an option
            # too.
            for other in (candidate, *priced):
                if other is not None:
                    candidates.setdefault(space.split_classes(other.point), other)
        ranked = sorted(candidates.values(), key=lambda c: context.objective.key(c.estimate))
        kept = ranked[:width]
    return kept


def _choices(space: Space, mesh: Mesh) -> Iterator[Sequence[Move]]:
    """Moves among which at most one is made, in the order of deciding."""
    axes = range(len(mesh.sizes))
    for group_class in classes_by_work(space, space.candidates):
        # Joining differs from toggling only where the class meets another one.
        kinds = (ClassToggle, ClassJoin) if group_class in space.meeting else (ClassToggle,)
        yield from ([kind(axis, group_class) for kind in kinds] for axis in axes)
        if group_class in space.repeated_classes:
            yield [DimChange(group_class)]
        if group_class in space.small_part_classes:
            yield [SmallPartsChange(group_class)]
    for leaf in range(len(space.leaves)):
        yield from (
            [LeafStorageChange(axis, leaf, level) for level in StorageLevel] for axis in axes
        )


def _matters(move: Move, point: Point) -> bool:
    """Whether a move changes the plan: sides and small parts are only of classes on some axis."""
    if isinstance(move, DimChange | SmallPartsChange):
        return any(move.group_class in classes for classes in point.compute)
    return True


def classes_by_work(space: Space, classes: Iterable[int]) -> list[int]:
    """Classes by the work that runs over them, most first."""
    done = space.problem.work.by_class
    return sorted(classes, key=lambda c: (-done.get(c, 0.0), c))
