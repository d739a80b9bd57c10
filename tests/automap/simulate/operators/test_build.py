"""Operator graphs of small steps: what is read along what, and what a step takes."""

import math

import numpy as np
import pytest

from automap.simulate.operators.build import operator_graph
from automap.simulate.operators.configuration import data_parallel, single
from automap.simulate.operators.graph import ConsumerStep
from automap.simulate.operators.network import device_network
from automap.simulate.operators.simulator import Simulator
from automap.topology import get_topology
from hlo_tools.rules import FactorKind
from tests.automap.simulate.operators.reference import explicit, full_reference
from tests.steps import decoder, mlp, problem_of


TOPOLOGY = get_topology("8xv100")


@pytest.fixture(scope="module", params=[mlp, decoder], ids=["mlp", "decoder"])
def graph(request):
    return operator_graph(problem_of(*request.param()), TOPOLOGY)


def test_edges_lead_forward_within_a_step_and_name_factors_of_their_operators(graph):
    for edge in graph.edges:
        source, target = graph.operators[edge.source], graph.operators[edge.target]
        assert edge.consumer_step is ConsumerStep.NEXT_STEP or edge.source < edge.target
        for f, g in edge.dims:
            assert -1 <= f < len(source.factors) - 1
            assert -1 <= g < len(target.factors) - 1
            if f >= 0 and g >= 0:
                # A reshape has the leading part of a dimension in common only.
                sizes = source.factors[f].size, target.factors[g].size
                assert max(sizes) % min(sizes) == 0


def test_one_device_takes_the_sum_of_its_operators(graph):
    simulator = Simulator(graph, device_network(TOPOLOGY), [single(o, 0) for o in graph.operators])
    wanted = math.fsum(o.part_seconds((1,) * len(o.factors)) for o in graph.operators)
    assert simulator.makespan_seconds == pytest.approx(wanted, rel=1e-12)
    assert simulator.n_tasks == len(graph.operators)


def test_data_parallel_only_adds_up_what_sums_over_the_batch(graph):
    n = 8
    simulator = Simulator(graph, device_network(TOPOLOGY), data_parallel(graph, n))
    sums = [
        o
        for o in graph.operators
        if any(f.is_batch and f.kind is FactorKind.REDUCTION for f in o.factors)
    ]
    timeline = simulator.timeline()
    assert np.count_nonzero(timeline.resource < n) == n * len(graph.operators)
    assert sums
    assert np.count_nonzero(timeline.resource >= n) == n * len(sums)


def test_weights_are_fetched_where_they_are_not_made_for_the_next_step():
    graph = operator_graph(problem_of(*mlp()), TOPOLOGY)
    back = [e for e in graph.edges if e.consumer_step is ConsumerStep.NEXT_STEP]
    assert {graph.operators[e.source].phase for e in back} == {"update"}
    configurations = [single(o, int(o.phase == "update")) for o in graph.operators]
    simulator = Simulator(graph, device_network(TOPOLOGY), configurations)
    tasks = explicit(graph, simulator.network, configurations)
    network = device_network(TOPOLOGY)
    to_first = network.n_devices + network.media[1, 0, 0]
    assert sum(task.resource == to_first for task in tasks.values()) == sum(
        graph.operators[e.target].phase != "update" for e in back
    )
    assert simulator.makespan_seconds == max(full_reference(tasks).end.values())
