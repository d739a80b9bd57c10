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

from collections.abc import Iterator
from math import prod

from automap.topology.model import Topology


def mesh_shapes(topology: Topology, *, max_axes: int = 3) -> tuple[tuple[int, ...], ...]:
    """All aligned shapes with at most `max_axes` axes, fewest axes first, then ascending."""
    if max_axes < 1:
        raise ValueError(f"max_axes: got {max_axes}; allowed: an integer >= 1")
    sizes = tuple(level.size for level in topology.levels)
    if not sizes:
        return ((1,),)
    return tuple(sorted(set(_aligned(sizes, max_axes)), key=lambda shape: (len(shape), shape)))


def _aligned(sizes: tuple[int, ...], max_axes: int) -> Iterator[tuple[int, ...]]:
    """Shapes, major to minor, over levels `sizes`, innermost first, of at most `max_axes` axes."""
    if not sizes:
        yield ()
        return
    for covered in range(1, len(sizes) + 1):
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
    for first in range(2, size // 2 + 1):
        if size % first == 0:
            rest = size // first
            splits += [(first, rest)]
            splits += [(first, *tail) for tail in _ordered_factors(rest, max_factors - 1)]
    return splits
