"""A machine as a graph: devices of any kinds, hubs, and the links between them (FlexFlow's device
topology).

    device   computes; has a kind (`Device`) and the number of its host; it also passes messages on
    hub      passes messages on and does not compute: a PCIe switch, a root complex, a network's
             switch
    link     joins two of these; carries `bytes_per_s` in each direction at once, each way on its
             own, and adds `latency_seconds`
    medium   what links share: links of one medium divide its bytes per second. A link that names no
             medium is one by itself. A host's network card that eight GPUs use is eight links of
             one medium; a PCIe switch with one slot to the host is a hub and one link.

Which links a message takes, and how fast it is, is in `automap.topology.routes`; files are read by
`automap.topology.toml_file`.

Every regular `Topology` has a graph, irregular machines are graphs only. Device numbers stay, each
level becomes links. With p the devices below a level of size n, s = `shared_by`, b =
`bytes_per_s`, h = `latency_seconds` -> in: `topology_graph`

    switch  a hub for each group of p n devices; every device has a link of b and h / 2 to it
    line    a link of b / 2 and h between devices d and d + p (b counts both neighbours' links)
    ring    the same, and from the last place to the first; a ring of two has one link of b

The links of s neighbouring devices at the same place of a level are one medium: the GPUs of a host
on its network card, the dies of a chip on its outer links. Hosts are the devices below the first
level that reaches the network.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import prod
from typing import Any, Final, get_args

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from automap.errors import TopologyError
from automap.topology import checks
from automap.topology.model import (
    MAX_DEVICES,
    Device,
    Level,
    Platform,
    Source,
    Topology,
    device_from,
    device_to_dict,
    row_from,
)


# Routes keep every pair of devices: 512 devices are a quarter of a million rows.
MAX_GRAPH_DEVICES: Final = 512
# A file may ask for no more, so that a typing error does not fill the memory.
_MOST: Final = {"devices": MAX_GRAPH_DEVICES, "hubs": 4096, "links": 16384}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A device in its place: a name of its own, its kind, and the number of its host."""

    name: str
    device: Device
    host: int = 0

    def __post_init__(self) -> None:
        """Raise `TopologyError` for a field out of range."""
        checks.check_text("name", self.name)
        checks.check_integer("host", self.host, low=0, high=MAX_DEVICES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Joins two nodes (devices or hubs, by name); rates are of one direction.

    `medium` is "" for a link that shares nothing.
    """

    name: str
    ends: tuple[str, str]
    bytes_per_s: float
    latency_seconds: float
    medium: str = ""
    source: tuple[Source, ...] = ()

    def __post_init__(self) -> None:
        """Raise `TopologyError` for a field out of range."""
        checks.check_text("name", self.name)
        if len(self.ends) != 2 or self.ends[0] == self.ends[1]:
            raise checks.refuse("ends", list(self.ends), "the names of two different nodes")
        checks.check_positive("bytes_per_s", self.bytes_per_s)
        checks.check_not_negative("latency_seconds", self.latency_seconds)
        if not isinstance(self.medium, str):
            raise checks.refuse("medium", self.medium, "a name that several links share")

    @property
    def shared_medium(self) -> str:
        """The name of what its bytes per second belong to."""
        return self.medium or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Devices, hubs and links. Device numbers are places in `devices`."""

    name: str
    platform: Platform
    devices: tuple[Node, ...]
    links: tuple[Link, ...]
    hubs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise `TopologyError` for what is out of range, unknown, named twice or not joined."""
        checks.check_text("name", self.name)
        checks.check_choice("platform", self.platform, get_args(Platform))
        for field, most in _MOST.items():
            if len(getattr(self, field)) > most:
                raise checks.refuse(field, len(getattr(self, field)), f"at most {most}")
        if not self.devices:
            raise checks.refuse("devices", [], "at least one")
        for hub in self.hubs:
            checks.check_text("hubs", hub)
        _check_once("devices and hubs", self.node_names)
        _check_once("kinds", [kind.name for kind in self.kinds])
        _check_once("links", [link.name for link in self.links])
        self._check_ends()
        self._check_media()
        self._check_joined()

    def to_dict(self) -> dict[str, Any]:
        """JSON values only, read back by `from_dict`; each kind of device is written once."""
        return {
            "name": self.name,
            "platform": self.platform,
            "kinds": {kind.name: device_to_dict(kind) for kind in self.kinds},
            "devices": [
                {"name": node.name, "device": node.device.name, "host": node.host}
                for node in self.devices
            ],
            "hubs": list(self.hubs),
            "links": [
                row | {"ends": list(row["ends"]), "source": list(row["source"])}
                for row in map(asdict, self.links)
            ],
        }

    @classmethod
    def from_dict(cls, data: object) -> "Graph":
        """Rebuild from `to_dict`'s form; `kinds` holds a table for every kind that devices name.

        Raises `TopologyError` that starts with the field's path, as `links[0].bytes_per_s`.
        """
        table = checks.check_keys(
            data, required=("name", "platform", "kinds", "devices", "links"), optional=("hubs",)
        )
        if not isinstance(table["kinds"], dict):
            raise checks.refuse("kinds", table["kinds"], "a table of tables")
        kinds: dict[str, Device] = {}
        for name, row in table["kinds"].items():
            with checks.within(f"kinds.{name}"):
                kinds[name] = device_from(row)
        # Counted before any row is checked: a file with a million links is refused at once.
        rows = {field: checks.check_list(field, table.get(field, ())) for field in _MOST}
        for field, most in _MOST.items():
            if len(rows[field]) > most:
                raise checks.refuse(field, len(rows[field]), f"at most {most}")
        devices, links = [], []
        for place, row in enumerate(rows["devices"]):
            with checks.within(f"devices[{place}]"):
                devices.append(_node_from(row, kinds))
        for place, row in enumerate(rows["links"]):
            with checks.within(f"links[{place}]"):
                links.append(_link_from(row))
        return cls(
            name=table["name"],
            platform=table["platform"],
            devices=tuple(devices),
            links=tuple(links),
            hubs=tuple(rows["hubs"]),
        )

    @property
    def device_count(self) -> int:
        """The number of devices."""
        return len(self.devices)

    @property
    def node_names(self) -> tuple[str, ...]:
        """Devices, then hubs: a node's number is its place here."""
        return (*(node.name for node in self.devices), *self.hubs)

    @property
    def kinds(self) -> tuple[Device, ...]:
        """The kinds of device, each once, in the order of the devices."""
        return tuple(dict.fromkeys(node.device for node in self.devices))

    def _check_ends(self) -> None:
        known = set(self.node_names)
        for place, link in enumerate(self.links):
            for end in link.ends:
                if end not in known:
                    few = ", ".join(self.node_names[:8])
                    more = ", ..." if len(known) > 8 else ""
                    allowed = f"the name of a device or hub: {few}{more}"
                    raise checks.refuse(f"links[{place}].ends", end, allowed)

    def _check_media(self) -> None:
        rates: dict[str, float] = {}
        for place, link in enumerate(self.links):
            rate = rates.setdefault(link.shared_medium, link.bytes_per_s)
            # The medium has one rate, which its links divide; two would contradict each other.
            if rate != link.bytes_per_s:
                allowed = f"{rate:g}, as every link of the medium {link.shared_medium!r}"
                raise checks.refuse(f"links[{place}].bytes_per_s", link.bytes_per_s, allowed)

    def _check_joined(self) -> None:
        number = {name: place for place, name in enumerate(self.node_names)}
        ends = np.array([[number[end] for end in link.ends] for link in self.links], np.int64)
        ends = ends.reshape(-1, 2)
        shape = (len(number), len(number))
        joined = coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=shape)
        # Hubs that join nothing may stand alone; devices that cannot talk are no machine.
        _, part = connected_components(joined, directed=False)
        for place in range(1, self.device_count):
            if part[place] != part[0]:
                raise TopologyError(
                    f"links: no way from {self.devices[0].name!r} to {self.devices[place].name!r}; "
                    "allowed: links that join all devices, directly or over hubs"
                )


def topology_graph(topology: Topology) -> Graph:
    """The same machine as a graph; raises `TopologyError` above `MAX_GRAPH_DEVICES` devices."""
    if topology.device_count > MAX_GRAPH_DEVICES:
        raise TopologyError(
            f"graph of {topology.name}: got {topology.device_count} devices; allowed: at most "
            f"{MAX_GRAPH_DEVICES}, as routes are kept for every pair; use a smaller topology"
        )
    hubs: list[str] = []
    links: list[Link] = []
    below = 1  # p, the devices in one place of the level
    for level in topology.levels:
        if level.kind == "switch":
            groups = topology.device_count // (below * level.size)
            hubs += [_hub(level, group) for group in range(groups)]
            links += _spokes(topology, level, below)
        else:
            links += _chain(topology, level, below)
        below *= level.size
    size = _host_size(topology)
    return Graph(
        name=topology.name,
        platform=topology.platform,
        devices=tuple(
            Node(name=_device(topology, number), device=topology.device, host=number // size)
            for number in range(topology.device_count)
        ),
        hubs=tuple(hubs),
        links=tuple(links),
    )


def _host_size(topology: Topology) -> int:
    sizes = []
    for level in topology.levels:
        if level.reach == "network":
            break
        sizes.append(level.size)
    return prod(sizes)


def _spokes(topology: Topology, level: Level, below: int) -> Iterator[Link]:
    for number in range(topology.device_count):
        yield Link(
            name=f"{level.name}-{number}",
            ends=(_device(topology, number), _hub(level, number // (below * level.size))),
            bytes_per_s=level.bytes_per_s,
            # A message crosses two spokes, to the hub and from it: together one hop.
            latency_seconds=level.latency_seconds / 2,
            medium=_medium(level, number),
            source=level.source,
        )


def _chain(topology: Topology, level: Level, below: int) -> Iterator[Link]:
    # The two links of a ring of two join the same devices: here they are one of twice the rate.
    is_double = level.kind == "ring" and level.size == 2
    for number in range(topology.device_count):
        place = number // below % level.size
        is_last = place == level.size - 1
        if is_last and (level.kind == "line" or is_double):
            continue
        following = number - place * below if is_last else number + below
        yield Link(
            name=f"{level.name}-{number}",
            ends=(_device(topology, number), _device(topology, following)),
            bytes_per_s=level.bytes_per_s / (1 if is_double else 2),
            latency_seconds=level.latency_seconds,
            medium=_medium(level, number),
            source=level.source,
        )


def _device(topology: Topology, number: int) -> str:
    return f"{topology.device.name}:{number}"


def _hub(level: Level, group: int) -> str:
    return f"{level.name}-switch:{group}"


def _medium(level: Level, number: int) -> str:
    return f"{level.name}-port:{number // level.shared_by}" if level.shared_by > 1 else ""


def _node_from(row: object, kinds: dict[str, Device]) -> Node:
    table = checks.check_keys(row, required=("name", "device"), optional=("host",))
    kind = table["device"]
    if not isinstance(kind, str) or kind not in kinds:
        known = f"one of the kinds {', '.join(kinds)}" if kinds else "a name in `kinds`"
        raise checks.refuse("device", kind, f"{known}, or in a file a device of the catalogue")
    return Node(name=table["name"], device=kinds[kind], host=table.get("host", 0))


def _link_from(row: object) -> Link:
    if isinstance(row, dict) and "ends" in row:
        ends = checks.check_list("ends", row["ends"])
        for end in ends:
            checks.check_text("ends", end)
        row = row | {"ends": tuple(ends)}
    return row_from(Link, row)


def _check_once(field: str, names: list[str] | tuple[str, ...]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise checks.refuse(field, twice[0], "names of which each is used once")
