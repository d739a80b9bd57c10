"""Leaf classes: parameters that share one storage decision, with the storage classes it turns on.

A parameter of shape (n_0, n_1, ...) may be kept split on any one of its dimensions along a mesh
axis; the dimension is chosen when the mesh and the compute decisions are known (`storage_dim`), the
decision itself is only how far: not at all, its optimizer state, or itself too. Weights that the
loss does not read are state that only their own update reads: they and their moments have classes
of their own, where the two levels are one.

The storage classes that a point's levels turn on are found leaf by leaf: a leaf is kept split along
the axes that its level names and that do not split it anyway, each on the dimension that
`storage_dims` takes. The points of a search differ in few leaves, so what one leaf gives is
remembered                                                             -> in: `StoredLeaves`
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
import math
from typing import NamedTuple

from automap.program.problem import Problem
from automap.space.point import Point, StorageLevel
from automap.step.specs import ImposedSpec
from automap.topology.mesh import Mesh
from hlo_tools.analyses.folding import update_groups
from hlo_tools.analyses.roles import Role


@dataclass(frozen=True, slots=True)
class LeafClass:
    """Equal parameters. Tuples are per dimension; `none` (the problem's n_classes) where nothing
    links.

    `imposed` is the sharding that the user's code gives them. `inputs` are positions in
    `Graph.inputs`; `reach[d]` is the number of nodes that storing along d keeps split, which tells
    a dimension that survives up to the use from one that does not.
    """

    inputs: tuple[int, ...]
    dims: tuple[int, ...]
    n_bytes: int
    compute: tuple[int, ...]
    regional: tuple[int, ...]
    parameter_side: tuple[int, ...]
    optimizer_side: tuple[int, ...]
    reach: tuple[int, ...]
    imposed: ImposedSpec | None
    splitting: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        """Gather `splitting`: the classes by which computation splits a leaf."""
        object.__setattr__(self, "splitting", frozenset((*self.compute, *self.regional)))

    def imposed_dim(self, axis: str) -> int | None:
        """The dimension that the user's code splits along an axis."""
        spec = self.imposed or ()
        return next((d for d, axes in enumerate(spec) if axis in (axes or ())), None)


def leaf_classes(problem: Problem) -> tuple[LeafClass, ...]:
    """All parameters with dimensions, and the state that no storage decision of theirs concerns,
    folded, largest total bytes first.
    """
    # Which output is a parameter's new value: the op that makes it is the update.
    output_by_input = {i: o for o, i in problem.state_map.items()}
    updated = {
        position: _optimizer_side(problem, position, output_by_input)
        for position in _with_dims(problem, Role.PARAMETER)
    }
    parameters = tuple(_folded(problem, updated))
    decided = {c for leaf in parameters for c in (*leaf.parameter_side, *leaf.optimizer_side)}
    # Weights that the loss does not read are updated as others are, and no forward pass gathers
    # them: they and their moments are state on one side only, decided by a level of their own.
    sides = {
        position: problem.storage_classes(problem.graph.inputs[position])
        for position in _with_dims(problem, Role.OPTIMIZER)
    }
    none = {problem.n_classes}
    alone = {
        position: side
        for position, side in sides.items()
        if set(side) - none and (decided - none).isdisjoint(side)
    }
    leaves = (*parameters, *_folded(problem, alone))
    return tuple(sorted(leaves, key=lambda leaf: (-leaf.n_bytes * len(leaf.inputs), leaf.inputs)))


def _with_dims(problem: Problem, role: Role) -> Iterator[int]:
    """Positions of the inputs of one role that have dimensions."""
    for position, (value, own) in enumerate(zip(problem.graph.inputs, problem.roles, strict=True)):
        if own is role and problem.graph.values[value].dims:
            yield position


def _folded(
    problem: Problem, optimizer_sides: Mapping[int, tuple[int, ...]]
) -> Iterator[LeafClass]:
    """A class for the inputs that are alike in all that a storage decision depends on."""
    reach, members = _reach(problem), dict[tuple[object, ...], list[int]]()
    for position, optimizer_side in optimizer_sides.items():
        value = problem.graph.inputs[position]
        array = problem.graph.values[value]
        key = (
            array.dims,
            array.dtype,
            problem.compute_classes(value),
            problem.regional_classes(value),
            problem.storage_classes(value),
            optimizer_side,
            problem.imposed.specs_by_value.get(value),
        )
        members.setdefault(key, []).append(position)
    for positions in members.values():
        value = problem.graph.inputs[positions[0]]
        parameter_side = problem.storage_classes(value)
        array = problem.graph.values[value]
        yield LeafClass(
            inputs=tuple(positions),
            dims=array.dims,
            n_bytes=array.n_bytes,
            compute=problem.compute_classes(value),
            regional=problem.regional_classes(value),
            parameter_side=parameter_side,
            optimizer_side=optimizer_sides[positions[0]],
            reach=tuple(reach.get(c, 0) for c in parameter_side),
            imposed=problem.imposed.specs_by_value.get(value),
        )


def parameter_sides(leaves: Iterable[LeafClass]) -> dict[int, int]:
    """The storage class of the parameter's dimension by that of its gradient's."""
    return {
        gradient: parameter
        for leaf in leaves
        for gradient, parameter in zip(leaf.optimizer_side, leaf.parameter_side, strict=True)
    }


def _optimizer_side(
    problem: Problem, position: int, output_by_input: dict[int, int]
) -> tuple[int, ...]:
    """Storage classes of the op that makes the new parameter."""
    none = problem.n_classes
    # A parameter that the step does not update, as of inference or a frozen one.
    if position not in output_by_input:
        return (none,) * len(problem.graph.values[problem.graph.inputs[position]].dims)
    output = problem.graph.outputs[output_by_input[position]]
    groups = update_groups(problem.linkage, problem.storage, output)
    classes = problem.class_of_storage_group
    return tuple(problem.n_compute + int(classes[g]) if g >= 0 else none for g in groups)


def _reach(problem: Problem) -> dict[int, int]:
    counts: dict[int, int] = {}
    for node_class in problem.storage_class_of_node.tolist():
        counts[node_class] = counts.get(node_class, 0) + 1
    # Nodes of no storage class.
    counts.pop(problem.n_classes, None)
    return counts


def storage_dim(
    leaf: LeafClass,
    axis: tuple[str, int],
    parts: Sequence[int],
    stored: Collection[int],
    to_come: int,
    none: int,
    multiple: int,
) -> int | None:
    """Dimension along which to keep a leaf split by an axis (its name and size), or None.

    `parts[d]` is how many ways dimension d is split already, `stored` are dimensions that other
    axes store along, and `to_come` in how many parts this axis and later ones keep the leaf.
    `multiple` is the backend's `stored_multiple`.
    Preferred: what the user's code splits along the axis, the furthest reach, then parts that are
    whole rows of tiles, then one of `stored`, as axes on one dimension are gathered and scattered
    by one collective, then a dimension nothing splits yet, then the largest.
    """
    name, axis_size = axis
    given = leaf.imposed_dim(name)

    # A tuple, so that a later wish counts only where all before it are equal; -d takes the first of
    # equals.
    def preferred(d: int) -> tuple[int, ...]:
        size, is_last = leaf.dims[d], d == len(leaf.dims) - 1
        is_whole = not is_last or size < multiple or size % (parts[d] * to_come * multiple) == 0
        return (d == given, leaf.reach[d], is_whole, d in stored, parts[d] == 1, size, -d)

    allowed = (
        d
        for d, size in enumerate(leaf.dims)
        # Parts have to be equal: padding would change what the step computes.
        if size % (parts[d] * axis_size) == 0 and leaf.parameter_side[d] != none
    )
    return max(allowed, key=preferred, default=None)


def storage_dims(
    leaf: LeafClass,
    axes: Sequence[tuple[str, int]],
    wanted: Sequence[bool],
    parts: Sequence[int],
    none: int,
    multiple: int,
) -> tuple[int | None, ...]:
    """Along each axis (name, size) the dimension that a leaf is kept split on, None where it is not
    `wanted` or none is left.

    `parts[d]` is how many ways computation splits dimension d, `multiple` what a part of the last
    dimension should be a multiple of.
    """
    left, stored = list(parts), set[int]()
    # Parts of this axis and of those after it: the choice for one axis should leave whole tiles for
    # all.
    to_come = math.prod(size for (_, size), is_wanted in zip(axes, wanted) if is_wanted)
    dims: list[int | None] = []
    for axis, is_wanted in zip(axes, wanted, strict=True):
        dim = None
        if is_wanted:
            dim = storage_dim(leaf, axis, left, stored, to_come, none, multiple)
        if dim is not None:
            left[dim] *= axis[1]
            stored.add(dim)
        to_come //= axis[1] if is_wanted else 1
        dims.append(dim)
    return tuple(dims)


class _StorageKey(NamedTuple):
    """What the storage classes of one leaf depend on: its levels by axis, the axes that are `taken`
    (they split it already, or its level asks for nothing along them), the parts of its dimensions.
    """

    number: int
    mesh: Mesh
    levels: tuple[StorageLevel, ...]
    taken: tuple[bool, ...]
    parts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoredLeaves:
    """Leaves of one space; `none` is the class of no dimension, `multiple` the backend's
    `stored_multiple`.
    """

    leaves: Sequence[LeafClass]
    none: int
    multiple: int
    _known: dict[_StorageKey, tuple[tuple[int, int], ...]] = field(default_factory=dict, repr=False)

    def storage_classes(
        self, point: Point, parts_by_class: Mapping[int, int]
    ) -> list[dict[int, None]]:
        """The storage classes of each axis, in order of the leaves; `parts_by_class` says in how
        many parts compute and regional classes are split.
        """
        classes_by_axis = [dict[int, None]() for _ in point.compute]
        for number, levels in enumerate(zip(*point.storage, strict=True)):
            # `StorageLevel.REPLICATED` is 0: most leaves of most points store nothing split.
            if any(levels):
                key = self._storage_key(number, levels, point, parts_by_class)
                if key not in self._known:
                    self._known[key] = self._classes(key)
                for axis, group_class in self._known[key]:
                    classes_by_axis[axis][group_class] = None
        return classes_by_axis

    def _storage_key(
        self,
        number: int,
        levels: tuple[StorageLevel, ...],
        point: Point,
        parts_by_class: Mapping[int, int],
    ) -> _StorageKey:
        leaf = self.leaves[number]
        # An axis that computation splits the leaf along leaves nothing to store along it.
        taken = tuple(
            level is StorageLevel.REPLICATED or not leaf.splitting.isdisjoint(classes)
            for level, classes in zip(levels, point.compute)
        )
        sides = zip(leaf.compute, leaf.regional)
        # By compute and by regional classes: a dimension may have one of each.
        parts = tuple(parts_by_class.get(c, 1) * parts_by_class.get(r, 1) for c, r in sides)
        return _StorageKey(number, point.mesh, levels, taken, parts)

    def _classes(self, key: _StorageKey) -> tuple[tuple[int, int], ...]:
        """(axis, storage class) of one leaf."""
        leaf = self.leaves[key.number]
        wanted = [not is_taken for is_taken in key.taken]
        dims = storage_dims(leaf, key.mesh.axes, wanted, key.parts, self.none, self.multiple)
        turned_on: list[tuple[int, int]] = []
        for axis, dim in enumerate(dims):
            if dim is None:
                continue
            if leaf.optimizer_side[dim] != self.none:
                # At level FULL too: a parameter that is stored split is updated split.
                turned_on.append((axis, leaf.optimizer_side[dim]))
            if key.levels[axis] is StorageLevel.FULL:
                turned_on.append((axis, leaf.parameter_side[dim]))
        return tuple(turned_on)
