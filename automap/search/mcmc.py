"""`mcmc`: Metropolis walks over the points of all meshes (FlexFlow, section 6.2), from many starts.

    E(x) = log step(x) + w max(0, log(peak(x) / limit))            -> in: `_Walker.energy`

A point that does not fit has a price, so that a walk may pass through it; w doubles with every
`_PATIENCE` proposals since the walk last fitted, so that it is led back, however much slower what
fits may be.

    starts    each preset on its best mesh, the best empty point, random points
                                                                   -> in: `_starts`
    length    in proportion to the number of places where a move can be made, not of seconds
                                                                   -> in: `walk_from`

What a walk proposes:

    move      one of `automap.search.moves`, its kind drawn by `_WEIGHTS`, its place uniformly
                                                                   -> in: `random_move`
    change    one move, or with chance `_AGAIN` another after it, and so on
                                                                   -> in: `change_randomly`
    mesh      with chance `_OTHER_MESH` the decisions on another mesh: each of its axes takes those
              of one of the old axes, all old axes that fit being taken once before any is repeated;
              what does not divide there is dropped                -> in: `move_to_mesh`

Moves on one mesh are drawn as often forth as back, with three exceptions: a class put on an axis
may drive away those it meets, levels of all leaves at once forget the single ones, and pins are
imposed again. Walks look for a minimum and need no more.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
import math
import random

from automap.search.context import LEAST_SECONDS, Candidate, SearchContext
from automap.search.greedy import random_point
from automap.search.metropolis import Patience, walk
from automap.search.moves import (
    AxisChange,
    AxisSwap,
    ClassJoin,
    ClassToggle,
    DimChange,
    LeafStorageChange,
    Move,
    SmallPartsChange,
    StorageChange,
)
from automap.search.presets import preset_points
from automap.space.point import Point, StorageLevel
from automap.space.space import Space
from automap.topology.mesh import Mesh


_WEIGHTS: dict[type[Move], int] = {
    ClassToggle: 6,
    ClassJoin: 2,
    AxisChange: 3,
    StorageChange: 2,
    LeafStorageChange: 3,
    DimChange: 1,
    SmallPartsChange: 1,
    AxisSwap: 1,
}
_AGAIN = 0.3


def count_places(space: Space, mesh: Mesh) -> int:
    """Number of places on a mesh where a move can be made: it measures the space."""
    on_axis = len(space.candidates) + len(space.leaves)
    return on_axis * len(mesh.sizes) + len(space.repeated_classes) + len(space.small_part_classes)


def change_randomly(space: Space, point: Point, source: random.Random) -> Point:
    """The point after one or more random moves."""
    while True:
        # One move or several, in a geometric distribution: some changes only help together.
        move = random_move(space, point, source)
        if move is None:
            return point
        point = move.apply(space, point)
        if source.random() >= _AGAIN:
            return point


def random_move(space: Space, point: Point, source: random.Random) -> Move | None:
    """A move of a point, None if there is nothing to decide."""
    mesh, used = point.mesh, {c for classes in point.compute for c in classes}
    repeated = [c for c in space.repeated_classes if c in used]
    small_parts = [c for c in space.small_part_classes if c in used]
    # A kind without a place on this mesh is not drawn, so that no proposal is wasted.
    able: dict[type[Move], bool] = {
        ClassToggle: bool(space.candidates),
        ClassJoin: bool(space.meeting),
        AxisChange: bool(space.candidates) and len(mesh.sizes) > 1,
        StorageChange: bool(space.leaves),
        LeafStorageChange: bool(space.leaves),
        DimChange: bool(repeated),
        SmallPartsChange: bool(small_parts),
        AxisSwap: len(mesh.sizes) > 1,
    }
    kinds = [kind for kind in _WEIGHTS if able[kind]]
    if not kinds:
        return None
    (kind,) = source.choices(kinds, [_WEIGHTS[kind] for kind in kinds])
    axes = source.sample(range(len(mesh.sizes)), min(2, len(mesh.sizes)))
    if kind is ClassToggle:
        return ClassToggle(axes[0], source.choice(space.candidates))
    if kind is ClassJoin:
        return ClassJoin(axes[0], source.choice(space.meeting))
    if kind is AxisChange:
        return AxisChange(axes[0], axes[1], source.choice(space.candidates))
    if kind is StorageChange:
        return StorageChange(axes[0], source.choice(list(StorageLevel)))
    if kind is LeafStorageChange:
        return LeafStorageChange(
            axes[0], source.randrange(len(space.leaves)), source.choice(list(StorageLevel))
        )
    if kind is DimChange:
        return DimChange(source.choice(repeated))
    if kind is SmallPartsChange:
        return SmallPartsChange(source.choice(small_parts))
    return AxisSwap(axes[0], axes[1])


def move_to_mesh(space: Space, point: Point, mesh: Mesh, source: random.Random) -> Point:
    """The decisions of a point on another mesh, its axes drawn."""
    # Axes of the new mesh take the old ones' decisions in a drawn order; more of them repeat an old
    # one's, or take none.
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
        # A class divides by all axes that have it together, those before this one included.
        kept = tuple(c for c in classes if space.problem.limits[c] % (parts.get(c, 1) * size) == 0)
        parts.update({c: parts.get(c, 1) * size for c in kept})
        compute.append(kept)
    nothing = (StorageLevel.REPLICATED,) * len(space.leaves)
    return replace(
        point,
        mesh=mesh,
        compute=tuple(compute),
        storage=tuple(nothing if axis is None else point.storage[axis] for axis in taken),
        last_dim_classes=point.last_dim_classes.intersection(parts),
        small_whole_classes=point.small_whole_classes.intersection(parts),
    )


# At 100 a step that is 1 % longer is accepted with chance 1/e. FlexFlow keeps one beta; here starts
# take turns.
_BETAS = (100.0, 30.0, 300.0)
# Seldom, as a change of the mesh undoes much of what a walk has found on the old one.
_OTHER_MESH = 0.05
_RANDOM_STARTS = 4
# Proposals of a walk for each place of the space where a move can be made, and at most in all.
_LEAST_PER_DECISION, _MOST_PER_DECISION, _MOST_PROPOSALS = 10, 40, 4_000
# A plan that is 1 % over the limit is as bad as one that is 4 % slower, to begin with; the last
# number keeps the weight finite.
_MEMORY_WEIGHT, _PATIENCE, _MOST_DOUBLINGS = 4.0, 50, 10


def mcmc(context: SearchContext) -> None:
    """Walk from every preset, from nothing and from random points."""
    source = random.Random(context.seed)
    walk_from(context, list(_starts(context, source)), source)


def walk_from(context: SearchContext, starts: Sequence[Candidate], source: random.Random) -> None:
    """Walk from each start until nothing better is found for half of the walk."""
    # Of the largest mesh, as a walk may go to any of them.
    places = max((count_places(context.space, mesh) for mesh in context.meshes), default=0)
    for number, start in enumerate(starts):
        walker = _Walker(context, source)
        patience = Patience(
            least=min(_LEAST_PER_DECISION * places, _MOST_PROPOSALS),
            most=min(_MOST_PER_DECISION * places, _MOST_PROPOSALS),
        )
        # Which is good depends on the model: a low one crosses barriers, a high one keeps what was
        # gained.
        beta = _BETAS[number % len(_BETAS)]
        for candidate in walk(start, walker.energy, walker.propose, beta, source):
            walker.follow(candidate)
            patience.record(context.objective.key(candidate.estimate))
            if patience.is_spent:
                break


def _starts(context: SearchContext, source: random.Random) -> Iterator[Candidate]:
    """The best point of each preset and the best empty one, and random points."""
    # One walk for each kind of start, from its best mesh.
    kinds: dict[str, list[Point]] = {}
    for name, point in preset_points(context):
        kinds.setdefault(name, []).append(point)
    kinds["empty"] = [context.empty(mesh) for mesh in context.meshes]
    # Pins may leave no mesh.
    for number in range(_RANDOM_STARTS if context.meshes else 0):
        mesh = source.choice(context.meshes)
        kinds[f"random {number}"] = [random_point(context, mesh, source)]
    for points in kinds.values():
        candidates = (context.evaluate(context.pinned.nearest(point), "mcmc") for point in points)
        allowed = [candidate for candidate in candidates if candidate is not None]
        if allowed:
            yield min(allowed, key=lambda candidate: context.objective.key(candidate.estimate))


@dataclass
class _Walker:
    """One walk's proposals and energies; `outside` counts the proposals since it last fitted."""

    context: SearchContext
    source: random.Random
    outside: int = 0

    def follow(self, candidate: Candidate) -> None:
        """The walk is now here."""
        self.outside = 0 if self.context.objective.fits(candidate.estimate) else self.outside + 1

    def energy(self, candidate: Candidate) -> float:
        """The logarithm of a step's seconds, and a price for memory beyond the limit."""
        estimate = candidate.estimate
        excess = estimate.peak_bytes / self.context.objective.memory_limit_bytes
        # The walk is no Markov chain with it: energies change with the time that it has not fitted.
        weight = _MEMORY_WEIGHT * 2.0 ** min(self.outside // _PATIENCE, _MOST_DOUBLINGS)
        seconds = max(estimate.step_seconds, LEAST_SECONDS)
        return math.log(seconds) + weight * math.log(max(1.0, excess))

    def propose(self, candidate: Candidate) -> Candidate | None:
        """Another point, priced; None if it is not allowed."""
        context, source = self.context, self.source
        if len(context.meshes) > 1 and source.random() < _OTHER_MESH:
            mesh = source.choice(context.meshes)
            point = move_to_mesh(context.space, candidate.point, mesh, source)
        else:
            point = change_randomly(context.space, candidate.point, source)
        return context.evaluate(context.pinned.impose(point), "mcmc")
