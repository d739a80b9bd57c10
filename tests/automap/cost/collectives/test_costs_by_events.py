"""Collective costs against packets on simulated links (`links`): a ring all-reduce, a torus
all-to-all.
"""

from hypothesis import given, settings, strategies as st
import pytest

from automap.cost.collectives import CollectiveKind, collective_cost
from automap.topology import Level, Topology, get_topology
from tests.automap.cost.collectives.links import (
    Network,
    one_way_ring_gather,
    torus_exchange,
    two_way_ring_gather,
)


RATES = st.floats(1e8, 1e11)
LATENCIES = st.floats(1e-7, 1e-4)
BYTES = st.floats(1e3, 1e9)


def machine(kind, dims, bytes_per_s, latency_seconds):
    """A machine of levels of one kind, innermost last in `dims`, which sends in rings."""
    levels = tuple(
        Level(
            name=f"l{place}",
            size=size,
            kind=kind,
            bytes_per_s=bytes_per_s,
            latency_seconds=latency_seconds,
        )
        for place, size in enumerate(reversed(dims))
    )
    return Topology(name="t", platform="tpu", device=get_topology("cpu:1").device, levels=levels)


def seconds(kind, topology, n_bytes):
    return collective_cost(kind, topology, (topology.device_count,), (0,)).seconds(n_bytes)


@given(st.integers(2, 12), RATES, LATENCIES, BYTES)
def test_a_switch_is_used_as_a_one_way_ring(n, rate, latency, n_bytes):
    """An all-reduce is the gather backwards, with sums on the way, and then the gather."""
    gather = Network(rate, latency).finish_seconds(one_way_ring_gather(n, n_bytes))
    topology = machine("switch", [n], rate, latency)
    assert seconds(CollectiveKind.ALL_REDUCE, topology, n_bytes) == pytest.approx(2 * gather)


@given(st.integers(3, 13), RATES, LATENCIES, BYTES)
def test_a_ring_is_used_both_ways(n, rate, latency, n_bytes):
    gather = Network(rate / 2, latency).finish_seconds(two_way_ring_gather(n, n_bytes))
    topology = machine("ring", [n], rate, latency)
    assert seconds(CollectiveKind.ALL_REDUCE, topology, n_bytes) == pytest.approx(2 * gather)


@given(
    st.sampled_from(["ring", "line"]),
    st.lists(st.integers(2, 5), min_size=1, max_size=3).filter(lambda x: 4 <= max(x) <= 5),
)
@settings(max_examples=12, deadline=None)
def test_a_torus_exchanges_at_the_speed_of_its_busiest_links(kind, dims):
    """No schedule beats the busiest links, and this one, in either order of dimensions, keeps them
    busy.
    """
    if sum(dims) > 11:
        dims = dims[:2]
    if kind == "ring":
        # A ring of two has two links between the same pair, which the oracle does not model.
        dims = [max(size, 3) for size in dims]
    rate, n_bytes, parts = 2e9, 1e6, 2 * len(dims)
    packets = torus_exchange(dims, [kind == "ring"] * len(dims), n_bytes, parts)
    taken = Network(rate / 2, 0.0).finish_seconds(packets)
    bound = seconds(CollectiveKind.ALL_TO_ALL, machine(kind, dims, rate, 0.0), n_bytes)
    assert taken == pytest.approx(bound, rel=0.01)
