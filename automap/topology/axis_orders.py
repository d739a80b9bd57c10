"""The orders of a named mesh's axes on a topology, one of each kind.

A user names axes and sizes; which axis lies inside the hosts and which across is the planner's to
choose. Of all orders those are kept that lie on the topology (`automap.topology.lies_on`). Two
orders cost the same under every plan if each set of axes has equal spans in both
(`automap.topology.spans`): links of equal kind and speed with equal ranks and strides. Of such the
first is kept, the order as given before all others -> in: `_footing`.

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
from automap.topology import lies_on, mesh_shapes, nearest_shapes
from automap.topology.mesh import Mesh
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
    found: dict[object, Mesh] = {}
    for order in permutations(range(len(mesh.sizes))):
        laid = Mesh(tuple(mesh.names[i] for i in order), tuple(mesh.sizes[i] for i in order))
        if lies_on(topology, laid.sizes):
            found.setdefault(_footing(topology, laid), laid)
    if not found:
        levels = " x ".join(f"{level.size} ({level.name})" for level in topology.levels)
        raise TopologyError(
            f"mesh {_text(mesh)} lies on {topology.name} in no order of its axes: its levels, "
            "innermost "
            f"first, are {levels}, and an axis may not take an uneven part of one; "
            f"{_nearest(topology, mesh)}"
        )
    return tuple(found.values())


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
            "give their sizes "
            f"with --mesh {','.join(f'{name}=N' for name in names)}"
        )
    found: dict[object, Mesh] = {}
    for shape in mesh_shapes(topology, max_axes=len(names)):
        if found and deadline is not None and deadline.is_over:
            break
        for chosen in permutations(names, len(shape)):
            rest = tuple(name for name in names if name not in chosen)
            laid = Mesh((*chosen, *rest), (*shape, *[1] * len(rest)))
            found.setdefault(_footing(topology, laid), laid)
    return tuple(found.values())


def distinct(topology: Topology, meshes: Sequence[Mesh]) -> tuple[Mesh, ...]:
    """The first of all meshes that cost the same under every plan once axes are renamed."""
    found: dict[object, Mesh] = {}
    for mesh in meshes:
        renamed = [Mesh(names, mesh.sizes) for names in permutations(mesh.names)]
        if not any(_footing(topology, twin) in found for twin in renamed):
            found[_footing(topology, mesh)] = mesh
    return tuple(found.values())


def _footing(topology: Topology, mesh: Mesh) -> object:
    """What all collectives of a mesh depend on: for each set of axis names its spans, without
    names.
    """
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
