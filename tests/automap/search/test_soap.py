"""The walk over configurations against all of them, and delta simulation against full."""

from itertools import permutations, product
import math

import pytest

from automap.search.soap import SoapBudget, soap_search
from automap.simulate.operators.build import operator_graph
from automap.simulate.operators.configuration import Configuration, data_parallel, single
from automap.simulate.operators.graph import graph_layers
from automap.simulate.operators.network import device_network
from automap.simulate.operators.simulator import Method, Simulator
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


def _search(method, seed=0, proposals=150):
    graph = operator_graph(problem_of(*mlp()), get_topology("8xv100"))
    network = device_network(get_topology("8xv100"))
    simulator = Simulator(graph, network, data_parallel(graph, 8))
    before = simulator.makespan_seconds
    budget = SoapBudget(least_proposals=proposals, most_proposals=proposals)
    result = soap_search(simulator, graph_layers(graph), budget, seed=seed, method=method)
    return before, result


@pytest.mark.slow
def test_delta_and_full_simulation_make_the_same_walk():
    results = [_search(method)[1] for method in (Method.FULL, Method.DELTA, Method.EITHER)]
    assert results[0] == results[1] == results[2]


def test_the_same_seed_makes_the_same_walk_and_another_one_another():
    assert _search(Method.FULL, seed=1) == _search(Method.FULL, seed=1)
    assert _search(Method.FULL, seed=1)[1] != _search(Method.FULL, seed=2)[1]


def test_it_never_ends_worse_than_it_starts():
    before, result = _search(Method.FULL)
    assert result.step_seconds <= before
    assert 0 < result.accepted <= result.proposals == 150


def test_no_seconds_no_proposals():
    graph, network = random_graph(0, 3), random_network(0, 2)
    start = Simulator(graph, network, [single(o, 0) for o in graph.operators])
    budget = SoapBudget(least_proposals=10, most_proposals=10, seconds=0.0)
    result = soap_search(start, (), budget)
    assert result.proposals == 0
    assert result.configurations == tuple(start.configurations)
