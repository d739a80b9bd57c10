"""The point that follows what the step's own code imposes: a start for searches, not a restriction.

Every point keeps what is imposed (`automap.program.imposed`); this one computes along it where the
space can. In this order, each class where it divides and does not meet one before it:

    inputs that are no state, inner values    the class of each dimension on the axes that split it
    parameters                                the same, but stored split where an axis has the batch
    optimizer state                           stored split where its parameters' updates are not
"""

from collections.abc import Iterator

from automap.space.point import Level, Point
from automap.space.space import Space
from automap.step.specs import ImposedSpec
from automap.topology.mesh import Mesh
from hlo_tools.analyses.roles import Role
from hlo_tools.analyses.storage import Side


_STATE = (Role.PARAMETER, Role.OPTIMIZER)


def as_imposed(space: Space, mesh: Mesh) -> Point:
    """The point on one mesh; nothing split if nothing is imposed."""
    builder = _Builder(space, mesh)
    for value, role, spec in _in_order(space):
        for dim, axes in enumerate(spec):
            for name in axes or ():
                axis = mesh.names.index(name)
                if mesh.sizes[axis] > 1:
                    builder.split(value, role, dim, axis)
    return builder.point()


def _in_order(space: Space) -> Iterator[tuple[int, Role | None, ImposedSpec]]:
    """(value, role of an input, spec): parameters after other values, optimizer state last."""
    problem = space.problem
    inputs = [
        (value, role, problem.imposed.specs_by_value[value])
        for value, role in zip(problem.graph.inputs, problem.roles, strict=True)
        if value in problem.imposed.specs_by_value
    ]
    yield from (given for given in inputs if given[1] not in _STATE)
    for op, spec in problem.imposed.specs_by_op.items():
        (value,) = problem.graph.ops[op].outputs
        if problem.storage.side[value] == Side.NONE:
            yield value, None, spec
    for role in _STATE:
        yield from (given for given in inputs if given[1] is role)


class _Builder:
    def __init__(self, space: Space, mesh: Mesh) -> None:
        self._space, self._mesh = space, mesh
        self._compute: list[set[int]] = [set() for _ in mesh.sizes]
        self._levels = [[Level.REPLICATED] * len(space.leaves) for _ in mesh.sizes]

    def split(self, value: int, role: Role | None, dim: int, axis: int) -> None:
        """Split one dimension of a value along an axis, if that is possible."""
        own = self._space.problem.compute_classes(value)[dim]
        has_batch = self._space.problem.batch_class in self._compute[axis]
        is_state = role in _STATE
        if own in self._compute[axis] or (not (is_state and has_batch) and self._enters(own, axis)):
            self._compute[axis].add(own)
        elif is_state:
            level = Level.FULL if role is Role.PARAMETER else Level.OPTIMIZER
            stored = self._space.problem.storage_classes(value)[dim]
            for number, leaf in enumerate(self._space.leaves):
                if stored in (*leaf.parameter_side, *leaf.optimizer_side):
                    self._levels[axis][number] = max(level, self._levels[axis][number])

    def _enters(self, own: int, axis: int) -> bool:
        space, size = self._space, self._mesh.sizes[axis]
        if own not in space.candidates:
            return False
        parts = size
        for classes, other in zip(self._compute, self._mesh.sizes):
            parts *= other if own in classes else 1
        divides = space.problem.limits[own] % parts == 0
        return bool(divides) and not any(space.meet(own, c) for c in self._compute[axis])

    def point(self) -> Point:
        """What was split so far."""
        ordered = tuple(self._space.ordered(classes) for classes in self._compute)
        return Point(self._mesh, ordered, tuple(tuple(levels) for levels in self._levels))
