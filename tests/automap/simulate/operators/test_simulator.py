"""Full, delta and plain Python simulation: one timeline, to the last bit, after any move."""

from collections.abc import Iterator
import dataclasses

import numpy as np
import pytest

from automap.errors import InputError
from automap.simulate.operators.configuration import Configuration, random_configuration, single
from automap.simulate.operators.graph import (
    ConsumerStep,
    Edge,
    Operator,
    OperatorGraph,
    SplitFactor,
)
from automap.simulate.operators.network import device_network
from automap.simulate.operators.simulator import Method, PlacedTimeline, Simulator
from automap.topology import get_topology
from hlo_tools.rules import FactorKind
from tests.automap.simulate.operators.cases import random_graph, random_network
from tests.automap.simulate.operators.reference import delta_reference, explicit, full_reference


def _random_start(seed, n_devices, n_operators=24):
    rng = np.random.default_rng(seed)
    graph = random_graph(seed, n_operators)
    configurations = [random_configuration(o, n_devices, rng) for o in graph.operators]
    return Simulator(graph, random_network(seed, n_devices), configurations), rng


def _moves(simulator, rng, count) -> Iterator[tuple[int, Configuration]]:
    for _ in range(count):
        o = int(rng.integers(len(simulator.graph.operators)))
        operator = simulator.graph.operators[o]
        yield o, random_configuration(operator, simulator.network.n_devices, rng)


def _columns(placement: PlacedTimeline):
    return [getattr(placement, field.name).tolist() for field in dataclasses.fields(placement)]


def _are_equal(one: PlacedTimeline, other: PlacedTimeline):
    names = [field.name for field in dataclasses.fields(PlacedTimeline)]
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


def _mismatches(seed, n_devices, count):
    """Moves after which delta and full simulation differ; each starts from the delta's result."""
    simulator, rng = _random_start(seed, n_devices)
    mismatches = in_full = 0
    for o, configuration in _moves(simulator, rng, count):
        in_full += simulator.move(o, configuration, Method.DELTA) is Method.FULL
        timeline = simulator.timeline()
        simulator.simulate()
        mismatches += not _are_equal(timeline, simulator.timeline())
    assert in_full < count / 4  # when room for tasks runs out
    return mismatches


@pytest.mark.parametrize(
    ("n_devices", "seeds"), [pytest.param(4, 5, marks=pytest.mark.slow), (7, 3), (16, 3), (64, 1)]
)
def test_delta_is_full_after_a_thousand_moves(n_devices, seeds):
    assert [_mismatches(s, n_devices, 90 if n_devices < 64 else 20) for s in range(seeds)] == [
        0
    ] * seeds


@pytest.mark.slow
@pytest.mark.parametrize(("n_devices", "seeds"), [(4, 20), (7, 10), (16, 8), (32, 2), (64, 1)])
def test_delta_is_full_after_ten_thousand_moves(n_devices, seeds):
    assert [_mismatches(100 + s, n_devices, 250) for s in range(seeds)] == [0] * seeds


@pytest.mark.parametrize("n_devices", [1, 2, 3, 4, 8])
def test_plain_python_has_the_same_tasks_and_timeline(n_devices):
    simulator, rng = _random_start(n_devices, n_devices, n_operators=12)
    graph, network = simulator.graph, simulator.network
    before = full_reference(explicit(graph, network, simulator.configurations))
    for o, configuration in _moves(simulator, rng, 12):
        simulator.move(o, configuration, Method.DELTA)
        tasks = explicit(graph, network, simulator.configurations)
        wanted, delta = full_reference(tasks), delta_reference(before, tasks)
        ids = sorted(tasks)
        timeline = simulator.timeline()
        assert timeline.ident.tolist() == ids
        assert timeline.resource.tolist() == [tasks[i].resource for i in ids]
        assert timeline.ready_seconds.tolist() == [wanted.ready[i] for i in ids]
        assert timeline.end_seconds.tolist() == [wanted.end[i] for i in ids]
        assert (delta.ready, delta.end) == (wanted.ready, wanted.end)
        before = delta


def _sender_and_readers(n_readers):
    """One operator and those that read 1 GB of it, as whole tensors; they take no time."""
    nothing = {"phase": "forward", "trips": 1, "compute_seconds": 0.0, "traffic": ()}
    factors = (SplitFactor(1 << 62, FactorKind.REPLICATION),)
    operators = tuple(
        Operator(
            name=f"operator {n}",
            factors=factors,
            launch_seconds=0.0,
            result_bytes=1e9,
            result_factors=(),
            **nothing,
        )
        for n in range(1 + n_readers)
    )
    edges = tuple(
        Edge(source=0, target=n, n_bytes=1e9, dims=(), consumer_step=ConsumerStep.SAME_STEP)
        for n in range(1, 1 + n_readers)
    )
    return OperatorGraph(operators, edges)


@pytest.mark.parametrize(
    ("readers_on", "in_turn"),
    [
        ((4,), 1),  # one transfer to the other host
        ((4, 5, 6), 3),  # three share both adapters
        ((4, 8, 12), 3),  # three share the sender's
        ((1, 2, 3), 3),  # three share the port of the GPU
        ((1, 4), 1),  # a port inside the host and the adapter work side by side
        ((4, 4, 1), 2),
    ],
)
def test_what_leaves_a_host_goes_over_its_adapter_in_turn(readers_on, in_turn):
    network = device_network(get_topology("flexflow-p100"))
    graph = _sender_and_readers(len(readers_on))
    devices = (0, *readers_on)
    simulator = Simulator(
        graph, network, [single(o, d) for o, d in zip(graph.operators, devices, strict=True)]
    )
    slowest = max(readers_on)
    seconds = 1e9 / network.bytes_per_s[0, slowest] + network.latency_seconds[0, slowest]
    assert simulator.makespan_seconds == pytest.approx(in_turn * seconds, rel=1e-4)
    assert simulator.moved_bytes() == pytest.approx(len(readers_on) * 1e9)


def test_a_sum_over_hosts_goes_once_over_each_adapter_in_any_order_of_devices():
    network = device_network(get_topology("flexflow-p100"))
    operator = dataclasses.replace(
        _sender_and_readers(0).operators[0],
        factors=(
            SplitFactor(16, FactorKind.REDUCTION),
            SplitFactor(1 << 62, FactorKind.REPLICATION),
        ),
    )
    graph = OperatorGraph((operator,), ())
    # 2 (n - 1) / n of all bytes through each adapter, which is the slowest link of the ring.
    wanted = 2 * 15 * (1e9 / 16 / 12.5e9 + network.latency_seconds[3, 4])
    for devices in (tuple(range(16)), tuple((7 * d) % 16 for d in range(16))):
        simulator = Simulator(graph, network, [Configuration((16, 1), devices)])
        assert simulator.makespan_seconds == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_no_device_or_link_does_two_tasks_at_once(seed):
    simulator, _ = _random_start(seed, 8)
    timeline = simulator.timeline()
    for resource in np.unique(timeline.resource):
        mine = timeline.resource == resource
        order = np.lexsort((timeline.ident[mine], timeline.ready_seconds[mine]))
        start, end = timeline.start_seconds[mine][order], timeline.end_seconds[mine][order]
        assert (start[1:] >= end[:-1]).all()
    assert (timeline.start_seconds >= timeline.ready_seconds).all()
    assert simulator.makespan_seconds == timeline.end_seconds.max()


def test_giving_up_leaves_the_timeline_of_a_full_simulation():
    simulator, rng = _random_start(5, 8)
    ways = set()
    for o, configuration in _moves(simulator, rng, 30):
        ways.add(simulator.move(o, configuration, Method.EITHER))
        before = _columns(simulator.timeline())
        simulator.simulate()
        assert before == _columns(simulator.timeline())
    assert ways == {Method.FULL, Method.DELTA}


def test_there_and_back_is_where_it_began():
    simulator, rng = _random_start(3, 8)
    before = _columns(simulator.timeline())
    old = list(simulator.configurations)
    for o, configuration in _moves(simulator, rng, 10):
        simulator.move(o, configuration, Method.DELTA)
        simulator.move(o, old[o], Method.DELTA)
        assert _columns(simulator.timeline()) == before


def test_what_does_not_fit_is_refused_and_changes_nothing():
    simulator, _ = _random_start(0, 4)
    operator = simulator.graph.operators[0]
    before = _columns(simulator.timeline())
    ones = (1,) * len(operator.factors)
    for configuration, message in [
        (Configuration(ones, (0, 1)), "1 different ones"),
        (Configuration(ones, (4,)), "allowed: 0 to 3"),
        (Configuration(ones[:-1], (0,)), "one for each factor"),
        (Configuration((5, *ones[1:]), (0,)), "dividing its size"),
        (Configuration((*ones[:-1], 2), (1, 1)), "2 different ones"),
    ]:
        with pytest.raises(InputError, match=message):
            simulator.move(0, configuration, Method.DELTA)
    assert _columns(simulator.timeline()) == before


def test_each_operator_has_one_configuration():
    simulator, _ = _random_start(0, 4)
    with pytest.raises(InputError, match="one for each of the 24 operators"):
        Simulator(simulator.graph, simulator.network, [single(simulator.graph.operators[0], 0)])


@pytest.mark.parametrize(("n_devices", "seed"), [(2, 0), (4, 1), (7, 2), (8, 3)])
def test_a_limit_ends_a_simulation_only_if_the_makespan_is_over_it(n_devices, seed):
    simulator, rng = _random_start(seed, n_devices)
    ended = set()
    for o, configuration in _moves(simulator, rng, 40):
        simulator.place(o, configuration)
        simulator.simulate()
        makespan_seconds = simulator.makespan_seconds
        for share in (0.3, 0.7, 0.9, 1.0, 1.1):
            within = simulator.simulate_within(share * makespan_seconds)
            assert within == (makespan_seconds if share >= 1.0 else None)
            ended.add(within is None)
    assert ended == {True, False}


def test_what_computing_alone_puts_over_the_limit_is_not_written():
    simulator, rng = _random_start(5, 8)
    before = _columns(simulator.timeline())
    for o, configuration in _moves(simulator, rng, 10):
        known = simulator.configurations[o]
        simulator.place(o, configuration)
        assert simulator.simulate_within(0.0) is None
        assert _columns(simulator.timeline()) == before
        simulator.place(o, known)
    simulator.simulate()
    assert _columns(simulator.timeline()) == before


def test_what_is_written_change_by_change_is_what_is_written_anew():
    simulator, rng = _random_start(4, 8)
    for _ in range(15):
        for o, configuration in _moves(simulator, rng, 5):
            simulator.place(o, configuration)
        simulator.simulate()
        before = _columns(simulator.timeline())
        simulator.rebuild()
        simulator.simulate()
        assert before == _columns(simulator.timeline())


def test_totals_of_a_plan_are_those_of_its_tasks():
    simulator, _ = _random_start(6, 4)
    timeline, n = simulator.timeline(), 4
    on_device = timeline.resource < n
    seconds = timeline.end_seconds - timeline.start_seconds
    assert simulator.busy_seconds() == pytest.approx(seconds[on_device].sum())
    alone = Simulator(
        simulator.graph, simulator.network, [single(o, 0) for o in simulator.graph.operators]
    )
    assert alone.moved_bytes() == 0.0
    assert alone.serial_seconds() == pytest.approx(alone.makespan_seconds)
    assert simulator.moved_bytes() > 0.0
    assert simulator.serial_seconds() >= simulator.makespan_seconds
