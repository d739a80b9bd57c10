"""Rows that are computed with one number of each: what libtpu 0.0.51 gives them, closed forms."""

import jax
import jax.numpy as jnp
import pytest

from automap.backends import backend_for
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from scripts.compare_measured import predicted_alone
from tests.automap.cost.kernels.plain import evaluator


def _norm(x):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5)


def _log_sum(x):
    return jax.nn.logsumexp(x, -1)


def _gradient(function):
    return jax.grad(lambda x: jnp.sum(jnp.tanh(function(x).astype(jnp.float32))))


LONG, SHORT = (1024, 1024), (4096, 256)
# Microseconds in float32 and bfloat16 (v5e, 2026-12-01).
COMPILED = [
    (jax.nn.softmax, LONG, (42.11, 36.53)),
    (jax.nn.softmax, SHORT, (45.54, 39.95)),
    (_gradient(jax.nn.softmax), LONG, (61.88, 53.46)),
    (_gradient(jax.nn.softmax), SHORT, (68.49, 60.06)),
    (_log_sum, LONG, (29.43, 23.75)),
    (_log_sum, SHORT, (30.88, 25.21)),
    (_gradient(_log_sum), LONG, (44.38, 38.79)),
    (_gradient(_log_sum), SHORT, (47.87, 42.29)),
    (_norm, LONG, (44.03, 38.69)),
    (_norm, SHORT, (47.58, 42.37)),
    (_gradient(_norm), LONG, (78.58, 67.67)),
    (_gradient(_norm), SHORT, (87.38, 76.49)),
]


def _seconds(step, *shapes, dtype="float32"):
    arrays = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    return predicted_alone(step, arrays, get_topology("v5e:1x1")).step_seconds


@pytest.mark.parametrize(("step", "shape", "microseconds"), COMPILED)
def test_norms_and_softmaxes_take_what_the_compiler_says(step, shape, microseconds):
    for dtype, compiled in zip(("float32", "bfloat16"), microseconds):
        predicted = _seconds(step, shape, dtype=dtype) * 1e6
        assert predicted == pytest.approx(compiled, rel=0.15)


@pytest.mark.parametrize(("dtype", "at"), [("float32", 0), ("bfloat16", 1)])
def test_a_number_of_each_row_takes_its_time_for_each_row(dtype, at):
    rows, width = SHORT
    by_row = _seconds(lambda x, r: x * r[:, None], SHORT, (rows,), dtype=dtype)
    for_all = _seconds(lambda x, r: x * r, SHORT, (width,), dtype=dtype)
    each = backend_for("tpu").tile_numbers.row_statistic_seconds[at]
    # What is read of them is some 20 ns.
    assert by_row - for_all == pytest.approx(rows * each, abs=3e-8)


def test_rows_that_do_not_lie_in_lanes_take_none():
    by_row = _seconds(lambda x, r: x * r[:, None], (4096, 64), (4096,))
    for_all = _seconds(lambda x, r: x * r, (4096, 64), (64,))
    assert by_row == pytest.approx(for_all, abs=3e-8)


def test_products_are_left_out():
    def step(x, w, r):
        return (x @ w) * r[:, None]

    given = (1024, 256), (256, 1024), (1024,)
    plain = _seconds(lambda x, w, r: (x @ w) * r, *given)
    assert _seconds(step, *given) == pytest.approx(plain, abs=3e-8)


def test_a_device_spreads_the_numbers_of_its_own_rows():
    def step(x, r):
        return x * r[:, None]

    given = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((8 * 4096, 512), (8 * 4096,))]
    cost, space = evaluator(step, given, get_topology("v5e:2x4"))
    mesh = Mesh(("data",), (8,))
    splits = (space.split_classes(space.point(mesh, [(c,)])) for c in range(cost.n_classes))
    least = min(cost.evaluate(split).compute_seconds for split in splits)
    assert least == pytest.approx(_seconds(step, (4096, 512), (4096,)))
