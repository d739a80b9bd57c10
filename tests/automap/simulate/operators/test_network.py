"""The machine of a topology, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from automap.errors import InputError
from automap.simulate.operators.network import NO_MEDIUM, DeviceNetwork, device_network
from automap.topology import get_topology


def test_hosts_of_gpus_are_slow_between_hosts():
    topology = get_topology("2x8xv100")
    inside, outside = topology.levels
    network = device_network(topology)
    assert network.n_devices == 16
    assert network.bytes_per_s[0, 7] == inside.bytes_per_s
    assert network.bytes_per_s[0, 8] == outside.bytes_per_s
    assert network.latency_seconds[0, 7] == inside.latency_seconds
    assert network.latency_seconds[0, 8] == outside.latency_seconds
    assert network.latency_seconds[0, 9] == inside.latency_seconds + outside.latency_seconds
    assert (network.bytes_per_s == network.bytes_per_s.T).all()


def test_devices_of_a_host_share_its_adapter_and_none_of_the_ports_inside():
    media = device_network(get_topology("2x8xv100")).media
    # Out of host 0 and into host 1, whichever GPUs send and receive.
    assert len({tuple(media[a, b]) for a in range(8) for b in range(8, 16)}) == 1
    assert len(set(media[0, 8]) | set(media[8, 0])) == 4
    inside = media[:8, :8][~np.eye(8, dtype=bool)].reshape(8, 7, 2)
    # Inside, each GPU has one way out and one way in.
    assert [len(set(row[:, 0])) for row in inside] == [1] * 8
    assert len(np.unique(inside)) == 16
    assert not set(np.unique(inside)) & set(media[0, 8])


def test_both_gpus_of_a_board_share_its_slot():
    media = device_network(get_topology("flexflow-k80")).media
    assert (media[0, 2] == media[1, 3]).all()
    assert not set(media[0, 1]) & set(media[0, 2])
    assert (media[0, 4] == media[3, 7]).all()


def test_levels_have_media_of_their_own_though_a_port_has_fewer_devices_than_others():
    topology = get_topology("2x2xp100")
    inside, outside = topology.levels
    # Ports inside of devices 0 to 2 and of device 3 alone.
    odd = replace(topology, levels=(replace(inside, shared_by=3), outside))
    media = device_network(odd).media
    assert not set(media[2, 3].tolist()) & set(media[0, 2].tolist() + media[2, 0].tolist())


def test_a_way_around_a_ring_takes_its_first_and_its_last_link():
    network = device_network(get_topology("v4:4x4x4"))
    # From place 0 to its neighbours there is one link, to the far side of the ring there are two.
    assert network.media[0, 1, 1] == network.media[0, 3, 1] == NO_MEDIUM
    assert network.media[0, 2].tolist() == [network.media[0, 1, 0], network.media[1, 2, 0]]
    links = {
        int(network.media[a, b, 0]) for a in range(4) for b in range(4) if (a - b) % 4 in (1, 3)
    }
    assert len(links) == 8  # four devices, two directions


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
        ({"media": np.zeros((2, 2))}, r"media of shape \(2, 2\); allowed: \(2, 2, 2\)"),
        ({"media": np.zeros((2, 2, 2), int)}, "media out of range; allowed: two different ones"),
    ],
)
def test_bad_arrays_are_refused(changed, message):
    good = {
        "bytes_per_s": np.ones((2, 2)),
        "latency_seconds": np.zeros((2, 2)),
        "media": np.array([[[0, -1], [0, 1]], [[1, 0], [0, -1]]]),
        "speed": np.ones(2),
    }
    with pytest.raises(InputError, match=message):
        DeviceNetwork(**(good | changed))
