"""The mesh shapes that a topology makes sensible, and the orders of a named mesh's axes on it.

A mesh is laid row-major on the devices: its last axis varies fastest, so it starts at the innermost
level. With level sizes n_0 (innermost) .. n_k, a shape (a_1, ..., a_m), major to minor, is aligned
when reading it from a_m backwards and the levels from n_0 outwards

* every axis either lies inside one level (a factor of what is left of it), or
* covers whole levels (the product of one or more neighbouring n_l, none of them begun).

So an axis never takes a part of one level and a part of the next: the links it would run over have
different speeds, and the finer mesh that keeps them apart contains its plans. The shapes with at
most `max_axes` axes, each greater than 1, are returned; one device has the shape (1,)
-> in: `mesh_shapes`.

A user names axes and sizes; which axis lies inside the hosts and which across is the planner's to
choose -> in: `axis_orders`. Only orders that lie on the topology count. Two of them cost the same
under every plan if each set of axes has equal spans in both (`automap.topology.spans`): links of
equal kind and speed with equal ranks and strides. Of such the first stays, the order as given
before all others -> in: `_footing`.

Where names mean nothing, two meshes that are equal after renaming the axes of one hold the same
plans -> in: `distinct_meshes`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, combinations, pairwise, permutations
from math import isqrt, log2, prod
from operator import mul
from typing import Final

from automap.deadline import Deadline
from automap.errors import InputError, TopologyError
from automap.topology.mesh import Mesh
from automap.topology.model import Topology
from automap.topology.spans import Span, spans


MAX_AXES: Final = 6
"""More axes have over 720 orders."""
MAX_NAMES: Final = 4
"""More axes without sizes have many thousand shapes."""


def mesh_shapes(topology: Topology, *, max_axes: int = 3) -> tuple[tuple[int, ...], ...]:
    """All aligned shapes with at most `max_axes` axes, fewest axes first, then ascending."""
    if max_axes < 1:
        raise ValueError(f"max_axes: got {max_axes}; allowed: an integer >= 1")
    sizes = tuple(level.size for level in topology.levels)
    if not sizes:
        return ((1,),)
    return tuple(sorted(set(_aligned(sizes, max_axes)), key=lambda shape: (len(shape), shape)))


def lies_on(topology: Topology, shape: Sequence[int]) -> bool:
    """Whether a mesh of this shape, major to minor, has all devices and cuts no level unevenly."""
    if prod(shape) != topology.device_count:
        return False
    levels = [level.size for level in topology.levels]
    # Where axes and levels end, as numbers of devices from the innermost: aligned if each divides
    # the next, so that no axis ends inside a place of a level that it does not fill.
    boundaries = {*accumulate(reversed(shape), mul), *accumulate(levels, mul)}
    return all(outer % inner == 0 for inner, outer in pairwise(sorted(boundaries)))


def nearest_shapes(
    topology: Topology, shape: Sequence[int], *, most: int = 3
) -> tuple[tuple[int, ...], ...]:
    """The shapes that lie on the topology closest to one that does not, with no more axes than it.

    Distance is the sum over axes, both sorted, of |log2 of the quotient|. At most four axes are
    returned.
    """
    wanted, total = sorted(shape, reverse=True), topology.device_count

    def distance(other: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        # Axes that the other shape lacks count as axes of size 1.
        filled = sorted((*other, *[1] * (len(wanted) - len(other))), reverse=True)
        return sum(abs(log2(a / b)) for a, b in zip(wanted, filled, strict=True)), other

    shapes = [(total,), *_ordered_factors(total, min(len(wanted), 4))]
    return tuple(sorted((x for x in shapes if lies_on(topology, x)), key=distance)[:most])


def _aligned(sizes: tuple[int, ...], max_axes: int) -> Iterator[tuple[int, ...]]:
    """Shapes, major to minor, over levels `sizes`, innermost first, of at most `max_axes` axes."""
    if not sizes:
        yield ()
        return
    for covered in range(1, len(sizes) + 1):
        # One axis over `covered` whole levels, or several inside of the innermost one.
        minors = [(prod(sizes[:covered]),)]
        if covered == 1:
            minors += _ordered_factors(sizes[0], max_axes)
        for minor in minors:
            for major in _aligned(sizes[covered:], max_axes - len(minor)):
                if len(major) + len(minor) <= max_axes:
                    yield major + minor


def _ordered_factors(size: int, max_factors: int) -> list[tuple[int, ...]]:
    """Every way to write `size` as an ordered product of 2 to `max_factors` factors above 1."""
    if max_factors < 2:
        return []
    splits = []
    small = [low for low in range(2, isqrt(size) + 1) if size % low == 0]
    for first in sorted({*small, *(size // low for low in small)}):
        rest = size // first
        splits += [(first, rest)]
        splits += [(first, *tail) for tail in _ordered_factors(rest, max_factors - 1)]
    return splits


def axis_orders(topology: Topology, mesh: Mesh) -> tuple[Mesh, ...]:
    """The mesh in every order of its axes that lies on the topology and differs from those before.

    Raises `TopologyError` that names the nearest shapes if there is none, and for over `MAX_AXES`
    axes.
    """
    if prod(mesh.sizes) != topology.device_count:
        raise TopologyError(
            f"mesh {_text(mesh)} has {prod(mesh.sizes)} devices, {topology.name} has "
            f"{topology.device_count}; {_nearest(topology, mesh)}"
        )
    if len(mesh.sizes) > MAX_AXES:
        raise TopologyError(
            f"mesh {_text(mesh)} has {len(mesh.sizes)} axes; allowed: at most {MAX_AXES}"
        )
    meshes: dict[object, Mesh] = {}  # by what their collectives depend on
    for order in permutations(range(len(mesh.sizes))):
        ordered = Mesh(tuple(mesh.names[i] for i in order), tuple(mesh.sizes[i] for i in order))
        if lies_on(topology, ordered.sizes):
            # The order as given is the first permutation, so it is never replaced by a twin.
            meshes.setdefault(_footing(topology, ordered), ordered)
    if not meshes:
        levels = " x ".join(f"{level.size} ({level.name})" for level in topology.levels)
        raise TopologyError(
            f"mesh {_text(mesh)} lies on {topology.name} in no order of its axes: its levels, "
            f"innermost first, are {levels}, and an axis may not take an uneven part of one; "
            f"{_nearest(topology, mesh)}"
        )
    return tuple(meshes.values())


def named_shapes(
    topology: Topology, names: tuple[str, ...], deadline: Deadline | None = None
) -> tuple[Mesh, ...]:
    """Every sensible shape with the axes called `names` in every order; axes may be of one device.

    Those of the fewest axes come first; at the deadline the rest, but for the first, is left out.
    Raises `InputError` for over `MAX_NAMES` names.
    """
    if len(names) > MAX_NAMES:
        raise InputError(
            f"the axes {', '.join(names)} have no sizes; allowed: at most {MAX_NAMES} such axes; "
            f"give their sizes with --mesh {','.join(f'{name}=N' for name in names)}"
        )
    meshes: dict[object, Mesh] = {}
    for shape in mesh_shapes(topology, max_axes=len(names)):
        if meshes and deadline is not None and deadline.is_over:
            break
        for chosen in permutations(names, len(shape)):
            # The user's code may name every axis, so those that split nothing are there as well.
            rest = tuple(name for name in names if name not in chosen)
            mesh = Mesh((*chosen, *rest), (*shape, *[1] * len(rest)))
            meshes.setdefault(_footing(topology, mesh), mesh)
    return tuple(meshes.values())


def distinct_meshes(topology: Topology, meshes: Sequence[Mesh]) -> tuple[Mesh, ...]:
    """The first of all meshes that cost the same under every plan once axes are renamed."""
    first: dict[object, Mesh] = {}
    for mesh in meshes:
        # Renamed ones have the same groups, in another order.
        known: dict[tuple[int, ...], tuple[object, ...]] = {}
        renamed = [Mesh(names, mesh.sizes) for names in permutations(mesh.names)]
        if not any(_footing(topology, twin, known) in first for twin in renamed):
            first[_footing(topology, mesh, known)] = mesh
    return tuple(first.values())


def _footing(
    topology: Topology,
    mesh: Mesh,
    known: dict[tuple[int, ...], tuple[object, ...]] | None = None,
) -> object:
    """What all collectives of a mesh depend on: for each set of axis names its spans, without
    names; `known` are the spans of axes of meshes of these sizes.
    """
    # In the order of names: two orders of one mesh compare set of names by set of names.
    numbered = sorted(range(len(mesh.sizes)), key=lambda axis: mesh.names[axis])
    known = {} if known is None else known
    every = [c for n in range(1, len(numbered) + 1) for c in combinations(numbered, n)]
    for axes in every:
        if axes not in known:
            known[axes] = tuple(_bare(spans(topology, mesh.sizes, axes)))
    return tuple(known[axes] for axes in every)


def _bare(group: tuple[Span, ...]) -> Iterator[object]:
    """Spans with their links' properties; two pieces of one level differ from two equal levels."""
    places: dict[str, int] = {}
    for span in group:
        place = places.setdefault(span.level.name, len(places))
        # On a switch every rank is one hop from every other.
        stride = 1 if span.kind == "switch" else span.stride
        yield place, replace(span, stride=stride, level=replace(span.level, name="-", source=()))


def _nearest(topology: Topology, mesh: Mesh) -> str:
    shapes = nearest_shapes(topology, mesh.sizes)
    return "nearest that do: " + ", ".join("x".join(map(str, shape)) for shape in shapes)


def _text(mesh: Mesh) -> str:
    return ",".join(f"{name}={size}" for name, size in mesh.axes)
