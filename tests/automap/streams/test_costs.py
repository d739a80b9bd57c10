"""What a stage takes, by closed forms."""

import numpy as np
import pytest

from automap.streams.costs import measured_table, price_products, price_stages
from tests.automap.streams.blocks import MACHINE, random_block


RATE = 1e11


def _priced(rows, columns, depth, groups=1.0):
    row = np.array([[rows, columns, depth, groups, RATE, 4.0]])
    return price_products(row, MACHINE)[0]


def _equal(count, **fields):
    """Operators that are all the first one of a random block, none before another."""
    ops = random_block(1, count, 0.0)
    columns = {
        name: np.repeat(getattr(ops, name)[:1], count, axis=0)
        for name in (
            "alone",
            "compute",
            "waves",
            "block",
            "memory",
            "l2",
            "columns",
            "other",
            "merge",
        )
    }
    ops = ops._replace(**columns | fields)
    return ops._replace(measured=measured_table(ops.alone, {}))


def _all(count):
    return np.array([(1 << count) - 1], np.uint64)


def test_a_large_product_takes_its_flops_at_the_rate_of_all_sms():
    compute, waves, block, _ = _priced(8192.0, 8192.0, 4096.0)
    ideal = 2 * 8192 * 8192 * 4096 / (MACHINE.sms * RATE)
    assert ideal <= compute <= 1.02 * ideal
    assert compute == pytest.approx(np.ceil(waves) * block)


def test_a_small_product_takes_one_block_on_few_sms():
    # 64 x 64 results: four blocks of 32 x 32, each with half of an SM, or fewer larger ones that
    # take as long for each multiplication and are larger.
    compute, waves, block, _ = _priced(64.0, 64.0, 1024.0)
    assert compute == block == pytest.approx(2 * 32 * 32 * 1024 / (0.5 * RATE))
    assert waves == pytest.approx(4 * 0.5 / MACHINE.sms)


def test_more_columns_never_take_less():
    seconds = [_priced(100.0, float(n), 512.0)[0] for n in range(16, 1024, 48)]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize("count", [2, 5, 9])
def test_equal_operators_at_once_are_one_of_as_many_blocks(count):
    row = np.array([[96.0, 64.0, 4096.0, 1.0, RATE, 4.0]])
    compute, waves, block, l2 = price_products(row, MACHINE)[0]
    priced = {"compute": compute, "waves": waves, "block": block, "l2": 0.0, "memory": 0.0}
    ops = _equal(
        count,
        alone=np.full(count, max(compute, l2, MACHINE.launch_seconds)),
        **{name: np.full(count, value) for name, value in priced.items()},
    )
    at_once = price_stages(ops, _all(count), MACHINE)[0, 0]
    assert at_once == pytest.approx(np.ceil(count * waves) * block + MACHINE.launch_seconds)


def test_operators_that_memory_bounds_gain_launches_only():
    alone = 1e-3
    zeros = {name: np.zeros(4) for name in ("compute", "waves", "block", "l2")}
    ops = _equal(4, alone=np.full(4, alone), memory=np.full(4, alone), **zeros)
    at_once = price_stages(ops, _all(4), MACHINE)[0, 0]
    assert at_once == pytest.approx(4 * alone + MACHINE.launch_seconds)


def test_what_several_read_is_read_once():
    zeros = {name: np.zeros(3) for name in ("compute", "waves", "block", "l2")}
    ops = _equal(
        3,
        alone=np.full(3, 1e-3),
        memory=np.full(3, 2e-4),
        inputs=np.array([[0], [0], [-1]]),
        input_seconds=np.array([8e-4]),
        **zeros,
    )
    assert price_stages(ops, _all(3), MACHINE)[0, 0] == pytest.approx(
        max(1e-3, 3 * 2e-4 + 8e-4) + MACHINE.launch_seconds
    )


def test_a_chain_is_one_group_and_takes_the_sum():
    ops = random_block(2, 3, 0.0)
    before = np.array([0, 1, 2], np.uint64)
    after = np.array([2, 4, 0], np.uint64)
    ops = ops._replace(before=before, after=after)
    at_once = price_stages(ops, _all(3), MACHINE)[0, 0]
    assert at_once == pytest.approx(ops.alone.sum())


def test_merged_operators_are_the_product_that_they_become():
    ops = _equal(3, merge=np.zeros(3, np.int64), other=np.zeros(3))
    merged = price_stages(ops, _all(3), MACHINE)[0, 1]
    columns = ops.columns.sum()
    compute, _, _, l2 = _priced(ops.rows[0], columns, 256.0)
    memory = (256.0 * columns * 4) / MACHINE.bytes_per_s
    assert merged == pytest.approx(max(compute, l2, memory, MACHINE.launch_seconds))


def test_windows_are_padded_to_the_one_that_holds_all():
    # 1x3 and 3x1, each centred: a window of 3x3.
    padding, rest = np.zeros((2, 3)), np.ones((2, 3))
    padding[0, 1] = padding[1, 0] = 1.0
    rest[0, 1] = rest[1, 0] = 2.0
    ops = _equal(2, merge=np.zeros(2, np.int64), other=np.zeros(2), padding=padding, rest=rest)
    merged = price_stages(ops, _all(2), MACHINE)[0, 1]
    columns = ops.columns.sum()
    compute, _, _, l2 = _priced(ops.rows[0], columns, 9 * 256.0)
    memory = 9 * 256.0 * columns * 4 / MACHINE.bytes_per_s
    assert merged == pytest.approx(max(compute, l2, memory, MACHINE.launch_seconds))


def test_operators_of_two_classes_are_not_merged():
    ops = _equal(2, merge=np.array([0, 1]))
    assert price_stages(ops, _all(2), MACHINE)[0, 1] == np.inf
    assert price_stages(ops, np.array([1], np.uint64), MACHINE)[0, 1] == np.inf
