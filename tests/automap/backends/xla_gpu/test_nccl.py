"""Protocols: what NCCL's table gives on its own hardware, and that the choice follows the size."""

from hypothesis import given, strategies as st
import numpy as np
import pytest

from automap.backends.protocols import PLAIN
from automap.backends.xla_gpu.nccl import NCCL
from automap.cost.collectives import CollectiveKind, collective_cost
from automap.topology import get_topology
from tests.automap.topologies import by_formulas


AR = CollectiveKind.ALL_REDUCE
RING = {p.name: p for p in NCCL if p.algorithm == "ring"}
TREE = {p.name: p for p in NCCL if p.algorithm == "tree"}


@pytest.mark.parametrize("protocol", NCCL)
def test_a_step_over_the_librarys_own_links_is_its_tables(protocol):
    assert protocol.hop_seconds(3.4e-6, "host") == pytest.approx(protocol.host_step_seconds)
    assert protocol.hop_seconds(9.6e-6, "network") == pytest.approx(protocol.network_step_seconds)


@given(st.floats(0, 1e-3), st.sampled_from(["host", "network"]))
def test_plain_is_the_level_itself_and_wires_stay(latency, reach):
    assert PLAIN.hop_seconds(latency, reach) == pytest.approx(latency)
    for protocol in NCCL:
        here, farther = (protocol.hop_seconds(x, reach) for x in (1e-4, 1e-4 + latency))
        assert farther - here == pytest.approx(latency, abs=1e-12)


def envelope(name, shape, axes):
    return collective_cost(AR, by_formulas(name), shape, axes)


def test_small_messages_take_ll_and_large_ones_simple():
    lines = envelope("8xh100", (8,), (0,)).lines
    first, last = lines[0], lines[-1]
    assert first.alpha_seconds == pytest.approx(3.6e-6 + 14 * 0.47e-6)
    assert first.beta_seconds_per_byte == pytest.approx(2 * 7 / 8 / 450e9 * 4)
    assert last.alpha_seconds == pytest.approx(8.4e-6 + 14 * 3.4e-6)
    assert last.beta_seconds_per_byte == pytest.approx(2 * 7 / 8 / 450e9)


def test_many_hosts_take_a_tree_for_small_messages():
    """64 hosts, one rank each: 2 log2 64 tree steps against 2 * 63 ring steps."""
    lines = envelope("64x8xh100", (64, 8), (0,)).lines
    assert lines[0].alpha_seconds == pytest.approx(4.4e-6 + 12 * 5.0e-6)
    assert lines[0].alpha_seconds < 3.6e-6 + 126 * 2.7e-6
    ring = 2 * 63 / 64 / 50e9
    assert lines[-1].beta_seconds_per_byte == pytest.approx(ring)


@pytest.mark.parametrize("name", ["8xh100", "16x8xb200", "automap-b", "flexflow-k80"])
def test_seconds_are_the_least_line_and_bandwidth_rises(name):
    topology = by_formulas(name)
    cost = collective_cost(AR, topology, (topology.device_count,), (0,))
    n_bytes = np.logspace(1, 10, 200)
    seconds = cost.seconds(n_bytes)
    by_line = [x.alpha_seconds + x.beta_seconds_per_byte * n_bytes for x in cost.lines]
    assert np.allclose(seconds, np.min(by_line, axis=0))
    assert (np.diff(n_bytes / seconds) > 0).all()
    assert len(set(np.argmin(by_line, axis=0).tolist())) == len(cost.lines) > 1
    bundle = cost.seconds(n_bytes * 3, np.full(200, 3.0))
    assert np.allclose(bundle, 3 * seconds)


def test_a_tpu_slice_has_one_way():
    assert len(collective_cost(AR, get_topology("v5e:4x4"), (4, 4), (0, 1)).lines) == 1
