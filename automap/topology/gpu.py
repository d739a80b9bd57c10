"""GPU machines by name: `MxGPU` is one host of M GPUs, `NxMxGPU` is N such hosts.

The M GPUs of a host fill its link levels (`automap.topology.gpu_links`) from the inside out -> in:
`_inside`. Hosts are joined by a network, a switch -> in: `_network`.
"""

from collections.abc import Iterator
from math import gcd

from automap.errors import TopologyError
from automap.topology.devices import DEVICES
from automap.topology.gpu_links import HOSTS
from automap.topology.model import MAX_DEVICES, Level, Topology


def gpu_hosts(hosts: int, gpus_per_host: int, gpu: str) -> Topology:
    """N hosts of M GPUs; refuses counts outside the catalogue and unknown GPUs."""
    got = f"{hosts}x{gpus_per_host}x{gpu}" if hosts != 1 else f"{gpus_per_host}x{gpu}"
    if gpu not in HOSTS:
        raise TopologyError(
            f"topology: got {got!r}; allowed GPUs: {', '.join(HOSTS)}; for another one write a "
            'TOML file, as the page "Plan for a cluster that is not there" says '
            "(docs/how-to/no-cluster.md)"
        )
    kind = HOSTS[gpu]
    max_hosts = MAX_DEVICES // kind.max_gpus
    if not 1 <= gpus_per_host <= kind.max_gpus or not 1 <= hosts <= max_hosts:
        raise TopologyError(
            f"topology: got {got!r}; allowed: 1 to {kind.max_gpus} GPUs a host and 1 to "
            f"{max_hosts} hosts, as {kind.max_gpus}x{gpu} or 2x{kind.max_gpus}x{gpu} "
            "(hosts x GPUs a host x GPU)"
        )
    levels = (*_inside(gpu, gpus_per_host, got), *_network(gpu, hosts, gpus_per_host))
    return Topology(name=got, platform="cuda", device=DEVICES[gpu], levels=levels)


def _inside(gpu: str, count: int, got: str) -> Iterator[Level]:
    """The levels of a host with `count` GPUs."""
    below, links = 1, HOSTS[gpu].inside  # `below`: GPUs in one place of the level
    for place, link in enumerate(links):
        left = count // below
        is_last = place == len(links) - 1
        # Levels are filled evenly: of six GPUs on pairs, three pairs; an odd one fits on none.
        size = left if is_last else gcd(left, link.most)
        if size > link.most or (size == 1 and left > 1):
            raise TopologyError(
                f"topology: got {got!r}; allowed: GPUs a host that fill its links, "
                f"{' x '.join(f'up to {each.most} on {each.name}' for each in links)}"
            )
        if size > 1:
            yield Level(
                name=link.name,
                size=size,
                kind="switch",
                bytes_per_s=link.bytes_per_s,
                latency_seconds=link.latency_seconds,
                # A host with fewer GPUs has fewer of them on each port.
                shared_by=min(link.shared_by, below),
                measured=link.measured,
                source=link.source,
            )
        below *= size


def _network(gpu: str, hosts: int, gpus_per_host: int) -> Iterator[Level]:
    network = HOSTS[gpu].network
    if hosts > 1:
        yield Level(
            name="network",
            size=hosts,
            kind="switch",
            bytes_per_s=network.card_bytes_per_s,
            latency_seconds=network.latency_seconds,
            shared_by=gpus_per_host if network.cards == "per-host" else 1,
            reach="network",
            source=network.source,
        )
