"""The machines of the papers by name: regular ones as hosts of GPUs, ColocRL's as graphs.

    flexflow-p100, flexflow-k80   FlexFlow's two clusters
    automap-a, -b, -c             Auto-MAP's (and DAPPLE's) servers of eight V100
    haswell-2xk80, -4xk80         one processor and the GPUs of one or two K80 boards, all of them
                                  devices
    gb200-nvl72, gb300-nvl72      one rack

A K80 board holds two GPUs behind a PCIe switch that has one slot to the processor's root complex
-> in: `_haswell`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from automap.topology.devices import DEVICES
from automap.topology.gpu import gpu_hosts
from automap.topology.gpu_links import HOSTS
from automap.topology.graph import Graph, Link, Node
from automap.topology.model import Source, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedMachine:
    """A machine with a name of its own; `source` says whose it is."""

    name: str
    source: Source
    build: Callable[[], Topology | Graph]


_FLEXFLOW: Final = "Jia, Zaharia, Aiken, Beyond Data and Model Parallelism (MLSys 2019)"
_AUTO_MAP: Final = "Wang et al., Auto-MAP (arXiv 2007.04069)"
_COLOCRL: Final = "Mirhoseini et al., Device Placement Optimization with RL (ICML 2017), section 4"
_BUS: Final = Source(
    field="bytes_per_s, latency_seconds",
    document="assumption",
    note="the processor's 68 GB/s of memory (Intel ARK, E5-2699 v3) bound its copies; a"
    " microsecond",
)


def _regular(name: str, hosts: int, gpus_per_host: int, gpu: str) -> Topology:
    return replace(gpu_hosts(hosts, gpus_per_host, gpu), name=name)


def _haswell(name: str, gpus: int) -> Graph:
    pair = HOSTS["k80"].inside[0]
    boards = range(gpus // 2)
    # A board's slot and its GPUs' links are all PCIe 3.0 x16, as those of the catalogue's hosts.
    slot = {"bytes_per_s": pair.bytes_per_s, "source": pair.source}
    # Two links make the step between the GPUs of a board, three or four the step to elsewhere.
    hop_seconds = pair.latency_seconds / 2
    return Graph(
        name=name,
        # That of the accelerators; the processor is beside them.
        platform="cuda",
        devices=(
            Node(name="cpu:0", device=DEVICES["haswell"]),
            *(Node(name=f"gpu:{gpu}", device=DEVICES["k80"]) for gpu in range(gpus)),
        ),
        hubs=("root", *(f"board:{board}" for board in boards)),
        links=(
            Link(
                name="memory-bus",
                ends=("cpu:0", "root"),
                bytes_per_s=68e9,
                latency_seconds=1e-6,
                source=(_BUS,),
            ),
            *(
                Link(
                    name=f"slot:{board}",
                    ends=(f"board:{board}", "root"),
                    latency_seconds=hop_seconds,
                    **slot,
                )
                for board in boards
            ),
            *(
                Link(
                    name=f"pcie:{gpu}",
                    ends=(f"gpu:{gpu}", f"board:{gpu // 2}"),
                    latency_seconds=hop_seconds,
                    **slot,
                )
                for gpu in range(gpus)
            ),
        ),
    )


def _machine(
    name: str, build: Callable[..., Topology | Graph], *args: object, document: str, note: str
) -> NamedMachine:
    source = Source(field="devices, links", document=document, note=note)
    return NamedMachine(name=name, source=source, build=partial(build, name, *args))


MACHINES: Final[dict[str, NamedMachine]] = {
    machine.name: machine
    for machine in (
        _machine(
            "flexflow-p100",
            _regular,
            4,
            4,
            "p100",
            document=_FLEXFLOW,
            note="4 nodes with 4 P100 each, NVLink inside, 100 Gb/s EDR InfiniBand between",
        ),
        _machine(
            "flexflow-k80",
            _regular,
            16,
            4,
            "k80",
            document=_FLEXFLOW,
            note="16 nodes with 4 K80 GPUs each, adjacent ones on a PCIe switch, 56 Gb/s between",
        ),
        _machine(
            "automap-a",
            _regular,
            2,
            8,
            "v100",
            document=_AUTO_MAP,
            note="config A: 2 servers with 8 V100 each, NVLink inside, 25 Gb/s Ethernet between",
        ),
        _machine(
            "automap-b",
            _regular,
            3,
            8,
            "v100",
            document=_AUTO_MAP,
            note="config B: 3 servers of the same kind",
        ),
        _machine(
            "automap-c",
            _regular,
            4,
            8,
            "v100",
            document=_AUTO_MAP,
            note="config C: 4 servers of the same kind",
        ),
        _machine(
            "haswell-2xk80",
            _haswell,
            2,
            document=_COLOCRL,
            note="one 18-core Haswell processor and 2 K80 GPUs; one board is assumed",
        ),
        _machine(
            "haswell-4xk80",
            _haswell,
            4,
            document=_COLOCRL,
            note="one 18-core Haswell processor and 4 K80 GPUs; two boards are assumed",
        ),
        _machine(
            "gb200-nvl72",
            _regular,
            1,
            72,
            "gb200",
            document="NVIDIA GB200 NVL72 datasheet",
            note="72 GPUs in one NVLink domain",
        ),
        _machine(
            "gb300-nvl72",
            _regular,
            1,
            72,
            "gb300",
            document="NVIDIA GB300 NVL72 datasheet",
            note="72 GPUs in one NVLink domain",
        ),
    )
}
"""Name -> machine, in the order shown to users."""
