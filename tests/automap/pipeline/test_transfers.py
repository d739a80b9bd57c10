"""Transfers between layouts: replicas as in the fabric, copies and parts by hand."""

import numpy as np
import pytest

from automap.pipeline.fabric import pipeline_fabric
from automap.pipeline.transfers import Layout, transfer_table
from automap.topology import get_topology


def replicas(count):
    return Layout(tuple(range(count)))


@pytest.mark.parametrize("name", ["2x4xv100", "4x8xv100", "v5e:4x4", "32x8xh100"])
def test_replicas_are_those_of_the_fabric(name):
    topology = get_topology(name)
    fabric = pipeline_fabric(topology)
    unit, n = fabric.unit_devices, min(fabric.n_units, 8)
    table = transfer_table(topology, [replicas(r * unit) for r in range(1, n + 1)], unit)
    for a in range(1, n + 1):
        for b in range(1, n + 1):
            for e in range(a, fabric.n_units - b + 1):
                expected = fabric.transfer_seconds_per_byte[e - a, e, e + b]
                assert table[a - 1, b - 1, e] == pytest.approx(expected)


def test_whole_copies_are_sent_to_each_device():
    topology = get_topology("2x4xv100")
    network = topology.levels[1].bytes_per_s
    whole, split = Layout((0, 0, 0, 0)), replicas(4)
    table = transfer_table(topology, [whole, split], 1)
    # Four devices of a server share one card: each needs all, or a quarter.
    assert table[1, 1, 4] == pytest.approx(1 / network)
    assert table[0, 0, 4] == pytest.approx(4 / network)
    # To whole copies four times as much is sent, forwards or backwards.
    assert table[0, 1, 4] == table[1, 0, 4] == pytest.approx(4 / network)


def test_halves_come_from_those_that_have_them():
    topology = get_topology("8xv100")
    link = topology.levels[0].bytes_per_s
    halves, quarters = Layout((0, 0, 1, 1)), replicas(4)
    table = transfer_table(topology, [halves, quarters], 1)
    # Every device of a half sends one quarter; backwards every device is sent its half.
    assert table[1, 1, 4] == pytest.approx(0.25 / link)
    assert table[0, 1, 4] == pytest.approx(0.5 / link)
    assert not np.isnan(table).any()
