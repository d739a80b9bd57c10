"""The devices that are measured: what JAX has, in the planner's order, and how they are joined.

The levels come from the catalogue where the devices are known, else all devices hang on one switch;
either way their numbers are replaced by measured ones. N CPU devices are fake: they are asked for
before JAX starts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
import os
from typing import Any, Final

import jax
from jax.sharding import AxisType, Mesh
import numpy as np

from automap.calibrate.transfers import axis_names
from automap.cost.profile import device_name
from automap.errors import CalibrationError, TopologyError
from automap.topology.cpu import cpu_devices
from automap.topology.local import topology_from_devices
from automap.topology.model import Platform, Topology


_PLATFORMS: Final[Mapping[str, Platform]] = {
    "cpu": "cpu",
    "gpu": "cuda",
    "cuda": "cuda",
    "tpu": "tpu",
}
"""JAX's names of platforms, and ours."""
# One process has so many accelerators at most; CPU devices are made on demand, and take memory and
# threads.
_MOST_DEVICES: Final = 512


@dataclass(frozen=True)
class LocalMachine:
    """Devices of one kind; `topology` has their levels, with nominal numbers."""

    devices: tuple[Any, ...]
    platform: Platform
    device: str
    device_kind: str
    memory_bytes: int
    topology: Topology

    def mesh(self, sizes: tuple[int, ...]) -> Mesh:
        """The devices as a mesh of these sizes, row-major, with the axes `axis_names`."""
        names = axis_names(sizes)
        devices = np.array(self.devices).reshape(sizes)
        return Mesh(devices, names, axis_types=(AxisType.Auto,) * len(names))


def find_machine(count: int | None) -> LocalMachine:
    """The machine with `count` devices, None for all. Raises `CalibrationError` if there are not so
    many.
    """
    if count is not None and not 1 <= count <= _MOST_DEVICES:
        raise CalibrationError(
            f"--device-count {count}: allowed: 1 to {_MOST_DEVICES}, and no more than JAX shows "
            "here"
        )
    # Before anything asks JAX for devices, after which their number is fixed.
    _ask_for_cpu_devices(count)
    try:
        devices = jax.devices()
    except RuntimeError as error:
        raise CalibrationError(
            f"JAX shows no devices ({error}); allowed: a machine where jax.devices() works, with "
            "no other program that holds the accelerator"
        ) from error
    if count is not None and not 1 <= count <= len(devices):
        raise CalibrationError(
            f"--device-count {count}: allowed: 1 to {len(devices)}, the devices that JAX shows here"
        )
    if jax.process_count() > 1:
        raise CalibrationError(
            f"{jax.process_count()} processes share the devices; allowed: one process: calibrate "
            "one host, and write the network between hosts in the hardware file by hand"
        )
    return _machine(_in_order(devices)[:count])


def _ask_for_cpu_devices(count: int | None) -> None:
    """Have JAX make `count` CPU devices, if it has not started yet."""
    if count is None:
        return
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        return  # it has started: what it shows is checked


def _in_order(devices: Sequence[Any]) -> list[Any]:
    """As the planner numbers them: a TPU slice row-major over its coordinates."""
    if hasattr(devices[0], "coords"):
        return sorted(devices, key=lambda d: (*d.coords, getattr(d, "core_on_chip", 0)))
    return list(devices)


def _machine(devices: Sequence[Any]) -> LocalMachine:
    kind, platform = devices[0].device_kind, _PLATFORMS.get(devices[0].platform)
    if platform is None:
        raise CalibrationError(
            f"devices of platform {devices[0].platform!r}; allowed: {', '.join(_PLATFORMS)}"
        )
    return LocalMachine(
        devices=tuple(devices),
        platform=platform,
        device=device_name(platform, kind, len(devices)),
        device_kind=kind,
        memory_bytes=_memory_bytes(devices),
        topology=_topology(devices, platform),
    )


def _memory_bytes(devices: Sequence[Any]) -> int:
    """What one device may hold: its allocator's limit, for CPU devices their share of the
    machine's.
    """
    # All devices are of one kind, so one of them tells.
    statistics = devices[0].memory_stats() or {}
    if "bytes_limit" in statistics:
        return int(statistics["bytes_limit"])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // len(devices)


def _topology(devices: Sequence[Any], platform: Platform) -> Topology:
    try:
        return topology_from_devices(devices)
    except TopologyError:
        # An unknown kind: its links are all of one level, of which only the numbers are known, by
        # measurement.
        return replace(cpu_devices(len(devices)), platform=platform)
