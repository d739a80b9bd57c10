"""Products whose rows are not aligned, in closed form: whole, split, read through transposes."""

import jax
from jax import numpy as jnp
import pytest

from automap.backends import backend_for
from automap.topology import get_topology
from automap.topology.measured.products import measured_products
from automap.topology.mesh import Mesh
from tests.automap.cost.kernels.plain import evaluator, only_kernel_seconds, whole


NUMBERS = backend_for("cuda").alignment_numbers
GAP_SECONDS = backend_for("cuda").launch_gap_seconds
MACHINE = get_topology("8xh100")
M, N, K = 2048, 4096, 1024


def _seconds(step, *arrays, dtype="bfloat16", topology=MACHINE, split=None):
    """Of the step's product; `split` is a dimension of the first array, over eight devices."""
    args = tuple(jax.ShapeDtypeStruct(dims, dtype) for dims in arrays)

    def run(state, batch):
        return state, step(*state) + batch

    cost, space = evaluator(run, (args, jax.ShapeDtypeStruct((), dtype)), topology)
    classes = whole(space)
    if split is not None:
        leaf = next(each for each in space.leaves if each.dims == arrays[0])
        classes = space.split_classes(space.point(Mesh(("data",), (8,)), [[leaf.compute[split]]]))
    return only_kernel_seconds(cost, classes, "dot")


def _at(share, m, n, k, dtype="bf16"):
    peak = MACHINE.device.peak_flops_per_s(dtype)
    return pytest.approx(2 * m * n * k / (share * peak) + GAP_SECONDS)


def _measured(m, n, k, dtype="bf16"):
    table = measured_products("h100", dtype)
    return pytest.approx(float(table.predict(jnp.array([[1, m, n, k]]))[0]))


def _plain(x, w):
    return x @ w


def _transposed(x, w):
    return x @ w.T


def test_aligned_rows_are_as_measured():
    assert _seconds(_plain, (M, K), (K, N)) == _measured(M, N, K)
    # Rows of 4,104 numbers of 2 bytes are a multiple of 16, of 4,100 they are not.
    assert _seconds(_plain, (M, K), (K, 4104)) == _measured(M, 4104, K)


def test_an_operand_that_is_not_aligned():
    odd = NUMBERS.operand_share_of_2_bytes
    assert _seconds(_plain, (M, K), (K, N + 1)) == _at(odd, M, N + 1, K)
    # The rows of the left side are what is summed over.
    assert _seconds(_plain, (M, K + 2), (K + 2, N)) == _at(odd, M, N, K + 2)
    words = NUMBERS.word_share_of_2_bytes
    assert _seconds(_plain, (M, K), (K, N + 2)) == _at(words, M, N + 2, K)


def _summed_over_rows(x, w):
    return x.T @ w


def _read_transposed(x, w):
    return jnp.transpose(x @ w.T)


def test_a_size_that_is_no_row_costs_nothing():
    assert _seconds(_plain, (M + 1, K), (K, N)) == _measured(M + 1, N, K)
    # Rows are M and N numbers long, and as many as are summed over.
    assert _seconds(_summed_over_rows, (K + 1, M), (K + 1, N)) == _measured(M, N, K + 1)


def test_only_the_rows_of_the_result():
    share = NUMBERS.result_share_of_2_bytes
    assert _seconds(_transposed, (M, K), (N + 1, K)) == _at(share, M, N + 1, K)


def test_a_result_that_is_read_transposed_lies_so():
    # Its rows are M numbers, whatever N is.
    assert _seconds(_read_transposed, (M, K), (N + 1, K)) == _measured(M, N + 1, K)


def test_float32():
    share = NUMBERS.operand_share_of_4_bytes
    seconds = _seconds(_plain, (M, K), (K, N + 2), dtype="float32")
    assert seconds == _at(share, M, N + 2, K, "f32")
    seconds = _seconds(_plain, (M, K), (K, N + 4), dtype="float32")
    assert seconds == _measured(M, N + 4, K, "f32")


def test_rows_that_a_plan_makes_unaligned():
    # On a device 8,008 / 8 numbers are summed over.
    share = NUMBERS.operand_share_of_2_bytes
    seconds = _seconds(_plain, (M, 8008), (8008, N), split=1)
    assert seconds == _at(share, M, N, 1001)


def test_few_results_leave_cores_idle():
    # 256 x 256 results are four tiles, of as many cores.
    least = _at(NUMBERS.operand_share_of_2_bytes, 128, 128 * 132, 1001)
    assert _seconds(_plain, (256, 1001), (1001, 256)) == least


def test_without_matrix_units_rows_count_for_nothing():
    pascal = get_topology("4xp100")
    assert _seconds(_plain, (M, K), (K, N + 1), dtype="float32", topology=pascal) == pytest.approx(
        _seconds(_plain, (M, K), (K, N), dtype="float32", topology=pascal), rel=1e-3
    )
