"""Measured products: what is read from half of the measurements beside the other half."""

from hypothesis import given, strategies as st
import numpy as np
import pytest

from automap.topology import get_topology
from automap.topology.measured.products import measured_products, measured_types
from scripts.measured_gpus import USED, product_errors, read_products


TABLES = [(device, dtype) for device in ("h100", "b200") for dtype in ("bf16", "f32", "f8")]


@pytest.mark.parametrize("table", TABLES)
def test_the_half_that_was_left_out_is_met(table):
    errors = np.abs(product_errors()[table])
    assert len(errors) > 150
    assert np.median(errors) < 0.10
    assert np.mean(errors < 0.40) > 0.97


def test_what_was_measured_is_read_back():
    for row in read_products(USED / "products.csv"):
        sizes = np.array([[row.batch, row.m, row.n, row.k]])
        read = measured_products(row.device, row.dtype).predict(sizes)[0]
        assert read == pytest.approx(row.seconds, rel=1e-6)


@given(
    table=st.sampled_from(TABLES),
    sizes=st.lists(st.integers(1, 1 << 17), min_size=4, max_size=4),
    axis=st.integers(0, 3),
)
def test_far_beyond_the_grid_seconds_grow_with_the_work(table, sizes, axis):
    products = measured_products(*table)
    larger = [*sizes]
    larger[axis] *= 1 << 10
    one, many = products.predict(np.array([sizes, larger]))
    assert 0 < 0.8 * one < many
    # A product of one row or more is never slower than a thousand times its thousandth.
    assert many < one * (1 << 10) * 8


def test_types_of_the_same_units_share_a_measurement():
    assert measured_products("h100", "f16") == measured_products("h100", "bf16")
    assert "f8e5m2" in measured_types("b200")


def test_other_gpus_have_no_measurements():
    assert measured_types("v100") == ()


@pytest.mark.parametrize(("device", "dtype"), TABLES)
def test_the_rooflines_are_those_of_the_catalogue(device, dtype):
    rates = measured_products(device, dtype).rates
    gpu = get_topology(f"8x{device}").device
    own = "f8e4m3fn" if dtype == "f8" else dtype
    assert rates.flops_per_s == pytest.approx(gpu.peak_flops_per_s(own), rel=0.01)
    assert rates.memory_bytes_per_s == gpu.hbm_bytes_per_s
