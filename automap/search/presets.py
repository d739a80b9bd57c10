"""Presets in a search: its starts, and the least that it returns.

They are priced before any strategy runs                           -> in: `price_presets`

On a machine with very many mesh shapes that alone may take longer than the budget. So the points
that promise most come first, and of many meshes those are searched whose presets are best:

    promise   more devices at work, then more parts of the batch, then fewer axes
                                                                   -> in: `_promise`
    together  those of one mesh, the mesh of the most promising point first
    time      at most `_SHARE` of what is left; one mesh is always priced, what is left out is noted
    meshes    at most `MOST_MESHES`                                -> in: `_narrow`
"""

from collections.abc import Iterator, Sequence
from typing import Final

from automap.search.context import SearchContext
from automap.space.point import Point
from automap.space.presets import PRESETS
from automap.topology.mesh import Mesh


MOST_MESHES: Final = 128
"""More than any machine of the catalogue has; a flat switch of 5,040 devices has 692."""
_SHARE: Final = 0.5


def preset_points(
    context: SearchContext, names: Sequence[str] | None = None
) -> Iterator[tuple[str, Point]]:
    """(name, point) of every preset that the search knows, or of `names`, on every mesh, as it
    stands without pins; see `Pinned.nearest`.
    """
    for name in context.presets if names is None else names:
        for mesh in context.meshes:
            context.check_time()
            for point in PRESETS[name].points(context.space, mesh):
                yield name, point


def price_presets(context: SearchContext, wanted: str | None = None) -> None:
    """Remember the best point of each preset, and narrow the meshes; the preset `wanted` comes
    first.
    """
    # Making the points takes time too: on thousands of meshes only some get as far as a price.
    until = context.deadline.share(_SHARE)
    points_by_preset: dict[str, list[Point]] = {name: [] for name in context.presets}
    asked = list[Mesh]()
    for mesh in context.meshes:
        if any(points_by_preset.values()) and until.is_over:
            break
        asked.append(mesh)
        for name, points in points_by_preset.items():
            points += PRESETS[name].points(context.space, mesh)
    every = [(name, point) for name, points in points_by_preset.items() for point in points]
    by_mesh: dict[Mesh, dict[Point, None]] = {}
    for _, point in sorted(every, key=lambda e: (e[0] != wanted, *_promise(context, e[1]))):
        by_mesh.setdefault(point.mesh, {})[point] = None
    # The point as a preset has it -> the nearest one that keeps the pins.
    priced, is_any = dict[Point, Point](), False
    for points in by_mesh.values():
        # One price at least, or the search would end without a plan.
        if is_any and until.is_over:
            break
        nearest = {point: context.pinned.nearest(point) for point in points}
        context.price_together(list(nearest.values()))
        priced |= nearest
        is_any |= any(context.estimate(point) is not None for point in nearest.values())
    # In the order of names and meshes, so that of equal points the first is remembered.
    for name, point in every:
        estimate = context.estimate(priced[point]) if point in priced else None
        if estimate is not None:
            context.remember_preset(name, priced[point], estimate)
    # A mesh that was asked and has no preset is not left out.
    done = {point.mesh for point in priced} | (set(asked) - set(by_mesh))
    left_out = len(set(context.meshes) - done)
    if left_out:
        context.notes.append(
            "time was up before the presets on meshes were all priced: on "
            f"{left_out:,} of {len(context.meshes):,} none was; a larger budget prices all"
        )
    if len(context.meshes) > MOST_MESHES:
        _narrow(context, list(priced.values()))


def _promise(context: SearchContext, point: Point) -> tuple[int, int, int]:
    """What is less for a point that promises more."""
    batch = context.space.problem.batch_class
    busy = parts = 1
    for size, classes in zip(point.mesh.sizes, point.compute, strict=True):
        # Devices along an axis that splits nothing all do the same.
        busy *= size if classes else 1
        parts *= size if batch in classes else 1
    return -busy, -parts, len(point.mesh.sizes)


def _narrow(context: SearchContext, priced: list[Point]) -> None:
    """Keep the meshes of the best of each preset, and then of the best of the points; those of none
    are the worst.
    """
    best = dict[Mesh, tuple[float, ...]]()
    for point in priced:
        estimate = context.estimate(point)
        if estimate is not None:
            key = context.objective.key(estimate)
            best[point.mesh] = min(key, best.get(point.mesh, key))
    # Keys begin with 0 (fits) or 1 (does not), so these come before and `worst` after all of them.
    best |= {preset.point.mesh: (-1.0,) for preset in context.best_per_preset.values()}
    worst = (2.0,)
    kept = sorted(context.meshes, key=lambda mesh: best.get(mesh, worst))[:MOST_MESHES]
    context.notes.append(
        f"{MOST_MESHES} of {len(context.meshes):,} mesh shapes were searched, those whose presets "
        "are best; choose "
        "others with --mesh"
    )
    context.meshes = tuple(mesh for mesh in context.meshes if mesh in set(kept))
