"""The graph of a regular topology: device numbers stay, each level becomes links.

With p the devices below a level of size n, s = `shared_by`, b = `bytes_per_s`, h =
`latency_seconds`:

    switch  a hub for each group of p n devices; every device has a link of b and h / 2 to it
    line    a link of b / 2 and h between devices d and d + p (b counts both neighbours' links)
    ring    the same, and from the last place to the first; a ring of two has one link of b

The links of s neighbouring devices at the same place of a level are one medium: the GPUs of a host
on its network card, the dies of a chip on its outer links. Hosts are the devices below the first
level that reaches the network.
"""

from collections.abc import Iterator
from math import prod

from automap.errors import TopologyError
from automap.topology.graph import MAX_GRAPH_DEVICES, Graph, Link, Node
from automap.topology.model import Level, Topology


def topology_graph(topology: Topology) -> Graph:
    """The same machine as a graph; raises `TopologyError` above `MAX_GRAPH_DEVICES` devices."""
    if topology.device_count > MAX_GRAPH_DEVICES:
        raise TopologyError(
            f"graph of {topology.name}: got {topology.device_count} devices; allowed: at most "
            f"{MAX_GRAPH_DEVICES}, as routes are kept for every pair; use a smaller topology"
        )
    hubs: list[str] = []
    links: list[Link] = []
    below = 1
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
            latency_seconds=level.latency_seconds / 2,
            medium=_medium(level, number),
            source=level.source,
        )


def _chain(topology: Topology, level: Level, below: int) -> Iterator[Link]:
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
