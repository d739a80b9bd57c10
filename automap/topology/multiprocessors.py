"""How many multiprocessors (SMs) a GPU of the catalogue has: what kernels that run at once share.

Counts are NVIDIA's, as CUDA reports them for the device (`automap.verify.gpu_targets` lists the
same for XLA's compiler, and a test holds both together); those of the K80 are of one of its two
GPUs (Tesla K80 board specification, BD-07317-001), those of the GB300 of a full GB300 GPU (NVIDIA
Blackwell Ultra architecture brief).
"""

from collections.abc import Mapping
from typing import Final

from automap.errors import TopologyError
from automap.topology.model import Topology


MULTIPROCESSORS: Final[Mapping[str, int]] = {
    "k80": 13,
    "p100": 56,
    "titan-xp": 30,
    "2080ti": 68,
    "v100": 80,
    "v100-32gb": 80,
    "a100-40gb": 108,
    "a100": 108,
    "h100": 132,
    "h200": 132,
    "b200": 148,
    "gb200": 152,
    "gb300": 160,
}
"""By the name of the device."""


def multiprocessors(topology: Topology) -> int:
    """SMs of a topology's device. Raises `TopologyError` for a device without a figure."""
    name = topology.device.name
    if topology.platform != "cuda" or name not in MULTIPROCESSORS:
        raise TopologyError(
            f"device {name!r}: how many multiprocessors it has is not known; allowed: "
            f"{', '.join(MULTIPROCESSORS)}, whose kernels can run at once"
        )
    return MULTIPROCESSORS[name]
