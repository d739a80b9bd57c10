"""How the hosts of each GPU are wired, as data: links inside a host, innermost first, and its way
out.

    bytes_per_s        one direction out of one device; half of a datasheet's bidirectional total
    latency_seconds    one step of a ring of NCCL's Simple protocol over that kind of link
    most               the most groups that one link level joins; what is left over goes to the next

The V100's and P100's cube meshes are taken as switches. Networks are switches without
oversubscription.
"""

from dataclasses import dataclass
from typing import Final, Literal

from automap.topology.model import Source


_NCCL: Final = Source(
    field="latency_seconds",
    document="https://github.com/NVIDIA/nccl/blob/01afd20a77b5804e0ecf1042509dd9d20ebf9e93/"
    "src/graph/tuning.cc",
    note="hwLat, Ring and Simple: 3.4 us over NVLink, 5.7 us over PCIe, 9.6 us over the network",
)
_MEASURED: Final = Source(
    field="measured",
    document="openxla/xla, default_collective_perf_table (CUDA plugin of jax 0.10.2)",
    note="seconds of collectives; other GPUs by the rule of automap.topology.measured.collectives",
)
_NVLINK_STEP_SECONDS: Final = 3.4e-6
_PCIE_STEP_SECONDS: Final = 5.7e-6
_NETWORK_STEP_SECONDS: Final = 9.6e-6
# A PCIe 3.0 x16 slot moves 15.75 GB/s in one direction; packets' headers leave about 12.
_PCIE_BYTES_PER_S: Final = 12e9


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLink:
    """One level of links inside a host; `shared_by` devices share one port of it."""

    name: str
    most: int
    bytes_per_s: float
    latency_seconds: float
    source: tuple[Source, ...]
    shared_by: int = 1
    measured: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A host's way out: cards of `card_bytes_per_s` in one direction, one per host or per GPU."""

    card_bytes_per_s: float
    cards: Literal["per-host", "per-gpu"]
    latency_seconds: float
    source: tuple[Source, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostKind:
    """The links of the hosts that carry one kind of GPU, innermost first, and their network."""

    inside: tuple[HostLink, ...]
    network: Network

    @property
    def max_gpus(self) -> int:
        """The GPUs of a full host."""
        # Each level joins that many groups of the one inside it.
        most = 1
        for link in self.inside:
            most *= link.most
        return most


def _nvlink(
    gb_per_s: float, document: str, note: str, *, most: int = 8, measured: str = ""
) -> HostLink:
    return HostLink(
        name="nvlink",
        most=most,
        bytes_per_s=gb_per_s * 1e9,
        latency_seconds=_NVLINK_STEP_SECONDS,
        source=(
            Source(field="bytes_per_s", document=document, note=note),
            _NCCL,
            *((_MEASURED,) if measured else ()),
        ),
        measured=measured,
    )


def _pcie(name: str, *, most: int, shared_by: int = 1, note: str) -> HostLink:
    speed = Source(
        field="bytes_per_s",
        document="assumption",
        note="12 of the 15.75 GB/s of a PCIe 3.0 x16 slot (PCI-SIG) are left for data",
    )
    wiring = Source(field="size, shared_by", document="assumption", note=note)
    return HostLink(
        name=name,
        most=most,
        bytes_per_s=_PCIE_BYTES_PER_S,
        latency_seconds=_PCIE_STEP_SECONDS,
        shared_by=shared_by,
        source=(speed, wiring, _NCCL),
    )


def _infiniband(
    gbit_per_s: float, cards: Literal["per-host", "per-gpu"], document: str, note: str
) -> Network:
    return Network(
        card_bytes_per_s=gbit_per_s * 1e9 / 8,  # bits to bytes
        cards=cards,
        latency_seconds=_NETWORK_STEP_SECONDS,
        source=(Source(field="bytes_per_s, shared_by", document=document, note=note), _NCCL),
    )


_ETHERNET_25: Final = Network(
    card_bytes_per_s=25e9 / 8,
    cards="per-host",
    latency_seconds=30e-6,
    source=(
        Source(
            field="bytes_per_s, shared_by",
            document="Wang et al., Auto-MAP (arXiv 2007.04069) and Fan et al., DAPPLE (PPoPP 2021)",
            note="25 Gb/s Ethernet between the servers; one card for all GPUs of a server is"
            " assumed",
        ),
        Source(field="latency_seconds", document="assumption", note="a step over TCP"),
    ),
)
_HOME_ETHERNET: Final = Network(
    card_bytes_per_s=10e9 / 8,
    cards="per-host",
    latency_seconds=30e-6,
    source=(
        Source(
            field="bytes_per_s, latency_seconds, shared_by",
            document="assumption",
            note="one 10 Gb/s Ethernet card a workstation, TCP",
        ),
    ),
)
_FLEXFLOW: Final = "Jia et al., Beyond Data and Model Parallelism (MLSys 2019), section 8.1"
_V100_HOST: Final = HostKind(
    inside=(_nvlink(150, "NVIDIA V100 datasheet", "300 GB/s bidirectional over six links"),),
    network=_ETHERNET_25,
)
_A100_HOST: Final = HostKind(
    inside=(
        _nvlink(
            300,
            "NVIDIA A100 datasheet",
            "600 GB/s bidirectional through NVSwitch",
            measured="nvswitch-2",
        ),
    ),
    network=_infiniband(200, "per-gpu", "NVIDIA DGX A100 datasheet", "one 200 Gb/s card a GPU"),
)
_HOPPER_HOST: Final = HostKind(
    inside=(
        _nvlink(
            450,
            "NVIDIA H100 and H200 datasheets",
            "900 GB/s bidirectional through NVSwitch",
            measured="nvswitch-3",
        ),
    ),
    network=_infiniband(
        400, "per-gpu", "NVIDIA DGX H100/H200 datasheet", "one 400 Gb/s card per GPU"
    ),
)
_PCIE_HOST: Final = HostKind(
    inside=(_pcie("pcie", most=8, note="each card in an x16 slot of its own"),),
    network=_HOME_ETHERNET,
)
_FIFTH_NVLINK: Final = "1.8 TB/s bidirectional through NVSwitch, fifth generation"


HOSTS: Final[dict[str, HostKind]] = {
    "k80": HostKind(
        inside=(
            _pcie("pcie-pair", most=2, note=f"adjacent GPUs on a PCIe switch ({_FLEXFLOW})"),
            _pcie(
                "pcie-host",
                most=4,
                shared_by=2,
                note=f"all GPUs reach the host through shared PCIe ({_FLEXFLOW}); a pair shares a"
                " slot",
            ),
        ),
        network=_infiniband(56, "per-host", _FLEXFLOW, "56 Gb/s between nodes, one card a node"),
    ),
    "p100": HostKind(
        inside=(
            _nvlink(
                60,
                "NVIDIA Tesla P100 whitepaper (WP-08019-001)",
                "20 GB/s a link; of the four links three join the GPUs of a quad, as in DGX-1",
                most=4,  # of DGX-1's eight: FlexFlow's nodes have one quad
            ),
        ),
        network=_infiniband(100, "per-host", _FLEXFLOW, "100 Gb/s EDR between nodes, one card"),
    ),
    # Workstations: no NVLink is sold for the first, and only bridges of two for the second.
    "titan-xp": _PCIE_HOST,
    "2080ti": _PCIE_HOST,
    "v100": _V100_HOST,
    "v100-32gb": _V100_HOST,
    "a100-40gb": _A100_HOST,
    "a100": _A100_HOST,
    "h100": _HOPPER_HOST,
    "h200": _HOPPER_HOST,
    "b200": HostKind(
        inside=(_nvlink(900, "NVIDIA DGX B200 datasheet", _FIFTH_NVLINK, measured="nvswitch-4"),),
        network=_infiniband(
            400, "per-gpu", "NVIDIA DGX B200 user guide", "eight single-port 400 Gb/s cards"
        ),
    ),
    "gb200": HostKind(
        inside=(
            _nvlink(
                900, "NVIDIA GB200 NVL72 datasheet", _FIFTH_NVLINK, most=72,
                measured="nvl72-gb200",
            ),
        ),
        network=_infiniband(
            400, "per-gpu", "NVIDIA DGX SuperPOD GB200 reference architecture",
            "four 400 Gb/s cards for the four GPUs of a tray",
        ),
    ),
    "gb300": HostKind(
        inside=(
            _nvlink(
                900, "NVIDIA GB300 NVL72 datasheet", _FIFTH_NVLINK, most=72,
                measured="nvl72-gb300",
            ),
        ),
        network=_infiniband(
            800, "per-gpu", "NVIDIA GB300 NVL72 datasheet",
            "72 ConnectX-8 cards of 800 Gb/s for the 72 GPUs of a rack",
        ),
    ),
}  # fmt: skip
"""GPU -> its hosts, in the order shown to users."""
