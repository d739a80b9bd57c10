"""The walk over configurations against all of them, the ways to price against each other, and the
descent against every neighbour.
"""

from itertools import permutations, product
import math

import pytest

from automap.search.soap import Pricing, SoapBudget, descend, soap_search
from automap.simulate.operators.build import operator_graph
from automap.simulate.operators.configuration import (
    Configuration,
    data_parallel,
    single,
    splits,
    spread,
)
from automap.simulate.operators.graph import graph_layers
from automap.simulate.operators.network import device_network, first_devices
from automap.simulate.operators.simulator import Simulator
from automap.topology import get_topology
from tests.automap.simulate.operators.cases import random_graph, random_network
from tests.steps import mlp, problem_of


def _every_configuration(operator, n_devices):
    """As the search proposes them: powers of two, no copies."""
    sizes = [factor.size for factor in operator.factors[:-1]]
    for degrees in product((1, 2), repeat=len(sizes)):
        n_parts = math.prod(degrees)
        if n_parts <= n_devices and all(s % d == 0 for s, d in zip(sizes, degrees, strict=True)):
            for devices in permutations(range(n_devices), n_parts):
                yield Configuration((*degrees, 1), devices)


@pytest.mark.parametrize("seed", range(4))
def test_finds_the_best_of_all_configurations_of_a_tiny_graph(seed):
    n_devices = 2
    graph, network = random_graph(seed, 3), random_network(seed, n_devices)
    choices = [list(_every_configuration(o, n_devices)) for o in graph.operators]
    steps = [
        Simulator(graph, network, configurations).makespan_seconds
        for configurations in product(*choices)
    ]
    # As in the paper, from several starts: all on one device, data parallelism.
    starts = [[single(o, device) for o in graph.operators] for device in range(n_devices)]
    budget = SoapBudget(least_proposals=1_000, most_proposals=3_000)
    results = [
        soap_search(Simulator(graph, network, start), (), budget, seed=seed)
        for start in (*starts, data_parallel(graph, n_devices))
    ]
    result = min(results, key=lambda result: result.step_seconds)
    # Copies, which data parallelism has, are not among the configurations walked over.
    assert result.step_seconds <= min(steps)
    assert min(r.step_seconds for r in results[:n_devices]) == min(steps)
    again = Simulator(graph, network, result.configurations)
    assert again.makespan_seconds == result.step_seconds


def _search(pricing, seed=0, proposals=150):
    graph = operator_graph(problem_of(*mlp()), get_topology("8xv100"))
    network = device_network(get_topology("8xv100"))
    simulator = Simulator(graph, network, data_parallel(graph, 8))
    before = simulator.makespan_seconds
    budget = SoapBudget(least_proposals=proposals, most_proposals=proposals)
    result = soap_search(simulator, graph_layers(graph), budget, seed=seed, pricing=pricing)
    return before, result


@pytest.mark.slow
def test_every_simulation_makes_the_same_walk():
    results = [_search(p)[1] for p in (Pricing.WITHIN, Pricing.REBUILT, Pricing.DELTA)]
    assert results[0] == results[1] == results[2]


def test_the_same_seed_makes_the_same_walk_and_another_one_another():
    assert _search(Pricing.WITHIN, seed=1) == _search(Pricing.WITHIN, seed=1)
    assert _search(Pricing.WITHIN, seed=1)[1] != _search(Pricing.WITHIN, seed=2)[1]


def test_it_never_ends_worse_than_it_starts():
    before, result = _search(Pricing.WITHIN)
    assert result.step_seconds <= before
    assert 0 < result.accepted <= result.proposals == 150


@pytest.mark.parametrize("n_devices", [2, 4])
def test_no_split_of_a_layer_is_better_than_where_a_descent_ends(n_devices):
    topology = get_topology("8xv100")
    graph = operator_graph(problem_of(*mlp()), topology)
    network = first_devices(device_network(topology), n_devices)
    layers = graph_layers(graph)
    simulator = Simulator(graph, network, [single(o, 0) for o in graph.operators])
    before = simulator.makespan_seconds
    result = descend(simulator, layers, 10_000)
    assert result.is_optimum
    assert result.step_seconds < before
    assert simulator.makespan_seconds == result.step_seconds
    for layer in layers:
        for split in splits(dict(layer.classes), n_devices):
            for number in layer.operators:
                simulator.place(number, spread(graph.operators[number], split))
            simulator.simulate()
            assert simulator.makespan_seconds >= result.step_seconds
            for number in layer.operators:
                simulator.place(number, result.configurations[number])


def test_a_descent_that_is_ended_says_that_it_is_no_optimum():
    graph = operator_graph(problem_of(*mlp()), get_topology("8xv100"))
    network = device_network(get_topology("8xv100"))
    simulator = Simulator(graph, network, [single(o, 0) for o in graph.operators])
    result = descend(simulator, graph_layers(graph), 3)
    assert (result.proposals, result.is_optimum) == (3, False)


def test_of_one_part_a_layer_is_on_one_device():
    graph = operator_graph(problem_of(*mlp()), get_topology("8xv100"))
    network = device_network(get_topology("8xv100"))
    simulator = Simulator(graph, network, [single(o, 0) for o in graph.operators])
    result = descend(simulator, graph_layers(graph), 10_000, most_parts=1)
    assert {len(c.devices) for c in result.configurations} == {1}
    assert result.is_optimum


def test_no_seconds_no_proposals():
    graph, network = random_graph(0, 3), random_network(0, 2)
    start = Simulator(graph, network, [single(o, 0) for o in graph.operators])
    budget = SoapBudget(least_proposals=10, most_proposals=10, seconds=0.0)
    result = soap_search(start, (), budget)
    assert result.proposals == 0
    assert result.configurations == tuple(start.configurations)
