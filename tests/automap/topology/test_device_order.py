"""Orders of devices: what they leave as it is, and their rings beside all others and beside routes
on the graph of the links.
"""

from collections import Counter
from dataclasses import replace
from itertools import combinations, permutations, product
from math import prod

from hypothesis import given, settings, strategies as st
import numpy as np
import pytest

from automap.topology import (
    Level,
    Topology,
    get_topology,
    mesh_shapes,
    shortest_routes,
    topology_graph,
)
from automap.topology.device_order import device_order
from automap.topology.link_loads import permutation
from automap.topology.rings import ring_pairs, ring_step


def machine(*levels):
    """A machine of (kind, size), innermost first, all links alike."""
    return Topology(
        name="t",
        platform="tpu",
        device=get_topology("cpu:1").device,
        levels=tuple(
            Level(name=f"l{i}", size=size, kind=kind, bytes_per_s=2e9, latency_seconds=1e-6)
            for i, (kind, size) in enumerate(levels)
        ),
    )


LEVELS = st.tuples(st.sampled_from(["ring", "line", "switch"]), st.integers(2, 6))
MACHINES = st.one_of(
    st.lists(LEVELS, min_size=1, max_size=3).map(lambda levels: machine(*levels)),
    st.sampled_from(["v5e:4x4", "v5p:2x2x4", "tpu7x:2x2x2", "2x4xv100", "flexflow-k80"]).map(
        get_topology
    ),
)


@st.composite
def meshes(draw):
    topology = draw(MACHINES)
    return topology, draw(st.sampled_from(mesh_shapes(topology, max_axes=4)))


def groups(order, shape, axes):
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    laid = np.reshape(order, shape).transpose((*kept, *axes))
    return {frozenset(row) for row in laid.reshape(-1, prod(shape[a] for a in axes)).tolist()}


@settings(deadline=None)
@given(meshes())
def test_the_devices_of_every_group_are_those_of_row_major(mesh):
    topology, shape = mesh
    order, numbered = device_order(topology, shape), range(topology.device_count)
    for count in range(1, len(shape) + 1):
        for axes in combinations(range(len(shape)), count):
            assert groups(order, shape, axes) == groups(numbered, shape, axes)


@settings(deadline=None)
@given(meshes())
def test_no_ring_of_an_axis_is_slower_than_row_major(mesh):
    topology, shape = mesh
    order, numbered = device_order(topology, shape), range(topology.device_count)
    for axis in range(len(shape)):
        ring, plain = (ring_step(topology, o, shape, (axis,)) for o in (order, numbered))
        assert ring.seconds_per_byte <= plain.seconds_per_byte
        if ring.seconds_per_byte == plain.seconds_per_byte:
            assert ring.latency_seconds <= plain.latency_seconds


def loads_by_routes(topology, pairs):
    """Seconds per byte of the busiest medium, by the shortest routes of the graph."""
    routes = shortest_routes(topology_graph(topology))
    loads = Counter(medium for a, b in pairs for medium in routes.between(a, b).tolist())
    return max(load / routes.medium_bytes_per_s[medium] for medium, load in loads.items())


def both_ways(pairs):
    return [*pairs, *((b, a) for a, b in pairs)]


GRIDS = ["v5e:2x2", "v5e:2x4", "v5e:4x4", "v5e:8x16", "v5p:2x2x2", "v5p:2x2x4", "v5p:4x4x4"]


@pytest.mark.parametrize("name", GRIDS)
def test_an_axis_over_a_whole_slice_is_a_ring_of_neighbours(name):
    topology = get_topology(name)
    count = topology.device_count
    order = device_order(topology, (count,))
    pairs = ring_pairs(order, (count,), (0,))
    routes = shortest_routes(topology_graph(topology))
    assert all(len(routes.between(a, b)) == 1 for a, b in pairs)
    # In each direction of a link one message at most, both ways round the ring at once.
    link = topology.levels[0].bytes_per_s / 2
    assert loads_by_routes(topology, both_ways(pairs)) == pytest.approx(1 / link)
    assert ring_step(topology, order, (count,), (0,)).seconds_per_byte == pytest.approx(1 / link)


@pytest.mark.parametrize("levels", [(3, 2), (2, 2, 2)], ids=["2x3", "2x2x2"])
def test_no_other_order_of_a_small_mesh_has_a_better_ring(levels):
    topology = machine(*(("line", size) for size in levels))
    count = topology.device_count
    chosen = ring_step(topology, device_order(topology, (count,)), (count,), (0,))
    best = min(
        (step.seconds_per_byte, step.latency_seconds)
        for rest in permutations(range(1, count))
        for step in (ring_step(topology, (0, *rest), (count,), (0,)),)
    )
    assert (chosen.seconds_per_byte, chosen.latency_seconds) == pytest.approx(best)


def test_an_axis_over_two_of_three_dimensions_is_a_ring_beside_others():
    topology = get_topology("v5p:2x2x4")
    shape = (2, 8)
    order = device_order(topology, shape)
    assert order[:8] == (0, 4, 5, 6, 7, 3, 2, 1)
    assert [after - 8 for after in order[8:]] == list(order[:8])
    assert permutation(topology, ring_pairs(order, shape, (1,))).hops == 1


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("v5e:4x4", (4, 4)),
        ("v5e:16x16", (4, 4, 16)),
        ("v5e:4x4", (2, 2, 4)),
        ("v5e:2x4", (2, 2, 2)),
        ("8xh100", (8,)),
        ("2x8xh100", (16,)),
        ("2x8xh100", (2, 8)),
        ("flexflow-k80", (64,)),
        ("cpu:8", (8,)),
        ("cpu:1", (1,)),
    ],
)
def test_an_axis_within_a_dimension_and_gpus_stay_as_numbered(name, shape):
    topology = get_topology(name)
    assert device_order(topology, shape) == tuple(range(topology.device_count))


@pytest.mark.parametrize("name", ["2x3xv100", "4xk80", "2x3xh100"])
def test_no_other_order_of_gpus_passes_fewer_bytes_over_their_busiest_link(name):
    """Each order of one ring through all of them, on the graph of their links: PCIe pairs that
    share a slot, hosts that share a card, a card for each GPU.
    """
    topology = get_topology(name)
    count = topology.device_count
    order = device_order(topology, (count,))
    chosen = loads_by_routes(topology, both_ways(ring_pairs(order, (count,), (0,))))
    routes = shortest_routes(topology_graph(topology))
    crossed = [[routes.between(a, b).tolist() for b in range(count)] for a in range(count)]
    rates = routes.medium_bytes_per_s
    for rest in permutations(range(1, count)):
        loads = np.zeros(len(rates))
        for a, b in both_ways(ring_pairs((0, *rest), (count,), (0,))):
            loads[crossed[a][b]] += 1
        assert chosen <= (loads / rates).max() * (1 + 1e-12)


def test_an_axis_across_hosts_joins_gpus_of_one_rail():
    topology = get_topology("4x8xh100")
    order = device_order(topology, (4, 8))
    for a, b in ring_pairs(order, (4, 8), (0,)):
        assert a % 8 == b % 8 and a // 8 != b // 8


def test_the_dies_of_a_chip_stand_side_by_side():
    """So that a chip's links carry one message each way; die after die they would carry two."""
    topology = get_topology("tpu7x:2x2x2")
    order = device_order(topology, (16,))
    assert [die // 2 for die in order[0::2]] == [die // 2 for die in order[1::2]]
    step = ring_step(topology, order, (16,), (0,))
    assert step.seconds_per_byte == pytest.approx(1 / (topology.levels[1].bytes_per_s / 2))
    chips = list(dict.fromkeys(die // 2 for die in order))
    by_die = [2 * chip for chip in chips] + [2 * chip + 1 for chip in reversed(chips)]
    assert ring_step(topology, by_die, (16,), (0,)).seconds_per_byte == pytest.approx(
        2 * step.seconds_per_byte
    )


def test_slices_on_a_network_are_gone_through_to_and_fro():
    slices = machine(("line", 4), ("line", 2), ("switch", 2))
    slices = replace(
        slices, levels=(*slices.levels[:2], replace(slices.levels[2], reach="network"))
    )
    order = device_order(slices, (16,))
    assert [number // 8 for number in order] == [0] * 8 + [1] * 8
    # The first and last of each slice are where the next begins: two hops, in and out of a switch.
    assert permutation(slices, ring_pairs(order, (16,), (0,))).hops == 2


def test_a_grid_of_odd_sides_has_one_step_of_two_links():
    topology = machine(("line", 3), ("line", 5))
    pairs = ring_pairs(device_order(topology, (15,)), (15,), (0,))
    hops = sorted(permutation(topology, [pair]).hops for pair in pairs)
    assert hops == [1] * 14 + [2]


FLAT = ["1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"]
CUBES = ["1x1x1", "1x2x2", "2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8"]
SLICES = [
    *(f"{generation}:{shape}" for generation, shape in product(("v5e", "v6e"), FLAT)),
    *(f"{generation}:{shape}" for generation, shape in product(("v4", "v5p"), CUBES)),
    *(f"tpu7x:{shape}" for shape in CUBES[:-1]),
    *("v4:4x4x12", "v5p:4x8x12", "v5p:4x4x20"),
]


@pytest.mark.parametrize("name", SLICES)
def test_slices_of_every_generation_have_orders(name):
    topology = get_topology(name)
    count = topology.device_count
    for shape in [s for s in mesh_shapes(topology) if len(s) < 3]:
        order = device_order(topology, shape)
        assert sorted(order) == list(range(count))
    # One axis over all of a slice: neighbours, but for the step between two dies.
    hops = permutation(topology, ring_pairs(device_order(topology, (count,)), (count,), (0,))).hops
    longest = {level.size for level in topology.levels if level.kind == "line"}
    is_one_line = len(topology.levels) == 1
    if count > 1:
        assert hops == (
            max(longest) - 1 if is_one_line and longest else 1 + name.startswith("tpu7x")
        )


def test_a_mesh_that_cuts_levels_unevenly_is_as_numbered():
    assert device_order(machine(("line", 6), ("line", 4)), (3, 8)) == tuple(range(24))
