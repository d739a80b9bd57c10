"""What XLA's scheduler believes of collectives: read as XLA reads its table."""

import math

from hypothesis import given, strategies as st
import numpy as np
import pytest

from automap.backends import backend_for
from automap.backends.believed import BelievedSeconds, hosts_over
from automap.cost.collectives import KINDS
from automap.topology import get_topology


TABLE = BelievedSeconds(
    kinds=("all-reduce", "all-gather"),
    devices=np.array([2, 4]),
    hosts=np.array([1, 2]),
    least_power=10,
    seconds=np.array([[8.0, 1.0, 4.0], [8.0, 2.0, 4.0], [3.0, 3.0, 5.0], [6.0, 6.0, 6.0]]),
)


@pytest.mark.parametrize(
    ("n_bytes", "expected"),
    [
        (1024, 8.0),
        # Fewer bytes than the first entry has take a part of it.
        (256, 2.0),
        # Nearer to 2048 than to 1024, and half of the way, which is the next one's.
        (1900, 1900 / 2048),
        (1536, 0.75),
        (1535, 8.0 * 1535 / 1024),
        # More than the last one.
        (3 * 4096, 12.0),
    ],
)
def test_seconds_are_by_the_nearest_power_of_two(n_bytes, expected):
    rows = TABLE.rows(("all-reduce",), np.array([0]), np.array([2]), np.array([1]))
    assert TABLE.lookup(rows, np.array([n_bytes])) == pytest.approx([expected])


@pytest.mark.parametrize(
    ("n_bytes", "expected"),
    [(2048, 2.0), (4096, 4.0), (3072, 3.0), (8192, 8.0), (1024, 8.0), (512, 11.0)],
)
def test_seconds_of_groups_beyond_the_table_are_on_a_line(n_bytes, expected):
    rows = TABLE.rows(("all-reduce",), np.array([0]), np.array([4]), np.array([2]))
    assert TABLE.lookup(rows, np.array([n_bytes])) == pytest.approx([expected])


@pytest.mark.parametrize("group", [(2, 2), (8, 2), (16, 2), (8, 4), (32, 4), (64, 8)])
def test_the_compilers_formula_grows_evenly_with_the_bytes(group):
    """So that what is between two powers of two is on a line: within 3 %."""
    table = backend_for("cuda").believed(get_topology("8xh100").device)
    assert table is not None
    for kind in table.kinds:
        row = table.rows((kind,), np.array([0]), *(np.array([n]) for n in group))
        seconds = table.seconds[row[0]]
        # Three powers in a row: the middle one by the line of the others.
        between = seconds[:-2] + (seconds[2:] - seconds[:-2]) / 3
        np.testing.assert_allclose(seconds[1:-1], between, rtol=0.03)


def test_rows_are_of_kinds_and_groups():
    kinds = ("all-gather", "all-to-all", "all-reduce")
    kind, devices = np.array([0, 0, 2, 1, 0, 2, 0]), np.array([2, 3, 4, 2, 8, 1, 4])
    hosts = np.array([1, 2, 2, 1, 2, 1, 1])
    # A group of three is read as one of four; a kind and a group that are not there have no row.
    assert TABLE.rows(kinds, kind, devices, hosts).tolist() == [2, 3, 1, -1, -1, -1, -1]


@given(sizes=st.lists(st.sampled_from([1, 2, 3, 4, 8]), min_size=1, max_size=4))
def test_hosts_are_eight_partitions_in_a_row(sizes):
    partitions = np.arange(math.prod(sizes)).reshape(sizes)
    masks = np.arange(1 << len(sizes))
    for mask, hosts in zip(masks.tolist(), hosts_over(masks, sizes).tolist(), strict=True):
        group = partitions[tuple(slice(None) if mask >> a & 1 else 0 for a in range(len(sizes)))]
        assert hosts == len({number // 8 for number in group.ravel().tolist()})


def test_a_group_of_few_devices_of_each_host_is_believed_to_take_longer_than_all_of_them():
    """So that what BERT sums in a loop on two hosts stands behind what it scatters over both."""
    table = backend_for("cuda").believed(get_topology("8xh100").device)
    assert table is not None
    devices, hosts = np.array([8, 8, 16]), np.array([1, 2, 2])
    rows = table.rows(("all-reduce",), np.zeros(3, int), devices, hosts)
    one_host, few, all_of_two = table.lookup(rows, np.full(3, 2.0**24))
    assert few > 2 * all_of_two > 4 * one_host


@pytest.mark.parametrize("name", ["h100", "h200", "b200"])
def test_a_small_message_is_believed_to_take_longer_than_a_larger_one(name):
    table = backend_for("cuda").believed(get_topology(f"8x{name}").device)
    assert table is not None and set(table.kinds) == set(KINDS)
    assert table.seconds.shape == (len(KINDS) * 15, 19) and (table.seconds > 0).all()
    rows = table.rows(KINDS, np.array([0, 2]), np.array([2, 2]), np.array([1, 1]))
    small, large = (table.lookup(rows, np.full(2, n)) for n in (1 << 10, 1 << 16))
    assert (small > 3 * large).all()
    # Of 16 MiB and more it goes by bytes.
    measured = table.seconds.reshape(len(KINDS), 15, -1)[:, :3]
    assert (measured[..., -1] > 2 * measured[..., 14]).all()


@pytest.mark.parametrize("name", ["8xa100", "v5e:2x4"])
def test_older_gpus_and_other_backends_have_none(name):
    topology = get_topology(name)
    assert backend_for(topology.platform).believed(topology.device) is None
