"""Exhaustive search: every valid point, for spaces small enough to walk.

    points(mesh) = product over axes of (sets of candidates that divide) x 3^(axes * leaf classes)

`size` counts them before any is made, so that the portfolio can tell whether walking is affordable.
"""

from collections.abc import Iterator
from itertools import chain, combinations, product

from automap.search.context import SearchContext
from automap.space.point import Point, StorageLevel
from automap.topology.mesh import Mesh


def exhaustive(context: SearchContext) -> None:
    """Price every point of every mesh."""
    for mesh in context.meshes:
        for _ in context.evaluate_all(points(context, mesh), "exhaustive"):
            pass


def points(context: SearchContext, mesh: Mesh) -> Iterator[Point]:
    """All points of one mesh; those that break a pin or do not divide are left to `evaluate`."""
    n_leaves = len(context.space.leaves)
    # Axis by axis: that a class divides by each of its axes does not say that it divides by all of
    # them together, which `evaluate` finds out.
    choices = [[s for s in _sets(context) if _divides(context, s, size)] for size in mesh.sizes]
    levels = list(product(StorageLevel, repeat=n_leaves))
    for compute in product(*choices):
        ordered = tuple(context.space.ordered(classes) for classes in compute)
        for storage in product(levels, repeat=len(mesh.sizes)):
            yield Point(mesh, ordered, storage)


def size(context: SearchContext, at_most: int) -> int:
    """Number of points, counted no further than just past `at_most`."""
    n_levels = len(StorageLevel) ** len(context.space.leaves)
    total = 0
    for mesh in context.meshes:
        n = 1
        for axis_size in mesh.sizes:
            sets = 0
            for classes in _sets(context):
                sets += _divides(context, classes, axis_size)
                # There may be 2^30 sets: it is enough to know that there are too many.
                if sets * n_levels > at_most:
                    return at_most + 1
            n *= sets * n_levels
        total += n
        if total > at_most:
            return at_most + 1
    return total


def _divides(context: SearchContext, classes: tuple[int, ...], size: int) -> bool:
    return all(context.space.problem.limits[c] % size == 0 for c in classes)


def _sets(context: SearchContext) -> Iterator[tuple[int, ...]]:
    """Sets of candidates, the smallest first."""
    candidates = context.space.candidates
    return chain.from_iterable(combinations(candidates, n) for n in range(len(candidates) + 1))
