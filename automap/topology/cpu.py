"""Fake CPU devices, `cpu:N`: the platform of tests and demonstrations, with nominal numbers."""

from typing import Final

from automap.errors import TopologyError
from automap.topology.devices import DEVICES
from automap.topology.model import Level, Source, Topology


MAX_CPU_DEVICES: Final = 4096


def cpu_devices(count: int) -> Topology:
    """N devices of one host, joined by its memory as a switch."""
    if not 1 <= count <= MAX_CPU_DEVICES:
        raise TopologyError(
            f"topology: got cpu:{count}; allowed: cpu:1 to cpu:{MAX_CPU_DEVICES}, as cpu:8"
        )
    level = Level(
        name="host",
        size=max(count, 2),  # a level has at least two places; of one device it is left out below
        kind="switch",
        bytes_per_s=5e9,
        latency_seconds=20e-6,
        source=(
            Source(
                field="all",
                document="assumption",
                note="nominal copies within one host",
            ),
        ),
    )
    return Topology(
        name=f"cpu:{count}",
        platform="cpu",
        device=DEVICES["cpu"],
        levels=(level,) if count > 1 else (),
    )
