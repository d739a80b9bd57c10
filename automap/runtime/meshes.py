"""A plan's mesh on devices: real, fake, or of a machine that is not there."""

from collections.abc import Sequence
from math import prod
from typing import Any

import jax
from jax.sharding import AxisType, Mesh
import numpy as np

from automap.errors import MeshMismatchError
from automap.plan.record import PlanRecord


def device_mesh(plan: PlanRecord, devices: Sequence[Any] | None = None) -> Mesh:
    """The plan's mesh on `devices` (default: all of JAX's), axes of type Auto.

    Raises `MeshMismatchError` for another number of devices.
    """
    given = list(jax.devices() if devices is None else devices)
    if len(given) != plan.mesh.device_count:
        raise MeshMismatchError(
            f"the plan is for {plan.mesh.device_count} devices ({dict(plan.mesh.axes)}), "
            f"{len(given)} are given; pass devices=, or plan again for this topology"
        )
    return mesh_on(given, plan.mesh.axes, plan.mesh.devices)


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
