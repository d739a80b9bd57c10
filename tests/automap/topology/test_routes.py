"""Graphs of topologies and the routes through them, against levels, properties and brute force."""

from itertools import permutations

from hypothesis import given, settings, strategies as st
import numpy as np
import pytest

from automap.errors import TopologyError
from automap.topology import (
    Graph,
    Level,
    Link,
    Node,
    Topology,
    get_graph,
    get_topology,
    shortest_routes,
    topology_graph,
)
from automap.topology.routes import REFERENCE_BYTES


DEVICE = get_topology("cpu:1").device


@st.composite
def topologies(draw):
    """Levels of any kind and sharing, each slower and farther than the one inside it."""
    levels, rate, hop = [], 1e12, 1e-6
    for place in range(draw(st.integers(1, 3))):
        rate, hop = rate / draw(st.integers(8, 40)), hop * draw(st.integers(2, 5))
        levels.append(
            Level(
                name=f"l{place}",
                size=draw(st.integers(2, 5)),
                kind=draw(st.sampled_from(["ring", "line", "switch"])),
                bytes_per_s=rate,
                latency_seconds=hop,
                shared_by=draw(st.integers(1, 3)),
                reach=draw(st.sampled_from(["host", "network"])),
            )
        )
    return Topology(name="t", platform="cpu", device=DEVICE, levels=tuple(levels))


def _hops(level, low, high):
    if level.kind == "switch":
        return 1
    along = abs(high - low)
    return min(along, level.size - along) if level.kind == "ring" else along


def _rate(level):
    is_whole = level.kind == "switch" or (level.kind == "ring" and level.size == 2)
    return level.bytes_per_s if is_whole else level.bytes_per_s / 2


@given(topologies())
@settings(max_examples=50)
def test_a_graph_agrees_with_the_levels_of_its_topology(topology):
    """Devices that differ at one level alone reach each other over it, hop by hop."""
    routes, below = shortest_routes(topology_graph(topology)), 1
    for level in topology.levels:
        for first in range(topology.device_count):
            start = first // below % level.size
            for place in range(level.size):
                second = first + (place - start) * below
                if second == first:
                    continue
                assert routes.bytes_per_s[first, second] == _rate(level)
                hops = _hops(level, start, place)
                assert routes.latency_seconds[first, second] == pytest.approx(
                    hops * level.latency_seconds
                )
                names = {routes.medium_names[m] for m in routes.between(first, second)}
                assert all(name.startswith(level.name) for name in names)
        below *= level.size


@given(topologies())
@settings(max_examples=50)
def test_routes_are_symmetric_and_no_detour_is_sooner(topology):
    routes = shortest_routes(topology_graph(topology))
    assert (routes.bytes_per_s == routes.bytes_per_s.T).all()
    assert np.allclose(routes.latency_seconds, routes.latency_seconds.T)
    count = topology.device_count
    for low in range(count):
        assert len(routes.between(low, low)) == 0
        for high in range(count):
            back = routes.between(high, low)[::-1]
            assert (routes.between(low, high) == back ^ 1).all()
    # The way's links, one after the other, for the reference message: a metric.
    seconds = _store_and_forward_seconds(routes)
    assert (seconds[:, None, :] <= seconds[:, :, None] + seconds[None] + 1e-12).all()


def _store_and_forward_seconds(routes):
    count = len(routes.bytes_per_s)
    media = [
        [
            sum(REFERENCE_BYTES / routes.medium_bytes_per_s[m] for m in routes.between(low, high))
            for high in range(count)
        ]
        for low in range(count)
    ]
    return np.array(media) + routes.latency_seconds


@st.composite
def graphs(draw):
    """Connected graphs of few nodes with parallel links and hubs."""
    count, hubs = draw(st.integers(2, 4)), draw(st.integers(0, 2))
    names = [*(f"d{i}" for i in range(count)), *(f"h{i}" for i in range(hubs))]
    pairs = [(draw(st.integers(0, i - 1)), i) for i in range(1, len(names))]
    pairs += draw(
        st.lists(
            st.tuples(*[st.integers(0, len(names) - 1)] * 2).filter(lambda p: p[0] != p[1]),
            max_size=4,
        )
    )
    return Graph(
        name="g",
        platform="cpu",
        devices=tuple(Node(name=name, device=DEVICE) for name in names[:count]),
        hubs=tuple(names[count:]),
        links=tuple(
            Link(
                name=f"l{i}",
                ends=(names[a], names[b]),
                bytes_per_s=draw(st.integers(1, 50)) * 1e9,
                latency_seconds=draw(st.integers(0, 20)) * 1e-6,
            )
            for i, (a, b) in enumerate(pairs)
        ),
    )


def _cheapest_by_brute_force(graph, start, stop):
    """Least time over all simple paths, trying every order of every subset of the other nodes."""
    best = np.inf
    rest = [name for name in graph.node_names if name not in (start, stop)]
    for length in range(len(rest) + 1):
        for middle in permutations(rest, length):
            stations, total = (start, *middle, stop), 0.0
            for ends in zip(stations, stations[1:], strict=False):
                costs = [
                    link.latency_seconds + REFERENCE_BYTES / link.bytes_per_s
                    for link in graph.links
                    if set(link.ends) == set(ends)
                ]
                total += min(costs, default=np.inf)
            best = min(best, total)
    return best


@given(graphs())
@settings(max_examples=60)
def test_routes_are_the_cheapest_paths(graph):
    routes = shortest_routes(graph)
    seconds = _store_and_forward_seconds(routes)
    for low in range(graph.device_count):
        for high in range(low + 1, graph.device_count):
            names = graph.devices[low].name, graph.devices[high].name
            assert seconds[low, high] == pytest.approx(_cheapest_by_brute_force(graph, *names))
            media = routes.between(low, high)
            assert routes.bytes_per_s[low, high] == routes.medium_bytes_per_s[media].min()


def test_shared_media_are_crossed_by_all_who_share_them():
    routes = shortest_routes(get_graph("2x8xv100"))
    across = {int(routes.between(gpu, 8 + gpu)[0]) for gpu in range(8)}
    assert len(across) == 1
    assert routes.medium_names[across.pop()] == "network-port:0 >"
    dies = shortest_routes(get_graph("tpu7x:2x2x1"))
    assert dies.between(0, 4).tolist() == dies.between(1, 5).tolist()
    boards = shortest_routes(get_graph("haswell-4xk80"))
    slots = [[boards.medium_names[m] for m in boards.between(gpu, 0)] for gpu in (1, 2)]
    assert slots[0][1:] == slots[1][1:] == ["slot:0 >", "memory-bus <"]


def test_hosts_are_what_the_network_joins():
    assert [node.host for node in get_graph("2x2xk80").devices] == [0, 0, 1, 1]
    assert {node.host for node in get_graph("v5e:4x4").devices} == {0}


def test_a_topology_may_be_too_large_for_a_graph():
    assert get_graph("v5p:8x8x8").device_count == 512
    with pytest.raises(TopologyError, match="got 1024 devices; allowed: at most 512"):
        get_graph("v5p:8x8x16")
