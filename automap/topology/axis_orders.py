"""The orders of a named mesh's axes on a topology, one of each kind.

A user names axes and sizes; which axis lies inside the hosts and which across is the planner's to
choose. Only orders that lie on the topology count (`automap.topology.meshes.lies_on`). Two of them
cost the same under every plan if each set of axes has equal spans in both
(`automap.topology.spans`): links of equal kind and speed with equal ranks and strides. Of such the
first stays, the order as given before all others -> in: `_footing`.

Where names mean nothing, two meshes that are equal after renaming the axes of one hold the same
plans -> in: `distinct`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, permutations
from math import prod
from typing import Final

from automap.deadline import Deadline
from automap.errors import InputError, TopologyError
from automap.topology.mesh import Mesh
from automap.topology.meshes import lies_on, mesh_shapes, nearest_shapes
from automap.topology.model import Topology
from automap.topology.spans import Span, spans


MAX_AXES: Final = 6
"""More axes have over 720 orders."""
MAX_NAMES: Final = 4
"""More axes without sizes have many thousand shapes."""


def layouts(topology: Topology, mesh: Mesh) -> tuple[Mesh, ...]:
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


def distinct(topology: Topology, meshes: Sequence[Mesh]) -> tuple[Mesh, ...]:
    """The first of all meshes that cost the same under every plan once axes are renamed."""
    first: dict[object, Mesh] = {}
    for mesh in meshes:
        renamed = [Mesh(names, mesh.sizes) for names in permutations(mesh.names)]
        if not any(_footing(topology, twin) in first for twin in renamed):
            first[_footing(topology, mesh)] = mesh
    return tuple(first.values())


def _footing(topology: Topology, mesh: Mesh) -> object:
    """What all collectives of a mesh depend on: for each set of axis names its spans, without
    names.
    """
    # In the order of names: two orders of one mesh compare set of names by set of names.
    numbered = sorted(range(len(mesh.sizes)), key=lambda axis: mesh.names[axis])
    return tuple(
        tuple(_bare(spans(topology, mesh.sizes, axes)))
        for count in range(1, len(numbered) + 1)
        for axes in combinations(numbered, count)
    )


def _bare(group: tuple[Span, ...]) -> Iterator[object]:
    """Spans with their links' properties; pieces of one level are told apart from equal levels."""
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
