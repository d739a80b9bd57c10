"""A machine of known numbers is measured without noise, and its numbers come back."""

from dataclasses import replace
from datetime import date
from itertools import product

import numpy as np
import pytest

from automap.calibrate.grid import grid_kernels, grid_transfers, level_by_axis, measurement_grid
from automap.calibrate.hardware import calibrated_topology, fit_device, fit_level, write_hardware
from automap.calibrate.machine import LocalMachine
from automap.calibrate.session import units
from automap.cost.collectives import CollectiveKind, collective_cost
from automap.cost.profile import KernelProfile, Transfer
from automap.cost.profile.signatures import StreamSignature
from automap.errors import CalibrationError, TopologyError
from automap.topology import get_topology, mesh_shapes


EMPTY = KernelProfile(device="h100", device_kind="NVIDIA H100 80GB HBM3", jax_version="0")
OPERATIONS_PER_S, BYTES_PER_S, LAUNCH = 4e14, 2.5e12, 3e-6


def roofline(signature):
    rate = BYTES_PER_S if isinstance(signature, StreamSignature) else OPERATIONS_PER_S
    return max(LAUNCH, units(signature) / rate)


def measured(depth="full"):
    signatures = grid_kernels(measurement_grid("cuda", depth))
    return EMPTY.with_times((signature, roofline(signature)) for signature in signatures)


def collective_times(topology, transfers):
    for t in transfers:
        cost = collective_cost(CollectiveKind(t.kind), topology, t.sizes, (t.axis,))
        yield t, float(cost.seconds(float(t.n_bytes)))


@pytest.mark.parametrize("depth", ["quick", "full"])
def test_a_roofline_is_recovered(depth):
    device = fit_device(measured(depth), memory_bytes=1, source=())
    for dtype in ("f32", "bf16", "f16"):
        assert device.peak_flops_per_s(dtype) == pytest.approx(OPERATIONS_PER_S)
    assert device.matmul_efficiency == pytest.approx(1)
    assert device.hbm_bytes_per_s == pytest.approx(BYTES_PER_S)
    assert device.launch_seconds == pytest.approx(LAUNCH)


def test_too_little_is_refused():
    with pytest.raises(CalibrationError, match="float32 dots.*run `automap calibrate` again"):
        fit_device(EMPTY, memory_bytes=1, source=())


@pytest.mark.parametrize("name", ["8xh100", "2x8xh100", "v5e:4x4", "v5p:2x2x4", "cpu:8"])
def test_links_are_recovered_with_outliers(name):
    topology = get_topology(name)
    true = replace(
        topology,
        levels=tuple(
            replace(
                level,
                latency_seconds=7e-6 * (i + 1),
                bytes_per_s=3e10 / (i + 1),
                shared_by=1,
                measured="",
            )
            for i, level in enumerate(topology.levels)
        ),
    )
    transfers = tuple(grid_transfers(measurement_grid("cuda", "full"), topology))
    level_by_axes = level_by_axis(topology)
    outliers = np.random.default_rng(0).random(len(transfers)) < 0.05
    for index, level in enumerate(true.levels):
        rows = EMPTY.with_times(
            (t, seconds * (20 if odd else 1))
            for (t, seconds), odd in zip(collective_times(true, transfers), outliers, strict=True)
            if level_by_axes[t.sizes, t.axis] == index
        ).transfers
        fitted = fit_level(topology, index, rows)
        assert fitted.latency_seconds == pytest.approx(level.latency_seconds, rel=0.05)
        assert fitted.bytes_per_s == pytest.approx(level.bytes_per_s, rel=0.05)


def test_every_level_is_measured_on_meshes_of_the_topology():
    for name in ("2x8xh100", "v5p:2x2x4", "cpu:8", "cpu:2", "tpu7x:2x2x2"):
        topology = get_topology(name)
        measured_levels = {level for level in level_by_axis(topology).values()}
        assert measured_levels == set(range(len(topology.levels)))
        for sizes, axis in level_by_axis(topology):
            assert sizes[axis] > 1
            assert tuple(s for s in sizes if s > 1) in mesh_shapes(topology, max_axes=8)
    assert list(grid_transfers(measurement_grid("cpu", "quick"), get_topology("cpu:1"))) == []


def test_a_hardware_file_is_read_back(tmp_path):
    topology = get_topology("8xh100")
    machine = LocalMachine((None,) * 8, "cuda", "h100", "NVIDIA H100", 80 * 10**9, topology)
    transfers = grid_transfers(measurement_grid("cuda", "quick"), topology)
    profile = measured().with_times(collective_times(topology, transfers))
    path = tmp_path / "hardware.toml"
    calibrated = calibrated_topology(machine, profile, date(2026, 1, 2))
    write_hardware(str(path), calibrated)
    assert get_topology(str(path)) == calibrated
    assert "2026-01-02, jax 0, NVIDIA H100, 8 working" in calibrated.device.source[0].note
    assert calibrated.levels[0].source[0].document == "automap calibrate"
    profile.check_suits(calibrated)


def test_levels_that_were_not_measured_keep_their_nominal_numbers(tmp_path):
    topology = get_topology("8xh100")
    machine = LocalMachine((None,) * 8, "cuda", "h100", "NVIDIA H100", 80 * 10**9, topology)
    assert calibrated_topology(machine, measured(), date.today()).levels == topology.levels
    with pytest.raises(CalibrationError, match="hardware file .*cannot be written"):
        write_hardware(str(tmp_path / "none" / "hardware.toml"), topology)


def test_fits_reject_meshes_of_other_machines():
    row = EMPTY.with_times([(Transfer(kind="all-reduce", sizes=(3,), axis=0, n_bytes=8), 1.0)])
    with pytest.raises(TopologyError):
        fit_level(get_topology("8xh100"), 0, row.transfers)


def test_the_grids_of_all_platforms_hold_what_a_hardware_file_needs():
    for platform, depth in product(("cpu", "cuda", "tpu"), ("quick", "full")):
        signatures = list(grid_kernels(measurement_grid(platform, depth)))
        assert len(set(signatures)) == len(signatures)
        profile = EMPTY.with_times((s, roofline(s)) for s in signatures)
        assert fit_device(profile, memory_bytes=1, source=()).launch_seconds == LAUNCH
