"""A plan's mesh on devices: real, fake, or of a machine that is not there."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from math import prod
from typing import Any, Final

import jax
from jax.experimental import topologies
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np

from automap.errors import MeshMismatchError, PlanError, TopologyError
from automap.plan.record import PlanRecord, Spec
from automap.topology import topology_from_devices


# Platforms of devices as JAX names them, where a topology has another name for it.
_PLATFORMS: Final = {"gpu": "cuda", "rocm": "cuda"}
HOST_MEMORY: Final = "pinned_host"
"""JAX's name of the memory of a host that devices can read."""


def device_mesh(plan: PlanRecord, devices: Sequence[Any] | None = None) -> Mesh:
    """The plan's mesh on `devices` (default: all of JAX's), axes of type Auto.

    Raises `MeshMismatchError` for another number of devices.
    """
    count = plan.mesh.device_count
    what = f"the plan is for {count} devices ({dict(plan.mesh.axes)})"
    given = as_many_devices(what, count, devices)
    return mesh_on(given, plan.mesh.axes, plan.mesh.devices)


def as_many_devices(what: str, count: int, devices: Sequence[Any] | None) -> list[Any]:
    """`devices` (default: all of JAX's), which have to be as many as `what`, the beginning of a
    message, says.

    Raises `MeshMismatchError` for another number, with what can be done about it.
    """
    given = list(jax.devices() if devices is None else devices)
    if len(given) == count:
        return given
    name = "local"
    # Devices that no topology is known for have no name to give.
    with suppress(TopologyError):
        name = topology_from_devices(given).name
    raise MeshMismatchError(
        f"{what}, {len(given)} are given; {_how_to_give(count)}, or plan for these with "
        f'topology="{name}"'
    )


def _how_to_give(count: int) -> str:
    there = len(jax.devices())
    if there < count:
        return f"run where there are {count}"
    return "leave out devices=" if there == count else f"give devices=jax.devices()[:{count}]"


def mesh_on(
    devices: Sequence[Any],
    axes: Sequence[tuple[str, int]],
    order: Sequence[int] | None = None,
) -> Mesh:
    """A mesh of type Auto on as many devices as its axes, (name, size), have in all.

    `order` is the number of the device at each place, row-major; None is 0, 1, 2, ... The chips of
    a TPU slice are numbered by their coordinates, other devices as they stand.
    """
    given, count = list(devices), prod(size for _, size in axes)
    if len(given) != count:
        raise MeshMismatchError(
            f"a mesh of {count} devices ({dict(axes)}) cannot be laid on {len(given)}; give as "
            "many devices as the plan is for"
        )
    if hasattr(given[0], "coords"):
        # The planner numbers a TPU slice row-major over its coordinates, last dimension fastest.
        given.sort(key=lambda d: (*d.coords, getattr(d, "core_on_chip", 0)))
    if order is not None:
        given = [given[number] for number in order]
    # Auto: the plan says shardings, and the partitioner does the rest.
    names, sizes = tuple(name for name, _ in axes), tuple(size for _, size in axes)
    return Mesh(np.array(given).reshape(sizes), names, axis_types=(AxisType.Auto,) * len(names))


def platform_name(device: Any) -> str:
    """The platform of a device as topologies name it."""
    name: str = device.platform
    return _PLATFORMS.get(name, name)


def slice_devices(name: str, device_count: int, **described: Any) -> Sequence[Any]:
    """The devices of a TPU slice that is not there; `described` is as for JAX's topologies."""
    devices = _described(name, **described)
    if len(devices) != device_count:
        # A v4 is described by its cores unless both are asked for as one device, as on machines.
        devices = _described(name, chip_config_name="megacore", **described)
    return devices


def _described(name: str, **described: Any) -> Sequence[Any]:
    return topologies.get_topology_desc(platform="tpu", topology_name=name, **described).devices


def on_own_slices(
    name: str, devices: Sequence[Any], groups: Collection[Sequence[int]]
) -> Sequence[Any]:
    """`devices` of a TPU slice with those of each group, numbers of `devices`, replaced by those of
    a slice of the group's own; a group whose chips fill no box of equal hosts, or that has one of a
    chip's two devices, stays where it is.

    A program of a group has links to no other chips. The TPU compiler refuses sums over all n
    devices of a part of a slice, unless JAX numbers them within n of the first.
    """
    replaced = list(devices)
    for group in groups:
        own = _own_slice(name, devices, [devices[number] for number in group])
        for number, device in zip(group, own, strict=True):
            replaced[number] = device
    return replaced


def _own_slice(name: str, devices: Sequence[Any], group: Sequence[Any]) -> Sequence[Any]:
    places = np.array([device.coords for device in group])
    # The chips of one host, as far as they are in the group.
    beside = [d.coords for d in group if d.process_index == group[0].process_index]
    sides, host = np.ptp(places, axis=0) + 1, np.ptp(beside, axis=0) + 1
    chips, hosts = {tuple(d.coords) for d in group}, {d.process_index for d in group}
    is_box = len(chips) == prod(sides) and len(hosts) * prod(host) == prod(sides)
    are_whole = sum(tuple(d.coords) in chips for d in devices) == len(group)
    if not is_box or not are_whole or (sides % host).any():
        return group
    generation, _, whole = name.partition(":")
    dims = "x".join(str(side) for side in sides[: whole.count("x") + 1])
    own = slice_devices(f"{generation}:{dims}", len(group), chips_per_host_bounds=host.tolist())
    by_place = {(*d.coords, d.core_on_chip): d for d in own}
    first = places.min(axis=0)
    return [by_place[*np.subtract(d.coords, first).tolist(), d.core_on_chip] for d in group]


def named_shardings(
    mesh: Mesh | AbstractMesh, specs: Sequence[Spec], hosted: Collection[int]
) -> list[NamedSharding]:
    """Shardings of a plan's inputs or outputs; those of numbers in `hosted` are in host memory."""
    return [
        NamedSharding(
            mesh, PartitionSpec(*spec), memory_kind=HOST_MEMORY if number in hosted else None
        )
        for number, spec in enumerate(specs)
    ]


def check_has_host_memory(devices: Sequence[Any]) -> None:
    """Raise `PlanError` for devices that have no memory of their host's."""
    kinds = [each.kind for each in devices[0].addressable_memories()]
    if HOST_MEMORY not in kinds:
        raise PlanError(
            f"levers.offload: the plan keeps state in the memory {HOST_MEMORY!r}, {devices[0]} has "
            f"{', '.join(kinds) or 'no memories that JAX names'}; plan again with "
            "--levers accumulate,remat"
        )
