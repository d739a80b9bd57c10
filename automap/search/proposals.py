"""Random changes of a point: what a walk proposes.

    move      one of `automap.search.moves`, its kind drawn by `_WEIGHTS`, its place uniformly  -> in: `random_move`
    change    one move, or with chance `_AGAIN` another after it, and so on                  -> in: `changed`
    carry     the decisions on another mesh: each of its axes takes those of one of the old axes, all old axes
              that fit being taken once before any is repeated; what does not divide there is dropped
                                                                                          -> in: `carried`

Moves on one mesh are drawn as often forth as back, with three exceptions: a class put on an axis
may drive away those it meets, levels of all leaves at once forget the single ones, and pins are
imposed again. Walks look for a minimum and need no more.
"""

from dataclasses import replace
import random

from automap.search.moves import Exchange, Join, Move, Part, StoreAll, StoreOne, Swap, Toggle, Turn
from automap.space.point import Level, Point
from automap.space.space import Space
from automap.topology.mesh import Mesh


_WEIGHTS: dict[type[Move], int] = {
    Toggle: 6,
    Join: 2,
    Exchange: 3,
    StoreAll: 2,
    StoreOne: 3,
    Turn: 1,
    Part: 1,
    Swap: 1,
}
_AGAIN = 0.3


def decisions(space: Space, mesh: Mesh) -> int:
    """Number of places on a mesh where a move can be made: it measures the space."""
    on_axis = len(space.candidates) + len(space.leaves)
    return on_axis * len(mesh.sizes) + len(space.repeated_classes) + len(space.small_part_classes)


def changed(space: Space, point: Point, source: random.Random) -> Point:
    """The point after one or more random moves."""
    while True:
        move = random_move(space, point, source)
        if move is None:
            return point
        point = move.apply(space, point)
        if source.random() >= _AGAIN:
            return point


def random_move(space: Space, point: Point, source: random.Random) -> Move | None:
    """A move of a point, None if there is nothing to decide."""
    mesh, used = point.mesh, {c for classes in point.compute for c in classes}
    sided = [c for c in space.repeated_classes if c in used]
    parted = [c for c in space.small_part_classes if c in used]
    able: dict[type[Move], bool] = {
        Toggle: bool(space.candidates),
        Join: bool(space.meeting),
        Exchange: bool(space.candidates) and len(mesh.sizes) > 1,
        StoreAll: bool(space.leaves),
        StoreOne: bool(space.leaves),
        Turn: bool(sided),
        Part: bool(parted),
        Swap: len(mesh.sizes) > 1,
    }
    kinds = [kind for kind in _WEIGHTS if able[kind]]
    if not kinds:
        return None
    (kind,) = source.choices(kinds, [_WEIGHTS[kind] for kind in kinds])
    axes = source.sample(range(len(mesh.sizes)), min(2, len(mesh.sizes)))
    if kind is Toggle:
        return Toggle(axes[0], source.choice(space.candidates))
    if kind is Join:
        return Join(axes[0], source.choice(space.meeting))
    if kind is Exchange:
        return Exchange(axes[0], axes[1], source.choice(space.candidates))
    if kind is StoreAll:
        return StoreAll(axes[0], source.choice(list(Level)))
    if kind is StoreOne:
        return StoreOne(axes[0], source.randrange(len(space.leaves)), source.choice(list(Level)))
    if kind is Turn:
        return Turn(source.choice(sided))
    if kind is Part:
        return Part(source.choice(parted))
    return Swap(axes[0], axes[1])


def carried(space: Space, point: Point, mesh: Mesh, source: random.Random) -> Point:
    """The decisions of a point on another mesh, its axes drawn."""
    old = source.sample(range(len(point.compute)), len(point.compute))
    taken = [
        old[axis] if axis < len(old) else source.choice([*old, None])
        for axis in range(len(mesh.sizes))
    ]
    source.shuffle(taken)
    parts: dict[int, int] = {}
    compute: list[tuple[int, ...]] = []
    for axis, size in zip(taken, mesh.sizes, strict=True):
        classes = () if axis is None else point.compute[axis]
        kept = tuple(c for c in classes if space.problem.limits[c] % (parts.get(c, 1) * size) == 0)
        parts.update({c: parts.get(c, 1) * size for c in kept})
        compute.append(kept)
    nothing = (Level.REPLICATED,) * len(space.leaves)
    return replace(
        point,
        mesh=mesh,
        compute=tuple(compute),
        storage=tuple(nothing if axis is None else point.storage[axis] for axis in taken),
        last_dim_classes=point.last_dim_classes.intersection(parts),
        small_whole_classes=point.small_whole_classes.intersection(parts),
    )
