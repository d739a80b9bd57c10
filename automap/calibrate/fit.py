"""From measured times to the numbers of a hardware file.

peak of a type   the greatest rate of a dot; efficiency the median of large dots' shares of it   -> `fit_device`
memory           the greatest rate of large elementwise kernels, and the median's share of it
launch           the time of the smallest elementwise kernel
links            the latency h and bandwidth b of a level make the time t of each kind, mesh and size
                 (`automap.cost.collectives`); h and b minimise
                 sum log(1 + (log t - log t_measured)^2), which outliers hardly move          -> `fit_level`
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import numpy as np
import scipy  # its `optimize` is loaded at first use, which most runs never come to

from automap.cost.collectives import CollectiveKind, collective_cost
from automap.cost.profile import DotTime, KernelProfile, StreamTime, TransferTime
from automap.cost.profile.signatures import work_of
from automap.errors import CalibrationError
from automap.topology.model import Device, Level, Source, Topology


# Of the largest measured: what is called large.
_LARGE_SHARE = 1 / 8
_BANDWIDTHS_BYTES_PER_S = (1e6, 1e13)
_LATENCIES_SECONDS = (1e-9, 1.0)
# Logs that a time is off by before it counts as an outlier: coarse to find the way, then fine.
_NOISE_SCALES = (1.0, 0.1)


def fit_device(profile: KernelProfile, *, memory_bytes: int, source: tuple[Source, ...]) -> Device:
    """The device of a profile. Raises `CalibrationError` if float32 dots or streams are missing."""
    streams = [
        row
        for row in profile.streams
        if (row.signature.family, row.signature.elements) == ("elementwise", "wide float")
    ]
    dtypes = sorted({row.signature.dtype for row in profile.dots})
    if "f32" not in dtypes or len(streams) < 2:
        raise CalibrationError(
            "too little was measured for a hardware file: it needs float32 dots and elementwise "
            "kernels of two "
            "sizes; run `automap calibrate` again, it goes on where it stopped"
        )
    peaks, shares = [], []
    for dtype in dtypes:
        rates = _large_rates([row for row in profile.dots if row.signature.dtype == dtype])
        peaks.append((dtype, max(rates)))
        shares += [rate / max(rates) for rate in rates]
    bandwidths = _bandwidths(streams)
    return Device(
        name=profile.device,
        memory_bytes=memory_bytes,
        hbm_bytes_per_s=max(bandwidths),
        flops_per_s=tuple(peaks),
        matmul_efficiency=median(shares),
        memory_efficiency=median(bandwidths) / max(bandwidths),
        launch_seconds=min(streams, key=lambda row: row.signature.n_bytes).seconds,
        source=source,
    )


def _large_rates(rows: Sequence[DotTime]) -> list[float]:
    """Operations per second of the dots of one type that have much to do."""
    operations = [2.0 * np.prod(work_of(row.signature), dtype=float) for row in rows]
    least = max(operations) * _LARGE_SHARE
    return [n / row.seconds for n, row in zip(operations, rows, strict=True) if n >= least]


def _bandwidths(rows: Sequence[StreamTime]) -> list[float]:
    least = max(row.signature.n_bytes for row in rows) * _LARGE_SHARE
    return [r.signature.n_bytes / r.seconds for r in rows if r.signature.n_bytes >= least]


def fit_level(topology: Topology, index: int, rows: Sequence[TransferTime]) -> Level:
    """Level `index` with the latency and bandwidth that explain the times of its collectives.

    `rows` are collectives over axes inside this level only; their meshes are of `topology`.
    """
    measured = np.log([row.seconds for row in rows])
    n_bytes = np.array([row.signature.n_bytes for row in rows], float)

    def residuals(logs: np.ndarray) -> np.ndarray:
        fitted = _with_level(topology, index, *np.exp(logs).tolist())
        return np.log([_seconds(fitted, row) for row in rows]) - measured

    bounds = np.log([_LATENCIES_SECONDS, _BANDWIDTHS_BYTES_PER_S]).T
    # Where latency alone explains the least time, and bandwidth alone the greatest rate.
    logs = np.array([measured.min(), np.max(np.log(n_bytes) - measured)])
    for scale in _NOISE_SCALES:
        logs = scipy.optimize.least_squares(
            residuals, np.clip(logs, *bounds), bounds=bounds, loss="cauchy", f_scale=scale
        ).x
    return _with_level(topology, index, *np.exp(logs).tolist()).levels[index]


def _with_level(
    topology: Topology, index: int, latency_seconds: float, bytes_per_s: float
) -> Topology:
    level = replace(
        topology.levels[index],
        latency_seconds=latency_seconds,
        bytes_per_s=bytes_per_s,
        shared_by=1,
    )
    return replace(
        topology, levels=(*topology.levels[:index], level, *topology.levels[index + 1 :])
    )


def _seconds(topology: Topology, row: TransferTime) -> float:
    """What the cost model makes of a measured collective."""
    of = row.signature
    cost = collective_cost(CollectiveKind(of.kind), topology, of.sizes, (of.axis,))
    return float(cost.seconds(float(of.n_bytes)))
