"""Collective costs against closed forms, a linear programme, and algebra that must hold.

Simulated links are the oracle in `test_collectives_by_events`.
"""

import dataclasses
from itertools import permutations
from math import prod

from hypothesis import given, strategies as st
import numpy as np
import pytest
from scipy.optimize import linprog

from automap.cost.collectives import CollectiveKind, collective_cost
from automap.cost.collectives.costs import group_cost
from automap.topology import Level, Topology, get_topology, mesh_shapes
from automap.topology.spans import spans
from tests.automap.topologies import by_formulas


AR, AG, RS, A2A, PERMUTE = CollectiveKind
B, H = 100.0, 0.5


def machine(*levels, reaches=("host",) * 3, platform="tpu"):
    """Topology of (kind, size) or (kind, size, bytes per second), innermost first."""
    made = tuple(
        Level(
            name=f"l{index}",
            size=size,
            kind=kind,
            bytes_per_s=rate[0] if rate else B,
            latency_seconds=H,
            reach=reaches[index],
        )
        for index, (kind, size, *rate) in enumerate(levels)
    )
    return Topology(name="t", platform=platform, device=get_topology("cpu:1").device, levels=made)


def single_line(kind, topology, shape, axes):
    """The only line of a collective of a platform that has one way to send."""
    (line,) = collective_cost(kind, topology, shape, axes).lines
    return line


def whole(kind, topology):
    """The line of one group of all devices."""
    return single_line(kind, topology, (topology.device_count,), (0,))


RING16 = machine(("ring", 16))


@pytest.mark.parametrize(
    ("kind", "level", "alpha", "beta"),
    [
        (RS, "switch", 7 * H, 7 / 8 / B),
        (RS, "ring", 4 * H, 7 / 8 / B),
        (RS, "line", 7 * H, 7 / 8 / (B / 2)),
        (AG, "ring", 4 * H, 7 / 8 / B),
        (AR, "switch", 14 * H, 2 * 7 / 8 / B),
        (AR, "ring", 8 * H, 2 * 7 / 8 / B),
        (AR, "line", 14 * H, 2 * 7 / 8 / (B / 2)),
        (A2A, "switch", 7 * H, 7 / 8 / B),
        (A2A, "ring", 4 * H, 2 / B),  # mean distance 2 of 8 on a ring of 8
        (A2A, "line", 7 * H, 2 / (B / 2)),  # 4 x 4 pairs over one middle link of B/2
        (PERMUTE, "switch", H, 1 / B),
        (PERMUTE, "ring", H, 1 / (B / 2)),
        (PERMUTE, "line", 7 * H, 1 / (B / 2)),
    ],
)
def test_closed_forms_on_one_level_of_eight(kind, level, alpha, beta):
    cost = whole(kind, machine((level, 8)))
    assert cost.alpha_seconds == pytest.approx(alpha)
    assert cost.beta_seconds_per_byte == pytest.approx(beta)


@pytest.mark.parametrize("n", range(2, 18))
def test_devices_in_one_memory_meet_in_a_logarithm_of_steps(n):
    topology = machine(("switch", n), platform="cpu")
    for kind, factor in ((RS, 1), (AG, 1), (AR, 2)):
        line = whole(kind, topology)
        assert line.alpha_seconds == pytest.approx(factor * H * (n - 1).bit_length())
        assert line.beta_seconds_per_byte == pytest.approx(factor * (1 - 1 / n) / B)


@pytest.mark.parametrize("level", ["ring", "line"])
@pytest.mark.parametrize("n", range(2, 9))
def test_exchange_is_the_busiest_link(level, n):
    """Oracle: route every pair of an all-to-all; the busiest directed link sets the time."""
    load = np.zeros((n, 2))
    for source in range(n):
        for step in range(1, n):
            target = (source + step) % n
            forward = target - source if level == "line" else (step if 2 * step <= n else step - n)
            # On an even ring the farthest rank is reached half each way.
            halves = [forward, -forward] if level == "ring" and 2 * step == n else [forward] * 2
            for hops in halves:
                way = int(hops < 0)
                for hop in range(abs(hops)):
                    load[(source + (hop if not way else -hop - 1)) % n, way] += 0.5
    beta = load.max() / n / (B / 2)
    cost = whole(A2A, machine((level, n)))
    if level == "ring" and n == 2:
        beta = 1 / 2 / B  # two links join the pair
    assert cost.beta_seconds_per_byte == pytest.approx(beta)


@given(
    st.lists(
        st.tuples(st.sampled_from(["ring", "line"]), st.integers(2, 16), st.integers(1, 9)),
        min_size=1,
        max_size=3,
    )
)
def test_torus_is_the_best_split_over_orders(levels):
    """Oracle: a linear programme over the share of the buffer that takes each order."""
    rates = [rate / (2 if kind == "line" else 1) for kind, _, rate in levels]
    sizes = [size for _, size, _ in levels]
    orders = list(permutations(range(len(levels))))
    loads = np.zeros((len(levels), len(orders)))
    for column, order in enumerate(orders):
        for place, dim in enumerate(order):
            inside = prod(sizes[other] for other in order[:place])
            loads[dim, column] = (1 - 1 / sizes[dim]) / inside / rates[dim]
    objective = np.zeros(len(orders) + 1)
    objective[-1] = 1
    best = linprog(
        objective,
        A_ub=np.hstack([loads, -np.ones((len(levels), 1))]),
        b_ub=np.zeros(len(levels)),
        A_eq=np.append(np.ones(len(orders)), 0)[None],
        b_eq=[1],
    ).fun
    cost = whole(AR, machine(*levels))
    assert cost.beta_seconds_per_byte == pytest.approx(2 * best, rel=1e-6)


# Links have 50 GB/s on v5e and 100 on v5p; a ring uses two of them, whatever the dimensions.
@pytest.mark.parametrize(
    ("name", "shape", "axes", "beta", "has_dimensions"),
    [
        ("v5e:4x8", (32,), (0,), 31 / 32 / 100e9, True),
        ("v5e:16x16", (4, 64), (1,), 63 / 64 / 100e9, False),
        ("v5e:8x8", (2, 32), (1,), 31 / 32 / 100e9, False),
        ("v5p:4x4x4", (4, 4, 4), (0, 2), 15 / 16 / 200e9, True),
        ("v5p:4x4x4", (2, 32), (1,), 31 / 32 / 200e9, False),
        ("v5p:4x4x8", (4, 4, 8), (1, 2), 31 / 32 / 200e9, True),
    ],
)
def test_only_all_reduces_use_several_whole_dimensions(name, shape, axes, beta, has_dimensions):
    """As libtpu 0.0.51 compiles them: `1DAllGather`, `StrategyRing` and, of all-reduces over whole
    dimensions, `StrategyND`.
    """
    topology = get_topology(name)
    ring, stages = by_algorithm(topology, shape, axes)
    assert ring[RS] == ring[AG]
    assert ring[RS].lines[-1].beta_seconds_per_byte == pytest.approx(beta)
    assert (ring[AR] == stages[AR]) == has_dimensions
    if not has_dimensions:
        assert ring[AR].lines[-1].beta_seconds_per_byte == pytest.approx(2 * beta)


@pytest.mark.parametrize(
    ("name", "is_reduced"),
    [
        # As libtpu 0.0.51 compiles them.
        ("v5e:2x2", False),
        ("v5e:2x4", False),
        ("v5e:4x8", False),
        ("v5e:4x4", True),
        ("v5e:8x8", True),
        ("v5p:2x2x2", True),
        ("v5p:2x4x4", True),
        ("v5p:4x4x8", True),
    ],
)
def test_over_a_square_or_a_block_of_chips_a_scatter_is_an_all_reduce(name, is_reduced):
    topology = get_topology(name)
    count = topology.device_count
    assert (whole(RS, topology) == whole(AR, topology)) == is_reduced
    # Part of the slice scatters.
    part = {kind: collective_cost(kind, topology, (2, count // 2), (1,)) for kind in (RS, AG)}
    assert part[RS] == part[AG]


def by_algorithm(topology, shape, axes):
    """Costs by kind, as TPUs and as a platform that uses all dimensions for everything."""
    group = spans(topology, shape, axes)
    torus = {kind: group_cost(kind, "tpu", group) for kind in (AR, RS, AG)}
    stages = {kind: group_cost(kind, "cpu", group) for kind in (AR, RS, AG)}
    return torus, stages


def hosts(name, n_hosts, gpus):
    """A topology of the catalogue's GPU hosts that sends in one way, as other platforms do."""
    return dataclasses.replace(by_formulas(f"{n_hosts}x{gpus}x{name}"), platform="tpu")


@pytest.mark.parametrize(("kind", "factor", "steps"), [(RS, 1, 2), (AG, 1, 2), (AR, 2, 3)])
def test_across_hosts_stages_or_one_ring(kind, factor, steps):
    """Four hosts of eight: stages start sooner (2 halvings or 3 ring steps outside), a ring loads
    less.
    """
    topology = hosts("h100", 4, 8)
    (inner, h), (outer, k) = ((x.bytes_per_s, x.latency_seconds) for x in topology.levels)
    stages, ring = collective_cost(kind, topology, (32,), (0,)).lines
    assert stages.alpha_seconds == pytest.approx(factor * (7 * h + steps * k))
    assert stages.beta_seconds_per_byte == pytest.approx(
        factor * (7 / 8 / inner + 3 / 4 / (8 * outer))
    )
    assert ring.alpha_seconds == pytest.approx(factor * (4 * 7 * h + 3 * k))
    assert ring.beta_seconds_per_byte == pytest.approx(factor * 31 / 32 / (8 * outer))


@pytest.mark.parametrize("name", ["2x8xv100", "4x8xv100", "flexflow-k80", "8x8xh100"])
@given(n_bytes=st.floats(1, 1e10))
def test_stages_help_where_cards_are_slow(name, n_bytes):
    """Hierarchical is at most flat: the choice never exceeds one ring through all ranks."""
    topology = by_formulas(name)
    total = topology.device_count
    inside, edges, slowest = 1, 0.0, 0.0
    for level in topology.levels:
        rate = level.bytes_per_s / level.shared_by
        slowest = max(slowest, 1 / (inside * rate))
        edges += (level.size - 1) * total / (inside * level.size) * level.latency_seconds
        inside *= level.size
    flat = 8.4e-6 + 2 * edges + 2 * (1 - 1 / total) * slowest * n_bytes
    assert collective_cost(AR, topology, (total,), (0,)).seconds(n_bytes) <= flat * (1 + 1e-9)


def test_devices_of_a_host_share_its_card():
    one, eight = hosts("v100", 2, 1), hosts("v100", 2, 8)
    alone = single_line(AR, one, (2,), (0,)).beta_seconds_per_byte
    together = single_line(AR, eight, (2, 8), (0,)).beta_seconds_per_byte
    assert together == pytest.approx(8 * alone)


def test_direct_messages_load_the_slowest_way_out():
    """All-to-all over two hosts of eight: eight of sixteen parts leave through a rank's card."""
    topology = hosts("h100", 2, 8)
    line = single_line(A2A, topology, (16,), (0,))
    assert line.beta_seconds_per_byte == pytest.approx(8 / 16 / 50e9)
    assert line.alpha_seconds == pytest.approx(7 * 3.4e-6 + 8 * 9.6e-6)


def test_strided_groups_share_a_ring_but_not_a_switch():
    strided = single_line(RS, RING16, (4, 4), (0,)).beta_seconds_per_byte
    assert strided == pytest.approx(3 / 4 / (B / 4))
    switch = machine(("switch", 16))
    betas = {single_line(RS, switch, (4, 4), (axis,)).beta_seconds_per_byte for axis in (0, 1)}
    assert sorted(betas) == pytest.approx([3 / 4 / B])


def test_pieces_of_one_ring_are_not_counted_as_two_dimensions():
    apart = single_line(RS, RING16, (2, 2, 4), (0, 2)).beta_seconds_per_byte
    assert apart == pytest.approx(3 / 4 / (B / 2) + 1 / 2 / 4 / (B / 8))


KINDS = st.sampled_from(["ring", "line", "switch"])
REACHES = st.sampled_from(["host", "network"])
PLATFORMS = st.sampled_from(["cpu", "tpu", "cuda"])
BYTES = st.floats(0, 1e10)
MACHINES = st.builds(
    lambda levels, reaches, platform: machine(*levels, reaches=reaches, platform=platform),
    st.lists(st.tuples(KINDS, st.integers(2, 8), st.floats(1.0, 1e3)), min_size=1, max_size=3),
    st.lists(REACHES, min_size=3, max_size=3),
    PLATFORMS,
)


@st.composite
def groups(draw):
    """A machine, a mesh on it, and a group of more than one rank."""
    topology = draw(MACHINES)
    shape = draw(st.sampled_from(mesh_shapes(topology)))
    axes = tuple(draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    return topology, shape, axes


@given(groups(), st.floats(0, 1e9), st.floats(1, 1e9))
def test_algebra(group, n_bytes, more):
    cost = {kind: collective_cost(kind, *group) for kind in CollectiveKind}
    seconds = {kind: cost[kind].seconds(n_bytes) for kind in CollectiveKind}
    dims = sum(span.kind != "switch" for span in spans(*group))
    is_torus = group[0].platform == "tpu" and dims > 1
    if not is_torus:
        assert seconds[RS] == seconds[AG] < seconds[AR]
    assert 0 < max(seconds[RS], seconds[AG]) <= seconds[AR]
    for kind in CollectiveKind:
        assert cost[kind].seconds(n_bytes + more) > seconds[kind]
        # Concave: a message of twice the size costs less than two.
        assert cost[kind].seconds(2 * n_bytes) <= 2 * seconds[kind] * (1 + 1e-12)
    if (
        group[0].platform != "cuda"
        and not is_torus
        and all(x.reach == "host" for x in group[0].levels)
    ):
        assert seconds[AR] == pytest.approx(seconds[RS] + seconds[AG], rel=1e-12)


@given(groups())
def test_no_gather_beats_what_the_links_can_carry(group):
    """Each rank must receive (1 - 1/n) of the result, over all its links together."""
    used = spans(*group)
    ranks = prod(span.ranks for span in used)
    ceiling = sum(span.level.bytes_per_s for span in used)
    for line in collective_cost(AG, *group).lines:
        assert line.beta_seconds_per_byte >= (1 - 1 / ranks) / ceiling * (1 - 1e-12)


@given(KINDS, REACHES, PLATFORMS, st.integers(2, 64), st.sampled_from(CollectiveKind), BYTES)
def test_more_ranks_cost_no_less(level, reach, platform, n, kind, n_bytes):
    def seconds(size):
        topology = machine((level, size), reaches=[reach], platform=platform)
        return collective_cost(kind, topology, (size,), (0,)).seconds(n_bytes)

    assert seconds(n + 1) >= seconds(n) * (1 - 1e-12)


@given(st.sampled_from(CollectiveKind), st.integers(1, 8), st.integers(1, 7), BYTES)
def test_more_hosts_and_more_gpus_cost_no_less(kind, n_hosts, gpus, n_bytes):
    def seconds(*shape):
        topology = by_formulas("x".join(map(str, shape)) + "xh100")
        return collective_cost(kind, topology, (topology.device_count,), (0,)).seconds(n_bytes)

    least = seconds(n_hosts, gpus) * (1 - 1e-12)
    assert seconds(n_hosts + 1, gpus) >= least
    # A bigger host has more cards: what it sends through them may be less for each.
    if n_hosts == 1:
        assert seconds(n_hosts, gpus + 1) >= least


@given(
    st.sampled_from(CollectiveKind), st.sampled_from(["2x8xv100", "2x8xa100", "8x8xb200"]), BYTES
)
def test_inside_a_host_is_cheaper_than_across(kind, name, n_bytes):
    topology = by_formulas(name)
    n_hosts = topology.levels[-1].size
    shape = (n_hosts, 8 // n_hosts, n_hosts)
    inside, across = (collective_cost(kind, topology, shape, (axis,)) for axis in (2, 0))
    assert inside.seconds(n_bytes) < across.seconds(n_bytes)


@pytest.mark.parametrize("kind", CollectiveKind)
def test_a_group_of_one_is_free(kind):
    for shape, axes in (((16, 1), (1,)), ((16,), ())):
        assert collective_cost(kind, RING16, shape, axes).seconds(1e9) == 0.0
