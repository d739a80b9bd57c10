"""The machine of a topology, by hand."""

import numpy as np
import pytest

from automap.errors import InputError
from automap.simulate.operators.network import DeviceNetwork, device_network
from automap.topology import get_topology


def test_hosts_of_gpus_are_slow_between_hosts():
    topology = get_topology("2x8xv100")
    inside, outside = topology.levels
    network = device_network(topology)
    assert network.n_devices == 16
    assert network.bytes_per_s[0, 7] == inside.bytes_per_s / inside.shared_by
    assert network.bytes_per_s[0, 8] == outside.bytes_per_s / outside.shared_by
    assert network.latency_seconds[0, 7] == inside.latency_seconds
    assert network.latency_seconds[0, 8] == outside.latency_seconds
    assert network.latency_seconds[0, 9] == inside.latency_seconds + outside.latency_seconds
    assert (network.bytes_per_s == network.bytes_per_s.T).all()


def test_a_torus_counts_hops_around_its_rings():
    topology = get_topology("v4:4x4x4")
    network = device_network(topology)
    hop = topology.levels[0].latency_seconds
    assert topology.levels[0].kind == "ring"
    assert network.latency_seconds[0, :4].tolist() == [0, hop, 2 * hop, hop]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"speed": np.ones(3)}, r"bytes_per_s of shape \(2, 2\); allowed: \(3, 3\)"),
        ({"speed": np.zeros(2)}, "speed out of range; allowed: finite numbers over 0"),
        ({"bytes_per_s": np.zeros((2, 2))}, "bytes_per_s out of range"),
        ({"latency_seconds": np.full((2, 2), -1.0)}, "allowed: finite numbers from 0"),
    ],
)
def test_bad_arrays_are_refused(changed, message):
    good = {
        "bytes_per_s": np.ones((2, 2)),
        "latency_seconds": np.zeros((2, 2)),
        "speed": np.ones(2),
    }
    with pytest.raises(InputError, match=message):
        DeviceNetwork(**(good | changed))
