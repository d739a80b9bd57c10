"""Moves: small changes of a point on one mesh, the neighbourhood that local search looks at.

ClassToggle        put a class on an axis, or take it off; features that it meets in some tensor
                   leave the axis
ClassJoin          put a class on an axis beside features that it meets: tensors that hold both go
                   to the first in order
AxisChange         move a class from one axis to another
StorageChange      the storage level of all leaves along an axis
LeafStorageChange  the level of one leaf class
DimChange          let a class split the other of the dimensions that it holds of one tensor
SmallPartsChange   leave the small tensors of a class whole, or split them too
AxisSwap           exchange the whole decisions of two axes
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from automap.space.point import Point, StorageLevel
from automap.space.space import Space


# Beyond this many leaf classes, single leaves are tried only for the largest.
_SINGLE_LEAVES = 12


class Move(Protocol):
    """A change that can be made to any point of the same mesh."""

    def apply(self, space: Space, point: Point) -> Point:
        """The changed point."""
        ...


@dataclass(frozen=True, slots=True)
class ClassToggle:
    """Put `group_class` on an axis, or take it off."""

    axis: int
    group_class: int

    def apply(self, space: Space, point: Point) -> Point:
        """The changed point."""
        classes = toggle_class(space, set(point.compute[self.axis]), self.group_class)
        return _with(space, point, self.axis, classes)


@dataclass(frozen=True, slots=True)
class ClassJoin:
    """Put `group_class` on an axis beside those it meets there; nothing if it is there."""

    axis: int
    group_class: int

    def apply(self, space: Space, point: Point) -> Point:
        """The changed point."""
        classes = {*point.compute[self.axis], self.group_class}
        return _with(space, point, self.axis, classes)


@dataclass(frozen=True, slots=True)
class AxisChange:
    """Move `group_class` from one axis to another; nothing if it is not on the first."""

    axis: int
    other: int
    group_class: int

    def apply(self, space: Space, point: Point) -> Point:
        """The changed point."""
        if self.group_class not in point.compute[self.axis]:
            return point
        left = set(point.compute[self.axis]) - {self.group_class}
        entered = set(point.compute[self.other]) - {self.group_class}
        moved = _with(space, point, self.axis, left)
        return _with(space, moved, self.other, toggle_class(space, entered, self.group_class))


@dataclass(frozen=True, slots=True)
class StorageChange:
    """All leaves at one level along an axis."""

    axis: int
    level: StorageLevel

    def apply(self, space: Space, point: Point) -> Point:
        """The changed point."""
        return _stored(point, self.axis, (self.level,) * len(space.leaves))


@dataclass(frozen=True, slots=True)
class LeafStorageChange:
    """One leaf class at a level along an axis."""

    axis: int
    leaf: int
    level: StorageLevel

    def apply(self, space: Space, point: Point) -> Point:
        """The changed point."""
        levels = list(point.storage[self.axis])
        levels[self.leaf] = self.level
        return _stored(point, self.axis, tuple(levels))


@dataclass(frozen=True, slots=True)
class DimChange:
    """The other side of a class that a tensor holds twice."""

    group_class: int

    def apply(self, space: Space, point: Point) -> Point:
        """The changed point."""
        return replace(point, last_dim_classes=point.last_dim_classes ^ {self.group_class})


@dataclass(frozen=True, slots=True)
class SmallPartsChange:
    """The other state of a class's small tensors."""

    group_class: int

    def apply(self, space: Space, point: Point) -> Point:
        """The changed point."""
        return replace(point, small_whole_classes=point.small_whole_classes ^ {self.group_class})


@dataclass(frozen=True, slots=True)
class AxisSwap:
    """All decisions of two axes."""

    first: int
    second: int

    def apply(self, space: Space, point: Point) -> Point:
        """The changed point."""
        compute, storage = list(point.compute), list(point.storage)
        pair, swapped = (self.first, self.second), (self.second, self.first)
        for axis, other in zip(pair, swapped):
            compute[axis], storage[axis] = point.compute[other], point.storage[other]
        return replace(point, compute=tuple(compute), storage=tuple(storage))


def moves(space: Space, point: Point) -> Iterator[Move]:
    """All moves that change a point, but those that put a sequence beside the batch on an axis.

    There it would only take the axis from the batch, which costs less where it divides.
    """
    # In an order that does not depend on sets, so that of equal moves the same one is made each
    # time.
    axes = range(len(point.mesh.sizes))
    for axis in axes:
        for group_class in space.candidates:
            if _is_idle(space, point.compute[axis], group_class):
                continue
            yield ClassToggle(axis, group_class)
            # Else it would be the same point as the toggle's.
            if any(space.meet(group_class, other) for other in point.compute[axis]):
                yield ClassJoin(axis, group_class)
            if group_class in point.compute[axis]:
                yield from (AxisChange(axis, other, group_class) for other in axes if other != axis)
    for axis in axes:
        for level in StorageLevel:
            yield StorageChange(axis, level)
            # Leaves are ordered by their bytes: what a small one stores hardly matters.
            for leaf in range(min(len(space.leaves), _SINGLE_LEAVES)):
                if point.storage[axis][leaf] is not level:
                    yield LeafStorageChange(axis, leaf, level)
    # What a class does with its sides and small tensors only shows where it is on some axis.
    used = {c for classes in point.compute for c in classes}
    yield from (DimChange(c) for c in space.repeated_classes if c in used)
    yield from (SmallPartsChange(c) for c in space.small_part_classes if c in used)
    yield from (AxisSwap(first, second) for first in axes for second in axes if first < second)


def toggle_class(space: Space, classes: set[int], group_class: int) -> set[int]:
    """`classes` with one more, and without those it meets; or without it."""
    if group_class in classes:
        return classes - {group_class}
    # Two features that meet would leave the later one the axis in few tensors only: it makes room.
    return {c for c in classes if not space.meet(c, group_class)} | {group_class}


def _is_idle(space: Space, classes: tuple[int, ...], group_class: int) -> bool:
    batches = space.batches
    is_sequence = group_class in space.activations and group_class not in batches
    return is_sequence and not set(batches).isdisjoint(classes) and group_class not in classes


def _with(space: Space, point: Point, axis: int, classes: set[int]) -> Point:
    compute = list(point.compute)
    compute[axis] = space.ordered(classes)
    # A class on no axis has no side: else one plan would be two points.
    used = frozenset(c for on_axis in compute for c in on_axis)
    return replace(
        point,
        compute=tuple(compute),
        last_dim_classes=point.last_dim_classes & used,
        small_whole_classes=point.small_whole_classes & used,
    )


def _stored(point: Point, axis: int, levels: tuple[StorageLevel, ...]) -> Point:
    storage = list(point.storage)
    storage[axis] = levels
    return replace(point, storage=tuple(storage))
