"""A profile -> the hardware file: a topology in TOML, each number with its source.

peak of a type   the greatest rate of a dot; efficiency the median of large dots' shares of it
memory           the greatest rate of large elementwise kernels, and the median's share of it
launch           the time of the smallest elementwise kernel           -> in: `fit_device`
links            the latency h and bandwidth b of a level make the time t of each kind, mesh and
                 size (`automap.cost.collectives`); h and b minimise
                 sum log(1 + (log t - log t_measured)^2), which outliers hardly move
                                                                       -> in: `fit_level`
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from statistics import median

import numpy as np
import scipy  # its `optimize` is loaded at first use, which most runs never come to
import tomli_w

from automap.atomic_file import write_atomically
from automap.calibrate.grid import level_by_axis
from automap.calibrate.machine import LocalMachine
from automap.cost.collectives import CollectiveKind, collective_cost
from automap.cost.profile import DotTime, KernelProfile, StreamTime, TransferTime
from automap.cost.profile.signatures import matmul_sizes
from automap.errors import CalibrationError, PlanError
from automap.topology.model import Device, Level, Source, Topology


_HEADER = """\
# A machine as `automap calibrate` measured it.
# Plan with it: automap plan TARGET --topology THIS_FILE
"""
# Of the largest measured: what is called large.
_LARGE_SHARE = 1 / 8
_BANDWIDTHS_BYTES_PER_S = (1e6, 1e13)
_LATENCIES_SECONDS = (1e-9, 1.0)
# Logs that a time is off by before it counts as an outlier: coarse to find the way, then fine.
_NOISE_SCALES = (1.0, 0.1)


def calibrated_topology(machine: LocalMachine, profile: KernelProfile, today: date) -> Topology:
    """The machine with measured numbers; a level whose collectives were not measured keeps its
    nominal ones.

    Raises `CalibrationError` if too little was measured for a device.
    """
    how = Source(
        field="all",
        document="automap calibrate",
        note=f"measured {today}, jax {profile.jax_version}, {machine.device_kind}, "
        f"{len(machine.devices)} working at the same time",
    )
    nominal = replace(machine.topology, name=f"{len(machine.devices)}x{machine.device}, calibrated")
    level_by_axes = level_by_axis(nominal)
    levels = []
    for index, level in enumerate(nominal.levels):
        rows = [
            row
            for row in profile.transfers
            if level_by_axes.get((row.signature.sizes, row.signature.axis)) == index
        ]
        levels.append(replace(fit_level(nominal, index, rows), source=(how,)) if rows else level)
    device = fit_device(profile, memory_bytes=machine.memory_bytes, source=(how,))
    return replace(nominal, device=device, levels=tuple(levels))


def write_hardware(path: str, topology: Topology) -> None:
    """Write the TOML file, whole or not at all. Raises `CalibrationError` when it cannot be
    written.
    """
    try:
        write_atomically(path, _HEADER + tomli_w.dumps(topology.to_dict()))
    except PlanError as error:
        raise CalibrationError(f"hardware file {error}") from error


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
            "kernels of two sizes; run `automap calibrate` again, it goes on where it stopped"
        )
    peaks, shares = [], []
    for dtype in dtypes:
        # The share of the peak that large dots reach, of all types together.
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
    operations = [2.0 * np.prod(matmul_sizes(row.signature), dtype=float) for row in rows]
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
    # In logs, so that a tenth off counts the same for microseconds and for milliseconds.
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
        shared_by=1,  # what a device gets was measured while all devices used the level
        measured="",  # this machine's own times take the place of the catalogue's
    )
    return replace(
        topology, levels=(*topology.levels[:index], level, *topology.levels[index + 1 :])
    )


def _seconds(topology: Topology, row: TransferTime) -> float:
    """What the cost model makes of a measured collective."""
    transfer = row.signature
    kind = CollectiveKind(transfer.kind)
    cost = collective_cost(kind, topology, transfer.sizes, (transfer.axis,))
    return float(cost.seconds(float(transfer.n_bytes)))
