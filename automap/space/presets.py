"""Presets: named plans that people write by hand, as points of the space.

Each entry of `PRESETS` makes the points of its kind on one mesh, or nothing if the mesh does not
suit it: data-parallel and the ZeRO family use every axis for the batch, Megatron one axis for
features: the one called "model", whatever its place in the mesh, or each in turn if none is called
so -> in: `_feature_axes`. Sources: zero-1 and zero-3 Rajbhandari et al. 2020, megatron Shoeybi et
al. 2019, sequence-parallel Korthikanti et al. 2022, expert-parallel Lepikhin et al. 2020 (GShard),
one-weird-trick Krizhevsky 2014.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from automap.space.point import Level, Point
from automap.space.space import Space
from automap.topology.mesh import Mesh


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
    for size in mesh.sizes:
        compute.append([c for c in batches if space.problem.limits[c] % (parts[c] * size) == 0])
        for batch in compute[-1]:
            parts[batch] *= size
    return compute if any(compute) or mesh.sizes == (1,) else None


def _data_parallel(level: Level) -> Callable[[Space, Mesh], Sequence[Point]]:
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
        experts = [c for c in space.regional if space.problem.limits[c] % size == 0]
        if experts:
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
        Preset("data-parallel", _data_parallel(Level.REPLICATED)),
        Preset("zero-1", _data_parallel(Level.OPTIMIZER)),
        Preset("zero-3", _data_parallel(Level.FULL)),
        Preset("megatron", _megatron),
        Preset("sequence-parallel", _with_sequence),
        Preset("expert-parallel", _expert_parallel),
        Preset("one-weird-trick", _one_weird_trick),
    )
}
