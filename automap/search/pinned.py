"""Points that keep the pins: where moves lead, and the nearest one to where a search would start.

A pin holds for a point if the input's sharding is exactly the spec          -> in: `Pinned.keeps`

    imposed    each pin's input first of all on its axes: its dimensions' classes, or the leaf
               stored split; what else would split it leaves the axes. Cheap, and enough for most
               parameters and batches                                        -> in: `Pinned.impose`
    nearest    argmin over plans x that keep all pins of  the number of decisions in which x is not
               the point's (elimination over the barriers of the pins alone) -> in: `Pinned.nearest`
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

import numpy as np

from automap.cost.evaluate import Evaluator
from automap.cost.shardings import shardings
from automap.search.factored.barriers import pin_barriers, pins_by_value_row, validity_barriers
from automap.search.factored.cells import Rows
from automap.search.factored.codes import Group
from automap.search.factored.eliminate import Elimination, Table, elimination_order
from automap.search.factored.pricing import group_on_mesh
from automap.search.factored.stored import LeafStorage
from automap.search.factored.variables import Variables, mesh_variables
from automap.space.pins import Pin
from automap.space.point import Point, SplitClasses, StorageLevel
from automap.space.space import Space
from automap.topology.mesh import Mesh


# A pinned input that more joint choices split has no barrier.
_MOST_CHOICES = 1 << 22


@dataclass(frozen=True)
class Pinned:
    """The pins of one search."""

    space: Space
    evaluator: Evaluator
    pins: Sequence[Pin]
    _choices_by_mesh: dict[Mesh, "_Choices"] = field(default_factory=dict, repr=False)

    def keeps(self, point: Point, split_classes: SplitClasses) -> bool:
        """Whether a valid point keeps every pin."""
        if not self.pins:
            return True
        # Asked of the cost model, not worked out from the classes: it knows what loses an axis to
        # what.
        tables = self.evaluator.tables
        dims = shardings(tables, self.space.problem.n_classes, split_classes).dim_of_axis
        return all(
            dims[self.rows.input_rows[pin.position]].tolist()
            == [pin.dim(name) for name in point.mesh.names]
            for pin in self.pins
        )

    def allows(self, point: Point) -> bool:
        """Whether a point divides and keeps every pin."""
        return self.space.is_valid(point) and self.keeps(point, self.space.split_classes(point))

    def impose(self, point: Point) -> Point:
        """The point if it keeps the pins, else changed for each; it may still not keep them."""
        if self.pins and not self.allows(point):
            for pin in self.pins:
                point = _impose_pin(self.space, pin, point)
        return point

    def nearest(self, point: Point) -> Point:
        """A point that keeps the pins and differs in few decisions; `point` if there is none."""
        changed = self.impose(point)
        # Elimination needs the point's own choices to count differences from, which one that does
        # not divide has not.
        if not self.pins or self.allows(changed) or not self.space.is_valid(point):
            return changed
        if point.mesh not in self._choices_by_mesh:
            self._choices_by_mesh[point.mesh] = _Choices.left_by(self, point.mesh)
        nearest = self._choices_by_mesh[point.mesh].nearest(point)
        return point if nearest is None else nearest

    def impossible_pins(self, meshes: Sequence[Mesh]) -> tuple[Pin, ...]:
        """Pins that no point on these meshes keeps, alone or with the others, and which have to be
        imposed instead.

        Those that none keeps even alone, if the others are kept together without them, else all.
        """
        if self._is_possible(meshes):
            return ()
        each = [(pin, replace(self, pins=[pin], _choices_by_mesh={})) for pin in self.pins]
        # It may be one pin that the space cannot keep, or two that it cannot keep together.
        alone = tuple(pin for pin, only in each if not only._is_possible(meshes))
        left = [pin for pin in self.pins if pin not in alone]
        is_enough = alone and replace(self, pins=left, _choices_by_mesh={})._is_possible(meshes)
        return alone if is_enough else tuple(self.pins)

    def _is_possible(self, meshes: Sequence[Mesh]) -> bool:
        starts = (self.space.point(mesh, [()] * len(mesh.sizes)) for mesh in meshes)
        return any(self.allows(self.nearest(start)) for start in starts)

    @cached_property
    def rows(self) -> Rows:
        """What splits each value."""
        return Rows(self.space, self.evaluator)


def _impose_pin(space: Space, pin: Pin, point: Point) -> Point:
    """The point changed so that the input is split as pinned, where that is simple."""
    own = space.problem.compute_classes(space.problem.graph.inputs[pin.position])
    compute = [set(classes) for classes in point.compute]
    storage = [list(levels) for levels in point.storage]
    leaf = next((k for k, x in enumerate(space.leaves) if pin.position in x.inputs), None)
    for axis, name in enumerate(point.mesh.names):
        dim = pin.dim(name)
        computed = dim >= 0 and own[dim] in space.candidates
        # Off first: the input is split along this axis as pinned, and by nothing else.
        compute[axis] -= set(own)
        if computed:
            rivals = {c for c in compute[axis] if space.meet(c, own[dim])}
            compute[axis] = compute[axis] - rivals | {own[dim]}
        if leaf is not None:
            # The optimizer's state may be stored split whatever the parameter is.
            whole = min(storage[axis][leaf], StorageLevel.OPTIMIZER)
            storage[axis][leaf] = whole if computed or dim < 0 else StorageLevel.FULL
    return replace(
        point,
        compute=tuple(space.ordered(classes) for classes in compute),
        storage=tuple(tuple(levels) for levels in storage),
    )


@dataclass(frozen=True)
class _Choices:
    """What is left of the choices on a mesh that no barrier rules out by itself, and the barriers
    over it.
    """

    whole: Variables
    kept: tuple[np.ndarray, ...]
    barriers: tuple[Table, ...]

    @staticmethod
    def left_by(pinned: Pinned, mesh: Mesh) -> "_Choices":
        variables = mesh_variables(pinned.space, mesh)
        barriers = [*_barriers(pinned, variables), *validity_barriers(variables)]
        # Arc consistency: choices that a barrier rules out whatever the others are go first, until
        # none goes. What is left is small enough to eliminate.
        kept = [np.ones(size, bool) for size in variables.sizes]
        before = -1
        while before != (before := sum(int(choices.sum()) for choices in kept)):
            for barrier in barriers:
                _drop(barrier, kept)
        left = [Table(b.scope, b.values[np.ix_(*(kept[v] for v in b.scope))]) for b in barriers]
        return _Choices(variables, tuple(kept), tuple(left))

    def nearest(self, point: Point) -> Point | None:
        """The allowed plan that differs from a point in the fewest decisions, None if there is
        none.
        """
        if not all(choices.any() for choices in self.kept):
            return None
        left, own = self.whole.where(self.kept), self.whole.assignment(point)
        numbers = [np.flatnonzero(choices) for choices in self.kept]
        differ = [
            Table((v,), (choices != choice).astype(float))
            for v, (choices, choice) in enumerate(zip(numbers, own, strict=True))
        ]
        tables = [*self.barriers, *differ]
        elimination = Elimination(
            tables, left.sizes, elimination_order([t.scope for t in tables], left.sizes)
        )
        return None if np.isinf(elimination.bound) else left.point(elimination.assignment())


def _barriers(pinned: Pinned, variables: Variables) -> Iterator[Table]:
    rows, stored = pinned.rows, LeafStorage(pinned.rows, variables)
    pins_by_row = pins_by_value_row(pinned.pins, rows.input_rows)
    for row in pins_by_row:
        cell = rows.cell((row,))
        if prod(variables.sizes[v] for v in cell.scope) <= _MOST_CHOICES:
            mesh_group = group_on_mesh(Group(rows, cell.scope, (cell,)), variables, stored)
            yield from pin_barriers(mesh_group, variables, pins_by_row)


def _drop(barrier: Table, kept: list[np.ndarray]) -> None:
    """Drop the choices of each variable of a barrier with which nothing that is kept of the others
    is allowed.
    """
    allowed = np.isfinite(barrier.values)
    for at, variable in enumerate(barrier.scope):
        others = [a for a in range(allowed.ndim) if a != at]
        allowed = allowed & np.expand_dims(kept[variable], others)
    for at, variable in enumerate(barrier.scope):
        kept[variable] = np.asarray(
            allowed.any(axis=tuple(a for a in range(allowed.ndim) if a != at))
        )
