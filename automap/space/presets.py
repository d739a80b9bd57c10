"""Presets: named plans that people write by hand, as points of the space.

Each entry of `PRESETS` makes the points of its kind on one mesh, or nothing if the mesh does not suit it:
data-parallel and the ZeRO family use every axis for the batch, Megatron the last axis for features.  Sources:
zero-1 and zero-3 Rajbhandari et al. 2020, megatron Shoeybi et al. 2019, sequence-parallel Korthikanti et al.
2022, expert-parallel Lepikhin et al. 2020 (GShard), one-weird-trick Krizhevsky 2014.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from automap.errors import InputError
from automap.space.point import Level, Mesh, Point
from automap.space.space import Space


@dataclass(frozen=True, slots=True)
class Preset:
    """A named family of points; `summary` is one line for help texts."""

    name: str
    summary: str
    points: Callable[[Space, Mesh], Sequence[Point]]


def _batch_axes(space: Space, mesh: Mesh) -> list[list[int]] | None:
    """The batch on as many leading axes as its size allows; None if on none."""
    batch = space.problem.batch_class
    if batch is None or batch not in space.candidates:
        return None
    compute: list[list[int]] = []
    parts = 1
    for size in mesh.sizes:
        fits = space.problem.limits[batch] % (parts * size) == 0
        parts *= size if fits else 1
        compute.append([batch] if fits else [])
    return compute if any(compute) or mesh.sizes == (1,) else None


def _data_parallel(level: Level) -> Callable[[Space, Mesh], Sequence[Point]]:
    def points(space: Space, mesh: Mesh) -> Sequence[Point]:
        compute = _batch_axes(space, mesh)
        if compute is None:
            return ()
        return (space.point(mesh, compute, [level] * len(mesh.sizes)),)

    return points


def feature_classes(space: Space, size: int) -> tuple[int, ...]:
    """Megatron's choice on one axis: the largest features that do not meet, but for the residual.

    The class that runs through the whole model (the residual stream) is left whole, as is the batch.
    """
    chosen: list[int] = []
    left_out = {space.residual, *space.activations, *space.regional}
    for group_class in space.candidates:
        fits = space.problem.limits[group_class] % size == 0
        meets = any(space.excludes(group_class, other) for other in chosen)
        if group_class not in left_out and fits and not meets:
            chosen.append(group_class)
    return tuple(chosen)


def _with_sequence(space: Space, mesh: Mesh) -> Sequence[Point]:
    """Megatron, with what no feature splits on the last axis split by its sequences.

    An image's positions are no sequence: its convolutions read their neighbours.
    """
    if space.convolved:
        return ()
    for point in _megatron(space, mesh):
        features, batch = point.compute[-1], space.problem.batch_class
        sequences = [
            c
            for c in space.activations
            if space.problem.limits[c] % mesh.sizes[-1] == 0 and c != batch
        ]
        if sequences:
            return (space.point(mesh, [*point.compute[:-1], [*features, *sequences]]),)
    return ()


def _expert_parallel(space: Space, mesh: Mesh) -> Sequence[Point]:
    """The batch everywhere, but on the last axis around the experts' weights the experts."""
    compute = _batch_axes(space, mesh)
    experts = [c for c in space.regional if space.problem.limits[c] % mesh.sizes[-1] == 0]
    if compute is None or not experts:
        return ()
    return (space.point(mesh, [*compute[:-1], [*experts, *compute[-1]]]),)


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
    # A class that several axes split must divide by all of them: each class on the first axis that fits.
    taken: set[int] = set()
    for axis, classes in enumerate(features):
        features[axis] = [c for c in classes if c not in taken]
        taken.update(features[axis])
    point = space.point(mesh, [[*f, *b] for f, b in zip(features, compute, strict=True)])
    return (point,) if space.is_valid(point) else ()


def _megatron(space: Space, mesh: Mesh) -> Sequence[Point]:
    features = feature_classes(space, mesh.sizes[-1])
    if not features:
        return ()
    outer = Mesh(mesh.names[:-1], mesh.sizes[:-1])
    compute = _batch_axes(space, outer) if outer.sizes else []
    if compute is None:
        return ()
    point = space.point(mesh, [*compute, features])
    return (point,) if space.is_valid(point) else ()


PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            "data-parallel",
            "the batch is split, everything else is copied",
            _data_parallel(Level.REPLICATED),
        ),
        Preset(
            "zero-1",
            "data-parallel, and each device keeps a part of the optimizer state",
            _data_parallel(Level.OPTIMIZER),
        ),
        Preset(
            "zero-3",
            "data-parallel, and each device keeps a part of parameters and optimizer state (FSDP)",
            _data_parallel(Level.FULL),
        ),
        Preset(
            "megatron",
            "the batch on the outer axes, attention heads, feed-forward and vocabulary on the last",
            _megatron,
        ),
        Preset(
            "sequence-parallel",
            "megatron, and on its last axis the sequence wherever no feature is split",
            _with_sequence,
        ),
        Preset(
            "expert-parallel",
            "data-parallel, and on the last axis tokens move to the devices of their experts",
            _expert_parallel,
        ),
        Preset(
            "one-weird-trick",
            "the batch in the convolutions, the features in the fully connected layers, on every axis",
            _one_weird_trick,
        ),
    )
}


def get_preset(name: str) -> Preset:
    """The preset called `name`; an `InputError` lists them."""
    if name not in PRESETS:
        raise InputError(f"unknown preset {name!r}; allowed: {', '.join(PRESETS)}")
    return PRESETS[name]
