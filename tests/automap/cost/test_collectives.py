"""Collective costs against closed forms, a linear programme, and algebra that must hold."""

from itertools import permutations
from math import prod

from hypothesis import given, strategies as st
import numpy as np
import pytest
from scipy.optimize import linprog

from automap.cost.collectives import CollectiveKind, alpha_beta
from automap.cost.spans import spans
from automap.topology import Level, Topology, get_topology, mesh_shapes


AR, AG, RS, A2A, PERMUTE = CollectiveKind
B, H = 100.0, 0.5


def machine(*levels):
    """Topology of (kind, size) or (kind, size, bytes per second), innermost first."""
    made = tuple(
        Level(
            name=f"l{index}",
            size=size,
            kind=kind,
            bytes_per_s=rate[0] if rate else B,
            latency_seconds=H,
        )
        for index, (kind, size, *rate) in enumerate(levels)
    )
    return Topology(name="t", platform="cpu", device=get_topology("cpu:1").device, levels=made)


def whole(kind, topology):
    """The line of one group of all devices."""
    return alpha_beta(kind, topology, (topology.device_count,), (0,))


RING16 = machine(("ring", 16))


@pytest.mark.parametrize(
    ("kind", "level", "alpha", "beta"),
    [
        (RS, "switch", 3 * H, 7 / 8 / B),
        (RS, "ring", 4 * H, 7 / 8 / B),
        (RS, "line", 7 * H, 7 / 8 / (B / 2)),
        (AG, "ring", 4 * H, 7 / 8 / B),
        (AR, "switch", 6 * H, 2 * 7 / 8 / B),
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
    assert cost.seconds(10) == pytest.approx(alpha + 10 * beta)


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
    cost = whole(RS, machine(*levels))
    assert cost.beta_seconds_per_byte == pytest.approx(best, rel=1e-6)


def test_hosts_shrink_the_bytes_before_the_network():
    topology = machine(("switch", 8, 400.0), ("switch", 4, 10.0))
    cost = whole(RS, topology)
    assert cost.beta_seconds_per_byte == pytest.approx(7 / 8 / 400 + 3 / 4 / 8 / 10)
    assert cost.alpha_seconds == pytest.approx((3 + 2) * H)


def test_devices_of_a_host_share_its_card():
    one, eight = get_topology("2x1xv100"), get_topology("2x8xv100")
    alone = alpha_beta(AR, one, (2,), (0,)).beta_seconds_per_byte
    together = alpha_beta(AR, eight, (2, 8), (0,)).beta_seconds_per_byte
    assert together == pytest.approx(8 * alone)


def test_strided_groups_share_a_ring_but_not_a_switch():
    strided = alpha_beta(RS, RING16, (4, 4), (0,)).beta_seconds_per_byte
    assert strided == pytest.approx(3 / 4 / (B / 4))
    switch = machine(("switch", 16))
    betas = {alpha_beta(RS, switch, (4, 4), (axis,)).beta_seconds_per_byte for axis in (0, 1)}
    assert sorted(betas) == pytest.approx([3 / 4 / B])


def test_pieces_of_one_ring_are_not_counted_as_two_dimensions():
    apart = alpha_beta(RS, RING16, (2, 2, 4), (0, 2)).beta_seconds_per_byte
    assert apart == pytest.approx(3 / 4 / (B / 2) + 1 / 2 / 4 / (B / 8))


KINDS = st.sampled_from(["ring", "line", "switch"])
MACHINES = st.lists(
    st.tuples(KINDS, st.integers(2, 8), st.floats(1.0, 1e3)), min_size=1, max_size=3
).map(lambda levels: machine(*levels))


@st.composite
def groups(draw):
    """A machine, a mesh on it, and a group of more than one rank."""
    topology = draw(MACHINES)
    shape = draw(st.sampled_from(mesh_shapes(topology)))
    axes = tuple(draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    return topology, shape, axes


@given(groups(), st.floats(0, 1e9), st.floats(1, 1e9))
def test_algebra(group, n_bytes, more):
    cost = {kind: alpha_beta(kind, *group) for kind in CollectiveKind}
    seconds = {kind: cost[kind].seconds(n_bytes) for kind in CollectiveKind}
    assert seconds[AR] == pytest.approx(seconds[RS] + seconds[AG], rel=1e-12)
    assert 0 < seconds[RS] < seconds[AR]
    for kind in CollectiveKind:
        assert cost[kind].seconds(n_bytes + more) > seconds[kind]


@given(groups())
def test_no_gather_beats_what_the_links_can_carry(group):
    """Each rank must receive (1 - 1/n) of the result, over all its links together."""
    used = spans(*group)
    ranks = prod(span.ranks for span in used)
    ceiling = sum(span.level.bytes_per_s for span in used)
    assert alpha_beta(AG, *group).beta_seconds_per_byte >= (1 - 1 / ranks) / ceiling * (1 - 1e-12)


@given(KINDS, st.integers(2, 64), st.sampled_from([AR, AG, RS, A2A, PERMUTE]))
def test_more_ranks_cost_no_less(level, n, kind):
    small, large = (whole(kind, machine((level, size))) for size in (n, n + 1))
    assert large.seconds(1.0) >= small.seconds(1.0)
    assert large.beta_seconds_per_byte >= small.beta_seconds_per_byte


@given(st.sampled_from(CollectiveKind), st.sampled_from(["2x8xv100", "2x8xa100", "8x8xh100"]))
def test_inside_a_host_is_cheaper_than_across(kind, name):
    topology = get_topology(name)
    hosts = topology.levels[-1].size
    shape = (hosts, 8 // hosts, hosts)
    inside, across = (alpha_beta(kind, topology, shape, (axis,)) for axis in (2, 0))
    assert inside.seconds(1 << 20) < across.seconds(1 << 20)


@pytest.mark.parametrize("kind", CollectiveKind)
def test_a_group_of_one_is_free(kind):
    for cost in (alpha_beta(kind, RING16, (16, 1), (1,)), alpha_beta(kind, RING16, (16,), ())):
        assert cost.seconds(1e9) == 0.0
