"""The machine that operators are placed on: devices, and a link for each ordered pair of them.

    device d           does one task at a time; seconds of work take seconds / speed[d]
    link (a, b)        a device of its own (FlexFlow, section 5.1): one transfer at a time, which
                       takes latency_seconds[a, b] + bytes / bytes_per_s[a, b]

Of a topology's levels, the outermost in which two devices differ decides their bandwidth, and each
level they differ in adds its latency, once per hop along rings and lines
                                                                          -> in: `device_network`
"""

from dataclasses import dataclass

import numpy as np

from automap.errors import InputError
from automap.topology.model import Level, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNetwork:
    """Devices 0 .. P-1.

    `bytes_per_s`, `latency_seconds` are float64 [P, P] from the row's to the column's device (the
    diagonal is of no meaning), `speed` float64 [P] is relative to the device that operators were
    timed on. Raises `InputError` for other shapes, and for numbers out of range.
    """

    bytes_per_s: np.ndarray
    latency_seconds: np.ndarray
    speed: np.ndarray

    def __post_init__(self) -> None:
        """Check the arrays."""
        count = len(self.speed)
        links = ~np.eye(count, dtype=bool)
        for name in ("bytes_per_s", "latency_seconds"):
            shape = getattr(self, name).shape
            if shape != (count, count):
                raise InputError(
                    f"machine: {name} of shape {shape}; allowed: {(count, count)}, from and to "
                    f"each of the {count} devices that `speed` lists"
                )
        for name, numbers, least in (
            ("speed", self.speed, "over 0"),
            ("bytes_per_s", self.bytes_per_s[links], "over 0"),
            ("latency_seconds", self.latency_seconds[links], "from 0"),
        ):
            is_low = numbers < 0 if least == "from 0" else numbers <= 0
            if not np.isfinite(numbers).all() or is_low.any():
                raise InputError(f"machine: {name} out of range; allowed: finite numbers {least}")

    @property
    def n_devices(self) -> int:
        """P."""
        return len(self.speed)


def device_network(topology: Topology) -> DeviceNetwork:
    """The devices of a topology, all of one speed, and what transfers between them take."""
    devices = np.arange(topology.device_count)
    bytes_per_s = np.full((len(devices), len(devices)), np.inf)
    latency_seconds = np.zeros_like(bytes_per_s)
    for level in topology.levels:
        # Mixed radix, innermost level first: `devices` is what is left for the levels outside.
        place, devices = devices % level.size, devices // level.size
        hops = _hops(level, place)
        differ = hops > 0
        # A later, outer level overwrites what an inner one has said of the pair.
        bytes_per_s[differ] = _link_bytes_per_s(level)
        latency_seconds += hops * level.latency_seconds
    np.fill_diagonal(bytes_per_s, 1.0)
    return DeviceNetwork(
        bytes_per_s=bytes_per_s,
        latency_seconds=latency_seconds,
        speed=np.ones(topology.device_count),
    )


def first_devices(network: DeviceNetwork, count: int) -> DeviceNetwork:
    """The machine's devices 0 .. count - 1."""
    return DeviceNetwork(
        bytes_per_s=network.bytes_per_s[:count, :count],
        latency_seconds=network.latency_seconds[:count, :count],
        speed=network.speed[:count],
    )


def _hops(level: Level, place: np.ndarray) -> np.ndarray:
    apart = np.abs(place[:, None] - place[None, :])
    match level.kind:
        case "switch":
            return (apart > 0).astype(float)
        case "ring":
            return np.minimum(apart, level.size - apart).astype(float)
        case "line":
            return apart.astype(float)


def _link_bytes_per_s(level: Level) -> float:
    """One transfer's share: a port of a switch, one of the two links of a ring or line."""
    return level.bytes_per_s / level.shared_by / (1 if level.kind == "switch" else 2)
