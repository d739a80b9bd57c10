"""The mesh shapes that a topology makes sensible.

A mesh is laid row-major on the devices: its last axis varies fastest, so it starts at the innermost
level. With level sizes n_0 (innermost) .. n_k, a shape (a_1, ..., a_m), major to minor, is aligned
when reading it from a_m backwards and the levels from n_0 outwards

* every axis either lies inside one level (a factor of what is left of it), or
* covers whole levels (the product of one or more neighbouring n_l, none of them begun).

So an axis never takes a part of one level and a part of the next: the links it would run over have
different speeds, and the finer mesh that keeps them apart contains its plans. The shapes with at
most `max_axes` axes, each greater than 1, are returned; one device has the shape (1,).
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from math import isqrt, log2, prod
from operator import mul

from automap.topology.model import Topology


def mesh_shapes(topology: Topology, *, max_axes: int = 3) -> tuple[tuple[int, ...], ...]:
    """All aligned shapes with at most `max_axes` axes, fewest axes first, then ascending."""
    if max_axes < 1:
        raise ValueError(f"max_axes: got {max_axes}; allowed: an integer >= 1")
    sizes = tuple(level.size for level in topology.levels)
    if not sizes:
        return ((1,),)
    return tuple(sorted(set(_aligned(sizes, max_axes)), key=lambda shape: (len(shape), shape)))


def lies_on(topology: Topology, shape: Sequence[int]) -> bool:
    """Whether a mesh of this shape, major to minor, has all devices and cuts no level unevenly."""
    if prod(shape) != topology.device_count:
        return False
    levels = [level.size for level in topology.levels]
    # Where axes and levels end, as numbers of devices from the innermost: aligned if each divides
    # the next, so that no axis ends inside a place of a level that it does not fill.
    boundaries = {*accumulate(reversed(shape), mul), *accumulate(levels, mul)}
    return all(outer % inner == 0 for inner, outer in pairwise(sorted(boundaries)))


def nearest_shapes(
    topology: Topology, shape: Sequence[int], *, most: int = 3
) -> tuple[tuple[int, ...], ...]:
    """The shapes that lie on the topology closest to one that does not, with no more axes than it.

    Distance is the sum over axes, both sorted, of |log2 of the quotient|. At most four axes are
    returned.
    """
    wanted, total = sorted(shape, reverse=True), topology.device_count

    def distance(other: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        # Axes that the other shape lacks count as axes of size 1.
        filled = sorted((*other, *[1] * (len(wanted) - len(other))), reverse=True)
        return sum(abs(log2(a / b)) for a, b in zip(wanted, filled, strict=True)), other

    shapes = [(total,), *_ordered_factors(total, min(len(wanted), 4))]
    return tuple(sorted((x for x in shapes if lies_on(topology, x)), key=distance)[:most])


def _aligned(sizes: tuple[int, ...], max_axes: int) -> Iterator[tuple[int, ...]]:
    """Shapes, major to minor, over levels `sizes`, innermost first, of at most `max_axes` axes."""
    if not sizes:
        yield ()
        return
    for covered in range(1, len(sizes) + 1):
        # One axis over `covered` whole levels, or several inside of the innermost one.
        minors = [(prod(sizes[:covered]),)]
        if covered == 1:
            minors += _ordered_factors(sizes[0], max_axes)
        for minor in minors:
            for major in _aligned(sizes[covered:], max_axes - len(minor)):
                if len(major) + len(minor) <= max_axes:
                    yield major + minor


def _ordered_factors(size: int, max_factors: int) -> list[tuple[int, ...]]:
    """Every way to write `size` as an ordered product of 2 to `max_factors` factors above 1."""
    if max_factors < 2:
        return []
    splits = []
    small = [low for low in range(2, isqrt(size) + 1) if size % low == 0]
    for first in sorted({*small, *(size // low for low in small)}):
        rest = size // first
        splits += [(first, rest)]
        splits += [(first, *tail) for tail in _ordered_factors(rest, max_factors - 1)]
    return splits
