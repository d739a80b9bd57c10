"""The machine that operators are placed on: devices, and media on which transfers between them go.

    device d           does one task at a time; seconds of work take seconds / speed[d]
    medium m           a device of its own (FlexFlow, section 5.1): one transfer at a time. One from
                       device a to b takes latency_seconds[a, b] + bytes / bytes_per_s[a, b] on
                       media[a, b, 0], its way out; as it comes, it takes media[a, b, 1], its way in

Of a topology's levels, the outermost in which two devices differ decides their media and bandwidth,
and each level they differ in adds its latency, once per hop along rings and lines. Devices that
share a port share its media: all that the GPUs of a host send to other hosts goes, one after the
other, over its adapter                                                   -> in: `device_network`

    switch             each port has two media, out and in
    ring, line         each port has a link to either neighbour; a transfer takes the first and the
                       last of its way, which may be one             -> in: `_neighbour_media`
"""

from dataclasses import dataclass
import math

import numpy as np

from automap.errors import InputError
from automap.topology.model import Level, Topology


# In place of a transfer's second medium where it has one alone.
NO_MEDIUM = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNetwork:
    """Devices 0 .. P-1.

    `bytes_per_s`, `latency_seconds` are float64 [P, P] from the row's to the column's device (the
    diagonal is of no meaning), `media` int64 [P, P, 2] the media in between, from 0 on, the second
    `NO_MEDIUM` where there is one alone; `speed` float64 [P] is relative to the device that
    operators were timed on. Raises `InputError` for other shapes, and for numbers out of range.
    """

    bytes_per_s: np.ndarray
    latency_seconds: np.ndarray
    media: np.ndarray
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
        if self.media.shape != (count, count, 2):
            raise InputError(
                f"machine: media of shape {self.media.shape}; allowed: {(count, count, 2)}, two of "
                "each pair of devices"
            )
        first, second = self.media[links].T
        if (first < 0).any() or (second < NO_MEDIUM).any() or (first == second).any():
            raise InputError(
                "machine: media out of range; allowed: two different ones from 0, the second "
                f"{NO_MEDIUM} for none"
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

    @property
    def n_media(self) -> int:
        """Media 0 .. n - 1."""
        return int(self.media.max(initial=NO_MEDIUM)) + 1


def device_network(topology: Topology) -> DeviceNetwork:
    """The devices of a topology, all of one speed, and what transfers between them take."""
    devices = np.arange(topology.device_count)
    bytes_per_s = np.full((len(devices), len(devices)), np.inf)
    latency_seconds = np.zeros_like(bytes_per_s)
    media = np.full((*bytes_per_s.shape, 2), NO_MEDIUM)
    n_media, stride = 0, 1
    for level in topology.levels:
        # Mixed radix, innermost level first: `devices` is what is left for the levels outside.
        place, devices = devices % level.size, devices // level.size
        hops = _hops(level, place)
        differ = hops > 0
        # A later, outer level overwrites what an inner one has said of the pair.
        bytes_per_s[differ] = _link_bytes_per_s(level)
        latency_seconds += hops * level.latency_seconds
        ways = _port_media if level.kind == "switch" else _neighbour_media
        media[differ] = (n_media + ways(level, place, stride))[differ]
        n_media += 2 * math.ceil(topology.device_count / level.shared_by)
        stride *= level.size
    media[..., 1][media[..., 0] == media[..., 1]] = NO_MEDIUM
    np.fill_diagonal(bytes_per_s, 1.0)
    return DeviceNetwork(
        bytes_per_s=bytes_per_s,
        latency_seconds=latency_seconds,
        media=media,
        speed=np.ones(topology.device_count),
    )


def first_devices(network: DeviceNetwork, count: int) -> DeviceNetwork:
    """The machine's devices 0 .. count - 1."""
    return DeviceNetwork(
        bytes_per_s=network.bytes_per_s[:count, :count],
        latency_seconds=network.latency_seconds[:count, :count],
        media=network.media[:count, :count],
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
    """A transfer's rate while it has its media: a port of a switch, one of the two links of a ring
    or line.
    """
    return level.bytes_per_s / (1 if level.kind == "switch" else 2)


def _port_media(level: Level, place: np.ndarray, stride: int) -> np.ndarray:
    """[P, P, 2] out of the source's port and into the target's."""
    count = len(place)
    port = np.arange(count) // level.shared_by
    return np.stack(np.broadcast_arrays(2 * port[:, None], 2 * port[None, :] + 1), axis=-1)


def _neighbour_media(level: Level, place: np.ndarray, stride: int) -> np.ndarray:
    """[P, P, 2] the first and the last link of a way along a ring or line, each by the port that it
    leaves and its direction.
    """
    devices = np.arange(len(place))
    ahead = (place[None, :] - place[:, None]) % level.size
    is_back = (place[None, :] < place[:, None]) if level.kind == "line" else 2 * ahead > level.size
    # The neighbour of the target that a message comes from.
    last = (place[None, :] + np.where(is_back, 1, -1)) % level.size
    neighbour = devices[None, :] + (last - place[None, :]) * stride
    out, into = devices[:, None] // level.shared_by, neighbour // level.shared_by
    return np.stack([2 * out + is_back, 2 * into + is_back], axis=-1)
