"""The decisions of a space as variables with finite domains, so that a plan is one index per
variable.

    axes of c       the set of axes that candidate c is on
    side of c       whether it splits the last dimension that holds it, if some tensor has several
    part of c       whether its small part is left whole, if it has one
    level of k      how far leaf class k is stored split along each axis

They are numbered in this order, each kind in that of `Space.candidates`, `.repeated_classes`,
`.small_part_classes`, `.leaves`; the numbers are the same on every mesh, the domains are not.
Levels that no plan can tell apart are left out: along an axis that no dimension of the leaf divides
by.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress, product
from math import prod

import numpy as np

from automap.space.leaves import LeafClass
from automap.space.point import Point, StorageLevel
from automap.space.space import Space
from automap.topology.mesh import Mesh


Levels = tuple[StorageLevel, ...]


@dataclass(frozen=True)
class Numbering:
    """The numbers of the variables of a space."""

    space: Space

    @cached_property
    def axes(self) -> dict[int, int]:
        """By candidate."""
        return {c: i for i, c in enumerate(self.space.candidates)}

    @cached_property
    def side(self) -> dict[int, int]:
        """By class of `Space.repeated_classes`."""
        return {c: len(self.axes) + i for i, c in enumerate(self.space.repeated_classes)}

    @cached_property
    def part(self) -> dict[int, int]:
        """By class of `Space.small_part_classes`."""
        first = len(self.axes) + len(self.side)
        return {c: first + i for i, c in enumerate(self.space.small_part_classes)}

    @cached_property
    def first_leaf(self) -> int:
        """The number of the first leaf's variable."""
        return len(self.axes) + len(self.side) + len(self.part)


@dataclass(frozen=True)
class Variables:
    """All decisions on one mesh.

    `masks[i]` are the sets of axes, as bits, that candidate i may be on; `bits` the choices for
    sides, then for parts; `levels[k]` those for leaf class k.
    """

    space: Space
    mesh: Mesh
    masks: tuple[tuple[int, ...], ...]
    bits: tuple[tuple[bool, ...], ...]
    levels: tuple[tuple[Levels, ...], ...]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of choices of each variable."""
        return tuple(len(choices) for choices in (*self.masks, *self.bits, *self.levels))

    def where(self, is_kept: Sequence[np.ndarray]) -> "Variables":
        """With fewer choices: `is_kept` says for each variable which of them."""
        kept, by_kind = iter(is_kept), []
        for domains in (self.masks, self.bits, self.levels):
            by_kind.append(tuple(tuple(compress(choices, next(kept))) for choices in domains))
        return Variables(self.space, self.mesh, *by_kind)

    def point(self, assignment: Sequence[int]) -> Point:
        """The plan of one choice index per variable."""
        space, n_axes, given = self.space, len(self.mesh.sizes), iter(assignment)
        # In the order in which variables are numbered: axes, sides, small parts, levels.
        masks = [(c, domain[next(given)]) for c, domain in zip(space.candidates, self.masks)]
        used = {c for c, mask in masks if mask}
        chosen = [domain[next(given)] for domain in self.bits]
        sides, parts = chosen[: len(space.repeated_classes)], chosen[len(space.repeated_classes) :]
        # Of a class on no axis sides and small parts mean nothing, so that equal plans are equal
        # points.
        last = frozenset(compress(space.repeated_classes, sides)) & used
        whole = frozenset(compress(space.small_part_classes, parts)) & used
        levels = [domain[next(given)] for domain in self.levels]
        on_axis = [[c for c, mask in masks if mask >> a & 1] for a in range(n_axes)]
        return Point(
            mesh=self.mesh,
            compute=tuple(space.ordered(classes) for classes in on_axis),
            storage=tuple(
                tuple(levels_by_axis[a] for levels_by_axis in levels) for a in range(n_axes)
            ),
            last_dim_classes=last,
            small_whole_classes=whole,
        )

    def assignment(self, point: Point) -> tuple[int, ...]:
        """The choice indices of a valid point of this mesh."""
        space = self.space
        choices_made = [
            masks.index(sum(1 << a for a, on in enumerate(point.compute) if c in on))
            for c, masks in zip(space.candidates, self.masks, strict=True)
        ]
        bits = [c in point.last_dim_classes for c in space.repeated_classes] + [
            c in point.small_whole_classes for c in space.small_part_classes
        ]
        choices_made += [domain.index(bit) for domain, bit in zip(self.bits, bits, strict=True)]
        for number, (leaf, choices) in enumerate(zip(space.leaves, self.levels, strict=True)):
            levels = (levels_by_leaf[number] for levels_by_leaf in point.storage)
            # A level that no plan can tell from a lower one is not among the choices: it is taken
            # down to that.
            choices_made.append(choices.index(self._distinct_levels(leaf, tuple(levels))))
        return tuple(choices_made)

    def _distinct_levels(self, leaf: LeafClass, levels: Levels) -> Levels:
        allowed = (_levels(self.space, leaf, size) for size in self.mesh.sizes)
        return tuple(
            max(x for x in domain if x <= y) for domain, y in zip(allowed, levels, strict=True)
        )


def mesh_variables(space: Space, mesh: Mesh) -> Variables:
    """The variables of a space on a mesh."""
    return Variables(
        space=space,
        mesh=mesh,
        masks=tuple(_masks(int(space.problem.limits[c]), mesh.sizes) for c in space.candidates),
        bits=((False, True),) * (len(space.repeated_classes) + len(space.small_part_classes)),
        levels=tuple(
            tuple(product(*(_levels(space, leaf, size) for size in mesh.sizes)))
            for leaf in space.leaves
        ),
    )


def _masks(limit: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Sets of axes that a class of at most `limit` equal parts divides by."""
    return tuple(mask for mask in range(1 << len(sizes)) if limit % part_count(mask, sizes) == 0)


def part_count(mask: int, sizes: Sequence[int]) -> int:
    """In how many parts a set of axes splits."""
    return prod(size for a, size in enumerate(sizes) if mask >> a & 1)


def _levels(space: Space, leaf: LeafClass, size: int) -> Levels:
    """The levels of a leaf that differ along an axis of `size` devices."""
    none = space.problem.n_classes
    dims = [
        d
        for d, whole in enumerate(leaf.dims)
        if whole % size == 0 and leaf.parameter_side[d] != none
    ]
    if not dims:
        return (StorageLevel.REPLICATED,)
    # Nothing of the optimizer's to split, so level OPTIMIZER is as REPLICATED.
    if all(leaf.optimizer_side[d] == none for d in dims):
        return (StorageLevel.REPLICATED, StorageLevel.FULL)
    # State on one side only: there is no more of it to store split than at level OPTIMIZER.
    if leaf.optimizer_side == leaf.parameter_side:
        return (StorageLevel.REPLICATED, StorageLevel.OPTIMIZER)
    return tuple(StorageLevel)
