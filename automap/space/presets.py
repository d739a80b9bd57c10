"""Presets: named plans that people write by hand, as points of the space.

Each entry of `PRESETS` makes the points of its kind on one mesh, or nothing if the mesh does not suit it:
data-parallel and the ZeRO family use every axis for the batch, Megatron the last axis for features.
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
    left_out = {space.residual, space.problem.batch_class}
    for group_class in space.candidates:
        fits = space.problem.limits[group_class] % size == 0
        meets = any(space.excludes(group_class, other) for other in chosen)
        if group_class not in left_out and fits and not meets:
            chosen.append(group_class)
    return tuple(chosen)


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
    )
}


def get_preset(name: str) -> Preset:
    """The preset called `name`; an `InputError` lists them."""
    if name not in PRESETS:
        raise InputError(f"unknown preset {name!r}; allowed: {', '.join(PRESETS)}")
    return PRESETS[name]
