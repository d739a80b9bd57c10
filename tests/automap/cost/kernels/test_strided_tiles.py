"""Tiles of the same row of several matrices: slow where a device has many of them."""

import jax
from jax import numpy as jnp
import pytest

from automap.backends import backend_for
from hlo_tools.analyses.strided_tiles import LARGE_TILE
from tests.automap.cost.kernels.plain import BYTES_PER_S, batch_split, evaluator, machine


BATCH, HEADS, LENGTH = 32, 2, 512
SHARE = backend_for("cuda").column_numbers.strided_tile_share


def _softmax(state, batch):
    scores = batch["x"] + state["bias"]
    weights = jnp.exp(scores - scores.max(-1, keepdims=True))
    return {"bias": state["bias"] + 1}, weights / weights.sum(-1, keepdims=True)


def _seconds(devices):
    """Of the longest kernel that has the bias, which repeats over the batch."""

    def array(*dims):
        return jax.ShapeDtypeStruct(dims, "float32")

    args = {"bias": array(HEADS, LENGTH, LENGTH)}, {"x": array(BATCH, HEADS, LENGTH, LENGTH)}
    cost, space = evaluator(_softmax, args, machine("8xh100"))
    classes = batch_split(space, devices)
    table = cost.tables.kernels
    slowest = cost.price_point(classes).kernel_seconds[table.strided.kernels].max()
    return float(slowest) - backend_for("cuda").launch_gap_seconds


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_a_block_has_the_rows_that_a_device_has(devices):
    rows = BATCH // devices * LENGTH
    share = SHARE if rows >= LARGE_TILE else 1.0
    # The longest kernel reads the scores, or writes the weights, and has all of the bias.
    moved = 4 * HEADS * LENGTH**2 * (BATCH / devices + 1)
    assert _seconds(devices) == pytest.approx(moved / BYTES_PER_S / share, rel=0.01)
