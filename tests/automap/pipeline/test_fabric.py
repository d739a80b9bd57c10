"""Seconds per byte between stages against hand counts and the evaluator's own collectives."""

import numpy as np
import pytest

from automap.backends import backend_for
from automap.cost.collectives import CollectiveKind, collective_cost
from automap.pipeline.fabric import MAX_UNITS, pipeline_fabric
from automap.topology import get_topology


ETHERNET, NVLINK = 25e9 / 8, 150e9


@pytest.mark.parametrize("name", ["2x8xv100", "8xh100", "4xk80", "v5e:4x4", "cpu:4"])
def test_the_sum_of_all_devices_is_the_evaluators(name):
    topology = get_topology(name)
    n, n_bytes = topology.device_count, backend_for(topology.platform).combine_bytes
    cost = collective_cost(CollectiveKind.ALL_REDUCE, topology, (n,), (0,))
    found = pipeline_fabric(topology).reduce_seconds_per_byte[0, n]
    assert found * n_bytes == pytest.approx(float(cost.seconds(n_bytes)))


def test_sums_cross_the_network_only_where_a_stage_does():
    found = pipeline_fabric(get_topology("2x8xv100")).reduce_seconds_per_byte
    assert found[0, 1] == 0
    assert 0 < found[0, 2] < found[0, 8] < 0.1 * found[4, 12]
    assert found[0, 8] == found[8, 16]
    # Two devices on either side of the border use one card each.
    assert found[7, 9] == pytest.approx(1 / ETHERNET, rel=0.15)


def test_matched_transfers_by_hand():
    fabric = pipeline_fabric(get_topology("4x8xv100"))
    found = fabric.transfer_seconds_per_byte
    assert found[0, 8, 16] == pytest.approx(1 / ETHERNET)
    assert found[0, 16, 32] == pytest.approx(1 / (2 * ETHERNET))
    assert found[0, 4, 8] == pytest.approx(1 / (4 * NVLINK))
    assert found[0, 1, 8] == pytest.approx(1 / NVLINK)
    # Of 16 senders the first half is in another host than the receivers.
    assert found[0, 12, 16] == pytest.approx((8 / 12) / ETHERNET)
    assert fabric.boundary_level[[8, 16, 24]].tolist() == [1, 1, 1]
    assert fabric.boundary_level[[1, 7, 9]].tolist() == [0, 0, 0]


def test_adjacent_transfers_look_at_the_boundary_alone():
    found = pipeline_fabric(get_topology("2x8xv100"), "adjacent").transfer_seconds_per_byte
    assert np.all(found[:, 8, :] == 1 / ETHERNET)
    assert np.all(found[:, 3, :] == 1 / NVLINK)


def test_a_line_of_a_torus_shares_its_border():
    """v5e:4x4 in halves of 8: each of the 4 lines along the outer dimension carries a quarter, one
    way.
    """
    topology = get_topology("v5e:4x4")
    found = pipeline_fabric(topology).transfer_seconds_per_byte
    assert found[0, 8, 16] == pytest.approx(1 / 4 / (topology.levels[1].bytes_per_s / 2))


def test_many_devices_stand_in_units():
    fabric = pipeline_fabric(get_topology("32x8xh100"))
    assert fabric.unit_devices * fabric.n_units == 256
    assert fabric.n_units <= MAX_UNITS


def test_one_device():
    fabric = pipeline_fabric(get_topology("1xv100"))
    assert fabric.n_units == 1
    assert not fabric.reduce_seconds_per_byte.any()
