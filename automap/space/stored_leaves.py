"""The storage classes that a point's levels turn on, leaf by leaf.

A leaf is kept split along the axes that its level names and that do not split it anyway, each on the dimension that
`automap.space.leaves.storage_dims` takes                                          -> in: `StoredLeaves._classes`

The points of a search differ in few leaves, so what was found for one is kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from automap.space.leaves import LeafClass, storage_dims
from automap.space.point import Level, Point
from automap.topology.mesh import Mesh


class _Question(NamedTuple):
    """Of a leaf: levels by axis, axes that are `taken` (they split it, or are not asked), parts of
    its dimensions.
    """

    number: int
    mesh: Mesh
    levels: tuple[Level, ...]
    taken: tuple[bool, ...]
    parts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoredLeaves:
    """Leaves of one space; `none` is the class of no dimension."""

    leaves: Sequence[LeafClass]
    none: int
    _known: dict[_Question, tuple[tuple[int, int], ...]] = field(default_factory=dict, repr=False)

    def of_axes(self, point: Point, parts_of: Mapping[int, int]) -> list[dict[int, None]]:
        """The storage classes of each axis, in order of the leaves; `parts_of` are the parts of
        compute classes.
        """
        found = [dict[int, None]() for _ in point.compute]
        for number, levels in enumerate(zip(*point.storage, strict=True)):
            if any(levels):
                question = self._question(number, levels, point, parts_of)
                if question not in self._known:
                    self._known[question] = self._classes(question)
                for axis, group_class in self._known[question]:
                    found[axis][group_class] = None
        return found

    def _question(
        self, number: int, levels: tuple[Level, ...], point: Point, parts_of: Mapping[int, int]
    ) -> _Question:
        leaf = self.leaves[number]
        taken = tuple(
            level is Level.REPLICATED or not leaf.splitting.isdisjoint(classes)
            for level, classes in zip(levels, point.compute)
        )
        sides = zip(leaf.compute, leaf.regional)
        parts = tuple(parts_of.get(c, 1) * parts_of.get(r, 1) for c, r in sides)
        return _Question(number, point.mesh, levels, taken, parts)

    def _classes(self, question: _Question) -> tuple[tuple[int, int], ...]:
        """(axis, storage class) of one leaf."""
        leaf = self.leaves[question.number]
        wanted = [not is_taken for is_taken in question.taken]
        dims = storage_dims(leaf, question.mesh.axes, wanted, question.parts, self.none)
        found: list[tuple[int, int]] = []
        for axis, dim in enumerate(dims):
            if dim is None:
                continue
            if leaf.optimizer_side[dim] != self.none:
                found.append((axis, leaf.optimizer_side[dim]))
            if question.levels[axis] is Level.FULL:
                found.append((axis, leaf.parameter_side[dim]))
        return tuple(found)
