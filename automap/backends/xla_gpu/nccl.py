"""NCCL's table of algorithms and protocols: each collective takes the fastest row for its size.

What LL, LL128 and Simple are, and what the columns mean, is said in `automap.backends.protocols`.

Source: NCCL, src/graph/tuning.cc at commit 01afd20a (baseLat, hwLat and the refinements of busBw).
That LL128 needs NVLink, and that LL's steps over PCIe take 1.0 us, is left out.
"""

from typing import Final

from automap.backends.protocols import Algorithm, Protocol


def _protocol(
    algorithm: Algorithm,
    name: str,
    *,
    start_us: float,
    host_us: float,
    network_us: float,
    bandwidth_fraction: float,
) -> Protocol:
    return Protocol(
        algorithm=algorithm,
        name=name,
        start_seconds=start_us * 1e-6,
        host_step_seconds=host_us * 1e-6,
        network_step_seconds=network_us * 1e-6,
        bandwidth_fraction=bandwidth_fraction,
    )


NCCL: Final = (
    _protocol("ring", "LL", start_us=3.6, host_us=0.47, network_us=2.7, bandwidth_fraction=1 / 4),
    _protocol("ring", "LL128", start_us=10.0, host_us=1.9, network_us=4.0, bandwidth_fraction=0.92),
    _protocol("ring", "Simple", start_us=8.4, host_us=3.4, network_us=9.6, bandwidth_fraction=1.0),
    _protocol(
        "tree", "LL", start_us=4.4, host_us=0.52, network_us=5.0, bandwidth_fraction=0.9 / 3.8
    ),
    _protocol(
        "tree", "LL128", start_us=4.4, host_us=1.2, network_us=8.5, bandwidth_fraction=0.9 * 0.915
    ),
    _protocol(
        "tree", "Simple", start_us=0.0, host_us=28.0, network_us=50.0, bandwidth_fraction=0.9
    ),
)
