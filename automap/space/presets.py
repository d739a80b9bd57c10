"""Points that people write by hand: presets, by their names, and what the step's own code imposes.

Each entry of `PRESETS` makes the points of its kind on one mesh, or nothing if the mesh does not
suit it: data-parallel and the ZeRO family use every axis for the batch, Megatron one axis for
features: the one called "model", whatever its place in the mesh, or each in turn if none is called
so -> in: `_feature_axes`. Sources: zero-1 and zero-3 Rajbhandari et al. 2020, megatron Shoeybi et
al. 2019, sequence-parallel Korthikanti et al. 2022, expert-parallel Lepikhin et al. 2020 (GShard),
one-weird-trick Krizhevsky 2014.

Every point keeps what the step's own shardings impose (`automap.program.imposed`). The point that
follows them computes along them where the space can: a start for searches, not a restriction. In
this order, each class where it divides and does not meet one before it -> in: `imposed_point`

    inputs that are no state, inner values    the class of each dimension on the axes that split it
    parameters                                the same, but stored split where an axis has the batch
    optimizer state                           stored split where its parameters' updates are not
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from automap.space.point import Point, StorageLevel
from automap.space.space import Space
from automap.step.specs import ImposedSpec
from automap.topology.mesh import Mesh
from hlo_tools.analyses.roles import Role
from hlo_tools.analyses.storage import Side


_MODEL_AXIS = "model"


@dataclass(frozen=True, slots=True)
class Preset:
    """A named family of points; `automap.choices` says in a line what each is."""

    name: str
    points: Callable[[Space, Mesh], Sequence[Point]]


def _batch_axes(space: Space, mesh: Mesh) -> list[list[int]] | None:
    """The batch, in all towers, on as many leading axes as its size allows; None if on none."""
    batches = [c for c in space.batches if c in space.candidates]
    if space.problem.batch_class not in batches:
        return None
    compute: list[list[int]] = []
    parts = dict.fromkeys(batches, 1)
    # Axes in the mesh's order: each takes the batch while what is left of it divides.
    for size in mesh.sizes:
        compute.append([c for c in batches if space.problem.limits[c] % (parts[c] * size) == 0])
        for batch in compute[-1]:
            parts[batch] *= size
    # On one device nothing is split, and that is data-parallel all the same.
    return compute if any(compute) or mesh.sizes == (1,) else None


def _data_parallel(level: StorageLevel) -> Callable[[Space, Mesh], Sequence[Point]]:
    def points(space: Space, mesh: Mesh) -> Sequence[Point]:
        compute = _batch_axes(space, mesh)
        if compute is None:
            return ()
        return (space.point(mesh, compute, [level] * len(mesh.sizes)),)

    return points


def _feature_axes(mesh: Mesh) -> Sequence[int]:
    """The axes that may take the features, most minor first.

    A mesh's order is where its axes lie on the hardware, so a role does not follow from the place.
    """
    if _MODEL_AXIS in mesh.names:
        return (mesh.names.index(_MODEL_AXIS),)
    return range(len(mesh.sizes) - 1, -1, -1)


def feature_classes(space: Space, size: int) -> tuple[int, ...]:
    """Megatron's choice on one axis: the largest features that do not meet, but for the residual.

    The class that runs through the whole model (the residual stream) is left whole, as is the
    batch.
    """
    chosen: list[int] = []
    # Splitting the residual stream would leave a partial sum after nearly every matmul.
    left_out = {space.residual, *space.activations, *space.regional}
    for group_class in space.candidates:
        fits = space.problem.limits[group_class] % size == 0
        meets = any(space.meet(group_class, other) for other in chosen)
        if group_class not in left_out and fits and not meets:
            chosen.append(group_class)
    return tuple(chosen)


def _with_sequence(space: Space, mesh: Mesh) -> Sequence[Point]:
    """Megatron, with what no feature splits on its axis split by its sequences.

    An image's positions are no sequence: its convolutions read their neighbours.
    """
    if space.convolved:
        return ()
    points = (_sequences_beside(space, mesh, axis) for axis in _feature_axes(mesh))
    return tuple(point for point in points if point is not None)


def _sequences_beside(space: Space, mesh: Mesh, axis: int) -> Point | None:
    point = _megatron_on(space, mesh, axis)
    batches, size = space.batches, mesh.sizes[axis]
    sequences = [
        c for c in space.activations if space.problem.limits[c] % size == 0 and c not in batches
    ]
    if point is None or not sequences:
        return None
    compute = [list(classes) for classes in point.compute]
    # After the features: a sequence has the axis only where no feature stands.
    compute[axis] += sequences
    return space.point(mesh, compute)


def _expert_parallel(space: Space, mesh: Mesh) -> Sequence[Point]:
    """The batch everywhere, but on one axis around the experts' weights the experts."""
    compute = _batch_axes(space, mesh)
    if compute is None:
        return ()
    points = []
    for axis in _feature_axes(mesh):
        size = mesh.sizes[axis]
        regional = [c for c in space.regional if c not in space.problem.outer_parts]
        experts = [c for c in regional if space.problem.limits[c] % size == 0]
        if experts:
            # Experts before the batch: around their weights tokens are exchanged, and all else
            # stays data-parallel.
            mixed = [*compute[:axis], [*experts, *compute[axis]], *compute[axis + 1 :]]
            points.append(space.point(mesh, mixed))
    return tuple(points)


def _one_weird_trick(space: Space, mesh: Mesh) -> Sequence[Point]:
    """On every axis the batch in the convolutions, the features in the fully connected layers."""
    compute = _batch_axes(space, mesh)
    convolved = space.convolved
    if compute is None or not convolved:
        return ()
    features = [
        [c for c in feature_classes(space, size) if c not in convolved] for size in mesh.sizes
    ]
    if not any(features):
        return ()
    # A class that several axes split must divide by all of them: each class on the first axis that
    # fits.
    taken: set[int] = set()
    for axis, classes in enumerate(features):
        features[axis] = [c for c in classes if c not in taken]
        taken.update(features[axis])
    point = space.point(mesh, [[*f, *b] for f, b in zip(features, compute, strict=True)])
    return (point,) if space.is_valid(point) else ()


def _megatron(space: Space, mesh: Mesh) -> Sequence[Point]:
    points = (_megatron_on(space, mesh, axis) for axis in _feature_axes(mesh))
    return tuple(point for point in points if point is not None)


def _megatron_on(space: Space, mesh: Mesh, axis: int) -> Point | None:
    """Features on one axis, the batch on the others; None if either does not fit."""
    features = feature_classes(space, mesh.sizes[axis])
    if not features:
        return None
    # The batch goes over the mesh without the features' axis.
    others = Mesh(
        mesh.names[:axis] + mesh.names[axis + 1 :], mesh.sizes[:axis] + mesh.sizes[axis + 1 :]
    )
    compute = _batch_axes(space, others) if others.sizes else []
    if compute is None:
        return None
    point = space.point(mesh, [*compute[:axis], features, *compute[axis:]])
    return point if space.is_valid(point) else None


PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("data-parallel", _data_parallel(StorageLevel.REPLICATED)),
        Preset("zero-1", _data_parallel(StorageLevel.OPTIMIZER)),
        Preset("zero-3", _data_parallel(StorageLevel.FULL)),
        Preset("megatron", _megatron),
        Preset("sequence-parallel", _with_sequence),
        Preset("expert-parallel", _expert_parallel),
        Preset("one-weird-trick", _one_weird_trick),
    )
}


_STATE = (Role.PARAMETER, Role.OPTIMIZER)


def imposed_point(space: Space, mesh: Mesh) -> Point:
    """The point on one mesh; nothing split if nothing is imposed."""
    builder = _ImposedPoint(space, mesh)
    for value, role, spec in _in_order(space):
        for dim, axes in enumerate(spec):
            for name in axes or ():
                axis = mesh.names.index(name)
                # An axis of one device splits nothing, whatever the code says of it.
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
        # Gradients and updates follow their parameters.
        if problem.storage.side[value] == Side.NONE:
            yield value, None, spec
    for role in _STATE:
        yield from (given for given in inputs if given[1] is role)


class _ImposedPoint:
    def __init__(self, space: Space, mesh: Mesh) -> None:
        self._space, self._mesh = space, mesh
        self._compute: list[set[int]] = [set() for _ in mesh.sizes]
        self._levels = [[StorageLevel.REPLICATED] * len(space.leaves) for _ in mesh.sizes]

    def split(self, value: int, role: Role | None, dim: int, axis: int) -> None:
        """Split one dimension of a value along an axis, if that is possible."""
        own = self._space.problem.compute_classes(value)[dim]
        # A parameter that the code splits along the batch's axis is what people write for ZeRO:
        # stored so, and gathered for each use.
        has_batch = self._space.problem.batch_class in self._compute[axis]
        is_state = role in _STATE
        if own in self._compute[axis] or (not (is_state and has_batch) and self._enters(own, axis)):
            self._compute[axis].add(own)
        elif is_state:
            level = StorageLevel.FULL if role is Role.PARAMETER else StorageLevel.OPTIMIZER
            stored = self._space.problem.storage_classes(value)[dim]
            for number, leaf in enumerate(self._space.leaves):
                if stored in (*leaf.parameter_side, *leaf.optimizer_side):
                    # A leaf class stands for several inputs: the one that is stored split furthest
                    # decides.
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
