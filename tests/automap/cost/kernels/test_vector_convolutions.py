"""Convolutions in types that a GPU has no matrix units for, in closed form, split, and as the
compiler's calls have them.
"""

from dataclasses import replace
import math

import jax
from jax import lax
import pytest

from automap.backends import backend_for
from automap.cost.kernels.convolutions import LEAST_WINOGRAD_FLOPS
from automap.cost.kernels.roofline import Roofline
from automap.topology import get_graph, get_topology
from automap.topology.gpu_devices import (
    MULTIPROCESSORS,
    PROCESSOR_CORES,
    core_count,
    has_matrix_units,
)
from automap.verify.gpu_calls import planned_seconds
from hlo_tools.jax_compat import text_to_proto
from hlo_tools.read.proto import decode_module
from tests.automap.cost.kernels.plain import FAST_MEMORY, FLOPS_PER_S, evaluator, machine, whole


LIBRARY = backend_for("cuda").convolution_numbers
GAP_SECONDS = backend_for("cuda").launch_gap_seconds
K80 = MULTIPROCESSORS["k80"]
ON_VECTORS = {"flops_per_s": (("f32", FLOPS_PER_S),)}
IMAGES, SIDE, FEATURES = 128, 28, 256
# With a border of one, as the windows below leave no padding.
DENSE = ((IMAGES, SIDE + 2, SIDE + 2, FEATURES), (3, 3, FEATURES, FEATURES))
TILES = IMAGES * (SIDE // 4) ** 2


def _seconds(step, *shapes, device_name="k80", **changed):
    """Of the convolutions of a step on one device, longest first."""
    topology = machine("8xk80", **{**FAST_MEMORY, **ON_VECTORS, **changed})
    topology = replace(topology, device=replace(topology.device, name=device_name))
    args = tuple(jax.ShapeDtypeStruct(shape, "float32") for shape in shapes)

    def run(state, batch):
        return state, step(*state) + batch

    cost, space = evaluator(run, (args, jax.ShapeDtypeStruct((), "float32")), topology)
    seconds = cost.price_point(whole(space)).kernel_seconds
    least = Roofline(cost.tables.kernels, topology).least_seconds(1)
    rows = cost.tables.kernels.convolutions.kernels
    assert (least[rows] <= seconds[rows]).all()
    return sorted((float(seconds[row]) - GAP_SECONDS for row in rows), reverse=True)


def _convolved(x, w, stride=1):
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, w, (stride, stride), "VALID", dimension_numbers=numbers)


def _gradient(x, w):
    return jax.grad(lambda w: _convolved(x, w).sum() ** 2)(w)


def _late(summed):
    return 1 + LIBRARY.vector_narrow_sum / summed


def test_features_and_taps_are_one_sum_in_waves_of_whole_tiles():
    # 4 x 15 x 15 places are 7.03 tiles of 128, 160 results 2.5 of 64: 24 tiles, two for each core.
    (found,) = _seconds(lambda x, w: _convolved(x, w, stride=2), (4, 31, 31, 96), (3, 3, 96, 160))
    assert math.ceil(4 * 15 * 15 / 128) * math.ceil(160 / 64) == 24
    flops = 2 * K80 * 128 * 64 * 2 * (9 * 96) * _late(9 * 96)
    assert found == pytest.approx(flops / LIBRARY.vector_share / FLOPS_PER_S)


def test_three_features_cost_what_they_and_their_taps_do():
    # The first layer of a network, of 13 times so many tiles as fill the cores.
    (found,) = _seconds(lambda x, w: _convolved(x, w, stride=2), (K80, 133, 133, 3), (7, 7, 3, 64))
    flops = 2 * (K80 * 64 * 64) * (49 * 3) * 64 * _late(49 * 3)
    assert found == pytest.approx(flops / LIBRARY.vector_share / FLOPS_PER_S)


def test_three_by_three_taps_take_the_products_of_winograd():
    (found,) = _seconds(_convolved, *DENSE)
    flops = 36 * 2 * TILES * FEATURES**2 * _late(FEATURES)
    assert found == pytest.approx(flops / FLOPS_PER_S)
    implicit = 2 * IMAGES * SIDE**2 * 9 * FEATURES**2 * _late(9 * FEATURES)
    assert found < LEAST_WINOGRAD_FLOPS * 1.6 * implicit / FLOPS_PER_S
    # Parts of tiles count whole: 13 x 13 places are 4 x 4 tiles as 16 x 16 are.
    small, large = (
        _seconds(_convolved, (IMAGES, side + 2, side + 2, FEATURES), DENSE[1])[0]
        for side in (13, 16)
    )
    assert small == pytest.approx(large)


def test_winograd_reads_and_writes_its_tiles():
    numbers = 2 * FEATURES * 36 * TILES + 36 * FEATURES**2
    once = 2 * FEATURES * IMAGES * SIDE**2
    flops = 36 * 2 * TILES * FEATURES**2 * _late(FEATURES)
    # A rate at which all of it takes as long as the products, and they are still the faster way.
    rate = 4 * (once + numbers) / (flops / FLOPS_PER_S)
    (found,) = _seconds(_convolved, *DENSE, hbm_bytes_per_s=rate)
    assert found == pytest.approx(2 * flops / FLOPS_PER_S)
    # At a thousandth of it the implicit product is, which memory bounds then.
    (slow,) = _seconds(_convolved, *DENSE, hbm_bytes_per_s=rate / 1000)
    moved = math.prod(DENSE[0]) + math.prod(DENSE[1]) + once / 2
    assert slow == pytest.approx(4 * moved / (rate / 1000))


@pytest.mark.parametrize("stride", [1, 2])
def test_a_filter_of_five_or_a_stride_of_two_is_a_product(stride):
    taps = 5 if stride == 1 else 3
    side = SIDE + taps - 1 if stride == 1 else 2 * SIDE + 1
    (found,) = _seconds(
        lambda x, w: _convolved(x, w, stride=stride),
        (13 * 8, side, side, FEATURES),
        (taps, taps, FEATURES, FEATURES),
    )
    summed = taps**2 * FEATURES
    assert 13 * 8 * SIDE**2 % (128 * K80) == 0
    flops = 2 * 13 * 8 * SIDE**2 * summed * FEATURES * _late(summed)
    assert found == pytest.approx(flops / LIBRARY.vector_share / FLOPS_PER_S)


def test_gradients_of_filters_split_their_sums():
    forward, of_filter = _seconds(_gradient, *DENSE)
    assert forward == pytest.approx(of_filter * _late(FEATURES))
    assert of_filter == pytest.approx(36 * 2 * TILES * FEATURES**2 / FLOPS_PER_S)


def test_a_processor_beside_gpus_has_its_own_cores_and_no_winograd():
    processor = get_graph("haswell-2xk80").devices[0].device
    assert core_count(processor) == PROCESSOR_CORES["haswell"] == 18
    (found,) = _seconds(_convolved, *DENSE, device_name="haswell")
    waves = math.ceil(IMAGES * SIDE**2 / 128 * FEATURES / 64 / 18)
    flops = waves * 18 * 128 * 64 * 2 * 9 * FEATURES * _late(9 * FEATURES)
    assert found == pytest.approx(flops / LIBRARY.vector_share / FLOPS_PER_S)


@pytest.mark.parametrize(
    ("gpu", "with_units"),
    [("k80", ""), ("p100", ""), ("titan-xp", ""), ("2080ti", "f16"), ("v100", "f16")]
    + [(name, "f32 f16 bf16") for name in ("a100", "h100", "b200")],
)
def test_types_with_matrix_units(gpu, with_units):
    device = get_topology(f"1x{gpu}").device
    found = [d for d in ("f32", "f16", "bf16") if has_matrix_units(device, d)]
    assert found == with_units.split()


@pytest.mark.parametrize("call", ["Forward", "BackwardInput", "BackwardFilter"])
def test_calls_of_the_library_take_what_the_planner_says(call):
    images, filters, results = (
        f"f32[{IMAGES},{FEATURES},{SIDE},{SIDE}]",
        f"f32[{FEATURES},{FEATURES},3,3]",
        f"f32[{IMAGES},{FEATURES},{SIDE},{SIDE}]",
    )
    given = {
        "Forward": (images, filters, results),
        "BackwardInput": (results, filters, images),
        "BackwardFilter": (images, results, filters),
    }
    left, right, made = given[call]
    text = f"""HloModule step, is_scheduled=true
ENTRY %main (x: {left}, w: {right}) -> ({made}, u8[0]) {{
  %x = {left} parameter(0)
  %w = {right} parameter(1)
  ROOT %y = ({made}, u8[0]) custom-call(%x, %w), window={{size=3x3 pad=1_1x1_1}},
    dim_labels=bf01_oi01->bf01, custom_call_target="__cudnn$conv{call}"
}}
"""
    device = replace(machine("1xp100", **ON_VECTORS).device, hbm_bytes_per_s=1e30)
    found = planned_seconds(decode_module(text_to_proto(text)), device, backend_for("cuda"))
    late = 1.0 if call == "BackwardFilter" else _late(FEATURES)
    # Sums of a filter's gradient leave out the taps on padding.
    inside = (3 * SIDE - 2) ** 2 / (3 * SIDE) ** 2 if call == "BackwardFilter" else 1.0
    flops = 36 * 2 * TILES * FEATURES**2 * late * inside
    assert found["y"] == pytest.approx(flops / FLOPS_PER_S)
