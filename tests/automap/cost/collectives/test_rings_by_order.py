"""What rings cost along the order of the devices, beside messages on simulated links (`links`) and
beside routes on the graph.
"""

from hypothesis import given, settings, strategies as st
import pytest

from automap.cost.collectives import CollectiveKind, collective_cost, ring_scatter_cost
from automap.topology import Level, Topology, get_topology, shortest_routes, topology_graph
from automap.topology.device_order import device_order
from automap.topology.rings import ring_pairs
from tests.automap.cost.collectives.links import Network


PERMUTE, SCATTER = CollectiveKind.PERMUTE, CollectiveKind.REDUCE_SCATTER
BYTES = st.floats(1e3, 1e9)
# The axes of a group are one ring of neighbours, beside other such groups or alone.
GROUPS = [
    ("v5e:2x4", (8,), (0,)),
    ("v5e:4x4", (16,), (0,)),
    ("v5e:16x16", (16, 16), (1,)),
    ("v5p:2x2x2", (2, 4), (1,)),
    ("v5p:2x2x4", (4, 4), (0,)),
    ("v5p:4x4x4", (64,), (0,)),
]


def round_seconds(topology, pairs, n_bytes):
    """A message of so many bytes on each pair, by the routes of the graph, all sent at once."""
    routes = shortest_routes(topology_graph(topology))
    link = topology.levels[0]
    network = Network(link.bytes_per_s / 2, link.latency_seconds)
    return network.finish_seconds(
        [[(medium, n_bytes) for medium in routes.between(a, b).tolist()] for a, b in pairs]
    )


@settings(max_examples=5, deadline=None)
@given(BYTES)
@pytest.mark.parametrize("group", GROUPS)
def test_a_ring_of_neighbours_passes_shards_both_ways(group, n_bytes):
    name, shape, axes = group
    topology = get_topology(name)
    pairs = ring_pairs(device_order(topology, shape), shape, axes)
    devices = shape[axes[0]]
    both = [*pairs, *((b, a) for a, b in pairs)]
    seconds = devices / 2 * round_seconds(topology, both, n_bytes / devices)
    cost = ring_scatter_cost(topology, shape, axes)
    assert cost.seconds(n_bytes) == pytest.approx(seconds)
    permute = collective_cost(PERMUTE, topology, shape, axes)
    assert permute.seconds(n_bytes) == pytest.approx(round_seconds(topology, pairs, n_bytes))


@settings(deadline=None)
@given(st.integers(3, 12), BYTES)
def test_a_ring_of_one_dimension_is_its_reduce_scatter_but_for_the_last_half_round(n, n_bytes):
    level = Level(name="l", size=n, kind="ring", bytes_per_s=2e9, latency_seconds=0.0)
    device = get_topology("cpu:1").device
    topology = Topology(name="t", platform="tpu", device=device, levels=(level,))
    ring = ring_scatter_cost(topology, (n,), (0,)).seconds(n_bytes)
    # n / 2 rounds of n shards, where n - 1 are sent.
    scatter = collective_cost(SCATTER, topology, (n,), (0,)).seconds(n_bytes)
    assert ring * (n - 1) == pytest.approx(scatter * n)


def test_a_ring_of_a_mesh_of_two_by_four_is_as_fast_as_all_its_links():
    """Row-major it would be half as fast: the way back of each row is on the links of the row."""
    topology = get_topology("v5e:2x4")
    ring = ring_scatter_cost(topology, (8,), (0,)).lines[0]
    scatter = collective_cost(SCATTER, topology, (8,), (0,)).lines[0]
    assert ring.beta_seconds_per_byte * 7 == pytest.approx(scatter.beta_seconds_per_byte * 8)
    pairs = ring_pairs(range(8), (8,), (0,))
    both = [*pairs, *((b, a) for a, b in pairs)]
    assert round_seconds(topology, both, 1e9) >= 2 * 1e9 / (topology.levels[0].bytes_per_s / 2)


def test_a_ring_of_one_is_free():
    assert ring_scatter_cost(get_topology("v5e:2x4"), (8, 1), (1,)).seconds(1e9) == 0
