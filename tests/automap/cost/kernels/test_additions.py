"""Additions that meet, in closed form: whole and split."""

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from automap.backends import backend_for
from automap.cost.kernels.additions import Addition, Additions, LocalAdditions, least_seconds
from automap.cost.shardings import Shardings
from automap.topology import get_topology
from automap.topology.gpu_devices import MULTIPROCESSORS
from automap.topology.mesh import Mesh
from tests.automap.cost.kernels.plain import evaluator, only_kernel_seconds, whole


NUMBERS = backend_for("cuda").addition_numbers
GAP_SECONDS = backend_for("cuda").launch_gap_seconds
MACHINE = get_topology("8xh100")
THREADS = 2048 * MULTIPROCESSORS["h100"]
ROWS, WIDTH, UPDATES = 32, 8, 2**18


def _seconds(dtype, width=WIDTH, *, is_split=False):
    """Of updates of a table, which may be split over eight devices."""

    def step(state, ids):
        table, updates = state
        return table.at[ids].add(updates), updates + 1

    args = (
        tuple(jax.ShapeDtypeStruct((n, width), dtype) for n in (ROWS, UPDATES)),
        jax.ShapeDtypeStruct((UPDATES,), jnp.int32),
    )
    cost, space = evaluator(step, args, MACHINE)
    classes = whole(space)
    if is_split:
        leaf = next(each for each in space.leaves if each.dims == (UPDATES, width))
        classes = space.split_classes(space.point(Mesh(("data",), (8,)), [[leaf.compute[0]]]))
    return only_kernel_seconds(cost, classes, "scatter") - GAP_SECONDS


def _swapped(updates, table, row=WIDTH):
    """Two numbers are in a word."""
    a = NUMBERS.swap_lane_seconds if row < 32 else NUMBERS.wide_swap_lane_seconds
    each = max(NUMBERS.swap_round_seconds, min(updates, THREADS) * a)
    return pytest.approx(updates * NUMBERS.swap_seconds + updates / (table / 2) * each)


def test_short_floats_are_swapped_round_by_round():
    assert _seconds("bfloat16") == _swapped(UPDATES * WIDTH, ROWS * WIDTH)
    assert _seconds("float16", width=64) == _swapped(UPDATES * 64, ROWS * 64, row=64)


def test_memory_adds_floats_of_four_bytes_sector_by_sector():
    sectors = ROWS * WIDTH * 4 / NUMBERS.sector_bytes
    expected = UPDATES * WIDTH / sectors * NUMBERS.sector_seconds
    assert _seconds("float32") == pytest.approx(expected)


def test_fewer_updates_meet_where_they_are_split():
    assert _seconds("bfloat16", is_split=True) == _swapped(UPDATES / 8 * WIDTH, ROWS * WIDTH)


def test_a_device_with_some_of_the_rows_ignores_the_others():
    rows = 4096
    table = Additions.build(
        [
            Addition(
                updates=(UPDATES, WIDTH, 1),
                table=(1, WIDTH, rows),
                row=(1, WIDTH, 1),
                indexed=(1, 1, rows),
                item_bytes=2,
            )
        ]
    )
    # One axis of eight devices splits the last factor.
    split = Shardings(
        sizes=(8,),
        dim_of_axis=np.array([[-1]]),
        factor_of_axis=np.array([[2]]),
        parts_of_value=np.array([1]),
        parts_of_op=np.array([8]),
        is_late_axis=np.array([[False]]),
    )
    (seconds,) = table.seconds(np.array([0]), split, NUMBERS, MACHINE.device)
    assert seconds == _swapped(UPDATES / 8 * WIDTH, rows / 8 * WIDTH)


def test_a_word_is_the_least_that_additions_meet_at():
    few = LocalAdditions(*(np.array([size]) for size in (16, 1, 1, 2)))
    assert least_seconds(few, NUMBERS, MACHINE.device) == pytest.approx(
        16 * (NUMBERS.swap_seconds + NUMBERS.swap_round_seconds)
    )
