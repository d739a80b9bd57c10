"""Copies of operands to another order, in closed form: whole, split, and where there is none."""

import jax
from jax import numpy as jnp
import pytest

from automap.backends import backend_for
from automap.backends.transposes import strided_times
from tests.automap.cost.kernels.plain import (
    BYTES_PER_S,
    batch_split,
    evaluator,
    machine,
    whole,
)


GAP_SECONDS = backend_for("cuda").launch_gap_seconds
_H100 = machine("8xh100")
BATCH, LENGTH, HEADS, WIDTH = 8, 64, 4, 32
HEAD_BYTES = 4 * BATCH * LENGTH * HEADS * WIDTH


def _step(scores, query):
    """Scores of queries that a product has made, and of keys."""

    def step(state, batch):
        q = (batch["x"] @ state["q"]).reshape(BATCH, LENGTH, *query)
        return {"q": state["q"] + 1}, jnp.einsum(scores, q, batch["k"])

    def array(*dims):
        return jax.ShapeDtypeStruct(dims, "float32")

    width = WIDTH
    for size in query[:-1]:
        width *= size
    inputs = {"x": array(BATCH, LENGTH, 16), "k": array(BATCH, LENGTH, query[0], WIDTH)}
    return evaluator(step, ({"q": array(16, width)}, inputs), machine("8xh100"))


def _copy_seconds(cost, split_classes):
    """Of each kernel that copies an operand."""
    seconds = cost.price_point(split_classes).kernel_seconds
    program = cost.tables.program
    return [
        float(seconds[row])
        for kernel, row in zip(program.kernels, program.row_of_kernel, strict=True)
        if kernel.copied is not None
    ]


def test_heads_are_read_and_written_once():
    cost, space = _step("bthd,bshd->bhts", (HEADS, WIDTH))
    moved = 2 * HEAD_BYTES / BYTES_PER_S + GAP_SECONDS
    assert _copy_seconds(cost, whole(space)) == [pytest.approx(moved)]


@pytest.mark.parametrize("devices", [2, 4])
def test_a_device_copies_its_part(devices):
    cost, space = _step("bthd,bshd->bhts", (HEADS, WIDTH))
    moved = 2 * HEAD_BYTES / devices / BYTES_PER_S + GAP_SECONDS
    assert _copy_seconds(cost, batch_split(space, devices)) == [pytest.approx(moved)]


def test_a_device_with_one_example_reads_its_heads_where_they_lie():
    cost, space = _step("bthd,bshd->bhts", (HEADS, WIDTH))
    assert _copy_seconds(cost, batch_split(space, BATCH)) == [0.0]


def test_short_dimensions_that_become_innermost_take_longer():
    # Groups of two are innermost for the product, of queries and of its result, which the step
    # gives back in another order.
    groups = 2
    cost, space = _step("btkgd,bskd->bkgst", (HEADS, groups, WIDTH))
    scores = 4 * BATCH * HEADS * groups * LENGTH**2
    queries = 2 * groups * HEAD_BYTES / BYTES_PER_S * strided_times(groups)
    turned = 2 * scores / BYTES_PER_S * strided_times(groups)
    seconds = sorted(_copy_seconds(cost, whole(space)))
    assert seconds == [pytest.approx(queries + GAP_SECONDS), pytest.approx(turned + GAP_SECONDS)]


def test_the_least_that_a_copy_takes_is_nothing():
    cost, _ = _step("bthd,bshd->bhts", (HEADS, WIDTH))
    kernels = cost.tables.kernels
    least = cost.roofline.least_seconds(8)
    assert len(kernels.relaid.kernels) == 1
    assert (least[kernels.relaid.kernels] == 0).all() and (least > 0).any()


@pytest.mark.parametrize("is_written", [False, True])
def test_what_tiles_make_is_copied_into_its_stack(is_written):
    """A loop that keeps the numerators of softmaxes, which nothing else has to be written for, or
    which a product reads too, so that they are in memory.
    """
    layers, rows, width = 4, 256, 512

    def step(state, x):
        def layer(x, w):
            numerator = jnp.exp(x - x.max(-1, keepdims=True))
            weights = numerator / numerator.sum(-1, keepdims=True)
            return (numerator if is_written else weights) @ w, numerator

        return state, jax.lax.scan(layer, x, state)

    def array(*dims):
        return jax.ShapeDtypeStruct(dims, "float32")

    cost, space = evaluator(step, (array(layers, width, width), array(rows, width)), _H100)
    moved = max(2 * 4 * rows * width / BYTES_PER_S + GAP_SECONDS, _H100.device.launch_seconds)
    copies = [] if is_written else [pytest.approx(moved)]
    assert _copy_seconds(cost, whole(space)) == copies
