"""GPU machines by name: `MxGPU` is one host of M GPUs, `NxMxGPU` is N such hosts.

GPUs of a host are joined by NVLink ("nvlink", a switch), hosts by a network ("network", a switch
without oversubscription). NVLink's bytes per second are half the datasheet's bidirectional total.
The network is a stated assumption per part: one card for the whole host on V100, one card for each
GPU from A100 on.
"""

from dataclasses import dataclass
from typing import Final, Literal

from automap.errors import TopologyError
from automap.topology.devices import DEVICES
from automap.topology.model import MAX_DEVICES, Level, Source, Topology


MAX_GPUS_PER_HOST: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A host's way out: cards of `card_bytes_per_s` in one direction, one per host or per GPU."""

    card_bytes_per_s: float
    cards: Literal["per-host", "per-gpu"]
    latency_seconds: float
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostKind:
    """The links of the hosts that carry one kind of GPU; NVLink in one direction per GPU."""

    nvlink_bytes_per_s: float
    nvlink_note: str
    network: Network


_ETHERNET_25: Final = Network(
    card_bytes_per_s=25e9 / 8,
    cards="per-host",
    latency_seconds=30e-6,
    note="25 Gb/s Ethernet per host, shared by its GPUs (the clusters of DAPPLE and Auto-MAP);"
    " TCP latency assumed",
)
_HDR_200: Final = Network(
    card_bytes_per_s=200e9 / 8,
    cards="per-gpu",
    latency_seconds=6e-6,
    note="one 200 Gb/s card per GPU (NVIDIA DGX A100 datasheet); RDMA latency assumed",
)
_NDR_400: Final = Network(
    card_bytes_per_s=400e9 / 8,
    cards="per-gpu",
    latency_seconds=6e-6,
    note="one 400 Gb/s card per GPU (NVIDIA DGX H100/H200 datasheet); RDMA latency assumed",
)
_V100_HOST: Final = HostKind(
    nvlink_bytes_per_s=150e9,
    nvlink_note="300 GB/s bidirectional (V100 datasheet); the cube mesh is taken as a switch",
    network=_ETHERNET_25,
)
_HOPPER_HOST: Final = HostKind(
    nvlink_bytes_per_s=450e9,
    nvlink_note="900 GB/s bidirectional through NVSwitch (H100 and H200 datasheets)",
    network=_NDR_400,
)

HOSTS: Final[dict[str, HostKind]] = {
    "v100": _V100_HOST,
    "v100-32gb": _V100_HOST,
    "a100": HostKind(
        nvlink_bytes_per_s=300e9,
        nvlink_note="600 GB/s bidirectional through NVSwitch (A100 datasheet)",
        network=_HDR_200,
    ),
    "h100": _HOPPER_HOST,
    "h200": _HOPPER_HOST,
}


def gpu_hosts(hosts: int, gpus_per_host: int, gpu: str) -> Topology:
    """N hosts of M GPUs; refuses counts outside the catalogue and unknown GPUs."""
    got = f"{hosts}x{gpus_per_host}x{gpu}" if hosts != 1 else f"{gpus_per_host}x{gpu}"
    if gpu not in HOSTS:
        raise TopologyError(
            f"topology: got {got!r}; allowed GPUs: {', '.join(HOSTS)}; for another one write a "
            "TOML file (see automap.topology.toml_file)"
        )
    max_hosts = MAX_DEVICES // MAX_GPUS_PER_HOST
    if not 1 <= gpus_per_host <= MAX_GPUS_PER_HOST or not 1 <= hosts <= max_hosts:
        raise TopologyError(
            f"topology: got {got!r}; allowed: 1 to {MAX_GPUS_PER_HOST} GPUs a host and 1 to "
            f"{max_hosts} hosts, as 8x{gpu} or 2x8x{gpu} (hosts x GPUs a host x GPU)"
        )
    levels = []
    if gpus_per_host > 1:
        levels.append(_nvlink(gpu, gpus_per_host))
    if hosts > 1:
        levels.append(_network(gpu, hosts, gpus_per_host))
    return Topology(name=got, platform="cuda", device=DEVICES[gpu], levels=tuple(levels))


def _nvlink(gpu: str, size: int) -> Level:
    kind = HOSTS[gpu]
    latency = Source(
        field="latency_seconds",
        document="assumption",
        note="a step of an NCCL collective",
    )
    source = Source(
        field="bytes_per_s",
        document=f"NVIDIA {gpu.upper()} datasheet",
        note=kind.nvlink_note,
    )
    return Level(
        name="nvlink",
        size=size,
        kind="switch",
        bytes_per_s=kind.nvlink_bytes_per_s,
        latency_seconds=3e-6,
        source=(source, latency),
    )


def _network(gpu: str, hosts: int, gpus_per_host: int) -> Level:
    network = HOSTS[gpu].network
    source = Source(field="bytes_per_s, latency_seconds", document="assumption", note=network.note)
    return Level(
        name="network",
        size=hosts,
        kind="switch",
        bytes_per_s=network.card_bytes_per_s,
        latency_seconds=network.latency_seconds,
        shared_by=gpus_per_host if network.cards == "per-host" else 1,
        source=(source,),
    )
