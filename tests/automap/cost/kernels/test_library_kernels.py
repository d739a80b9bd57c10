"""Convolutions, sorts, top-k and sums over windows on GPUs, in closed form and split."""

import math

import jax
from jax import lax, numpy as jnp
import pytest

from automap.backends import backend_for
from automap.cost.kernels.convolutions import filter_gradient_share, forward_share
from automap.topology.gpu_devices import MULTIPROCESSORS
from automap.topology.mesh import Mesh
from tests.automap.cost.kernels.plain import FAST_MEMORY, FLOPS_PER_S, evaluator, machine, whole


CORES = backend_for("cuda").core_numbers
LIBRARY = backend_for("cuda").convolution_numbers
GAP_SECONDS = backend_for("cuda").launch_gap_seconds
H100 = MULTIPROCESSORS["h100"]


def _cost(step, *arrays, topology_name="8xh100", split=None):
    """Seconds of each kernel by its opcode, without the gap; `split` is a dimension of the first
    array, over eight devices.
    """
    args = tuple(jax.ShapeDtypeStruct(*each) for each in arrays)

    def run(state, batch):
        return state, step(*state) + batch

    batch = jax.ShapeDtypeStruct((), "float32")
    cost, space = evaluator(run, (args, batch), machine(topology_name, **FAST_MEMORY))
    classes = whole(space) if split is None else _split(space, args[0].shape, split)
    seconds = cost.price_point(classes).kernel_seconds
    program = cost.tables.program
    ops = program.problem.graph.ops
    return {
        ops[k.op].opcode: float(seconds[row]) - GAP_SECONDS
        for k, row in zip(program.kernels, program.row_of_kernel, strict=True)
    }


def _split(space, dims, dim):
    mesh = Mesh(("data",), (8,))
    leaf = next(each for each in space.leaves if each.dims == dims)
    return space.split_classes(space.point(mesh, [[leaf.compute[dim]]]))


def _on_cores(n_bytes, rows=0.0):
    per_core = n_bytes / CORES.core_bytes_per_s + rows * CORES.core_row_seconds
    return per_core / H100


ROWS, LENGTH = 512, 4096


def test_a_sort_goes_through_the_stages_of_a_network():
    # 12 doublings, so 78 stages; a number of four bytes and its place are read and written.
    each = 2 * 78 * 8 / CORES.sort_share
    cost = _cost(lambda x: jnp.sort(x, axis=1), ((ROWS, LENGTH), "float32"))
    assert cost["sort"] == pytest.approx(_on_cores(ROWS * LENGTH * each, ROWS))


def test_on_a_device_count_its_own_rows():
    whole_rows, rows = (
        _cost(lambda x: jnp.sort(x, axis=1), ((ROWS, LENGTH), "float32"), split=split)["sort"]
        for split in (None, 0)
    )
    assert rows == pytest.approx(whole_rows / 8)


def test_other_backends_sort_at_the_speed_of_memory():
    step, array = (lambda x: jnp.sort(x, axis=1)), ((ROWS, LENGTH), "float32")
    on_tpu = _cost(step, array, topology_name="v5e:2x4")["sort"]
    assert on_tpu < 1e-6 < _cost(step, array)["sort"]


def test_few_of_a_long_row_are_kept_and_many_are_sorted():
    def kept(k):
        return _cost(lambda x: lax.top_k(x, k)[0], ((ROWS, LENGTH), "float32"))["topk"]

    # 512 threads have 8 numbers each, all of which are among the 8 that they keep.
    assert kept(8) == pytest.approx(_on_cores(ROWS * LENGTH * 8 * CORES.kept_bytes))
    # 1,024 threads with 4 numbers, of which 1 + ln 4 are kept in turn.
    share = (1 + math.log(4)) / 4
    assert kept(1) == pytest.approx(_on_cores(ROWS * LENGTH * share * CORES.kept_bytes))
    sorted_whole = _on_cores(ROWS * LENGTH * 2 * 78 * 8 / CORES.sort_share, ROWS)
    assert kept(17) == pytest.approx(sorted_whole)


@pytest.mark.parametrize(("window", "read"), [(3, 3), (LENGTH, CORES.window_part)])
def test_a_window_reads_its_numbers_or_a_part_of_a_long_one(window, read):
    def step(x):
        pads = ((0, 0), (window - 1, 0))
        return lax.reduce_window(x, 0.0, lax.add, (1, window), (1, 1), pads)

    cost = _cost(step, ((ROWS, LENGTH), "float32"))
    moved = ROWS * LENGTH * read * 4 / CORES.window_share
    assert cost["reduce-window"] == pytest.approx(_on_cores(moved))


BATCH, SIDE, FEATURES, RESULTS = 64, 32, 96, 160


def _convolved(x, w):
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=numbers)


IMAGES, FILTERS = (BATCH, SIDE, SIDE, FEATURES), (3, 3, FEATURES, RESULTS)
FLOPS = 2 * BATCH * (SIDE - 2) ** 2 * 9 * FEATURES * RESULTS


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_convolution_reaches_what_its_features_let_it(dtype):
    share = forward_share(FEATURES, RESULTS, jnp.dtype(dtype).itemsize, LIBRARY)
    cost = _cost(_convolved, (IMAGES, dtype), (FILTERS, dtype))
    assert cost["convolution"] == pytest.approx(FLOPS / (share * FLOPS_PER_S))


def test_gradients_of_what_is_read_and_of_the_filter():
    def backward(which):
        def step(x, w):
            return jax.grad(lambda *xw: _convolved(*xw).sum() ** 2, which)(x, w)

        args = (IMAGES, "float32"), (FILTERS, "float32")
        # The forward pass is the cheaper one of both kernels here.
        return _cost(step, *args)["convolution"]

    of_filter = FLOPS / filter_gradient_share(FEATURES, RESULTS, LIBRARY) / FLOPS_PER_S
    of_images = FLOPS / forward_share(RESULTS, FEATURES, 4, LIBRARY) / FLOPS_PER_S
    assert backward(1) == pytest.approx(of_filter)
    assert backward(0) == pytest.approx(of_images)


def test_one_tile_of_results_keeps_one_core_busy():
    # A product of 64 x 64 results with a long sum, written as a convolution.
    x, w = (8, 64, 64, 256), (57, 57, 256, 64)
    cost = _cost(_convolved, (x, "float32"), (w, "float32"))
    # The window has more taps than the result places: a gradient of a filter, whose sum is split.
    share = filter_gradient_share(8, 64, LIBRARY)
    flops = 2 * 8 * 64 * 8 * 8 * 57 * 57 * 256
    assert cost["convolution"] == pytest.approx(flops / (share * FLOPS_PER_S))
    small = _cost(_convolved, ((1, 10, 10, 1024), "float32"), ((3, 3, 1024, 64), "float32"))
    one_tile = 2 * 9 * 1024 * 128**2 / (FLOPS_PER_S / H100)
    assert small["convolution"] == pytest.approx(one_tile)


def test_features_that_are_split_are_fewer():
    whole_one = _cost(_convolved, (IMAGES, "float32"), (FILTERS, "float32"))["convolution"]
    split = _cost(_convolved, (IMAGES, "float32"), (FILTERS, "float32"), split=3)["convolution"]
    ratio = forward_share(FEATURES, RESULTS, 4, LIBRARY) / forward_share(
        FEATURES / 8, RESULTS, 4, LIBRARY
    )
    assert split == pytest.approx(whole_one / 8 * ratio)


@pytest.mark.parametrize(
    ("filters", "spatial", "is_slow"),
    [((4,), "H", True), ((4, 4), "HW", False)],
)
def test_features_by_themselves_are_slow_along_one_dimension_only(filters, spatial, is_slow):
    batch, places, features = 2, 64, 32
    image = (batch, *[places] * len(filters), features)

    def step(x, w):
        dims = (f"N{spatial}C", f"{spatial}IO", f"N{spatial}C")
        strides = (1,) * len(filters)
        y = lax.conv_general_dilated(
            x, w, strides, "SAME", dimension_numbers=dims, feature_group_count=features
        )
        return y.sum()

    cost = _cost(step, (image, "float32"), ((*filters, 1, features), "float32"))
    expected = _on_cores(batch * places * features * 4 * 4 / CORES.line_share)
    assert (cost["convolution"] == pytest.approx(expected)) == is_slow


@pytest.mark.parametrize(
    ("step", "shapes"),
    [
        (lambda x: lax.top_k(x, 0)[0], [(ROWS, LENGTH)]),
        (lambda x: lax.top_k(x, 3)[0], [(0, LENGTH)]),
        (lambda x: jnp.sort(x, axis=1), [(ROWS, 0)]),
        (lambda x: jnp.cumsum(x, axis=0), [(0, LENGTH)]),
        (_convolved, [(0, SIDE, SIDE, FEATURES), FILTERS]),
        (_convolved, [(ROWS, SIDE, SIDE, 0), (*FILTERS[:2], 0, FILTERS[3])]),
        (_convolved, [(ROWS, SIDE, SIDE, FEATURES), (*FILTERS[:3], 0)]),
        (lambda x, y: x @ y, [(ROWS, 0), (0, LENGTH)]),
    ],
)
def test_nothing_takes_no_time_beyond_its_kernels(step, shapes):
    cost = _cost(step, *((shape, "float32") for shape in shapes))
    assert all(0 <= seconds < 1e-3 for seconds in cost.values())
