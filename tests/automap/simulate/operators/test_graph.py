"""Layers of operator graphs, and splits of all operators of a layer at once."""

import numpy as np
import pytest

from automap.simulate.operators.build import operator_graph
from automap.simulate.operators.configuration import (
    Split,
    check,
    data_parallel,
    random_devices,
    random_split,
    splits,
    spread,
)
from automap.simulate.operators.graph import graph_layers
from automap.simulate.operators.network import device_network
from automap.simulate.operators.simulator import Simulator
from automap.topology import get_topology
from models.alexnet import alexnet_tiny
from models.nmt import nmt_tiny
from tests.steps import decoder, mlp, problem_of


TOPOLOGY = get_topology("8xv100")


def _graph(model):
    step, args = model()
    problem = problem_of(step, args)
    return problem, operator_graph(problem, TOPOLOGY)


@pytest.mark.parametrize("model", [mlp, decoder, alexnet_tiny, nmt_tiny])
def test_every_operator_is_in_one_layer(model):
    _, graph = _graph(model)
    numbers = [number for layer in graph_layers(graph) for number in layer.operators]
    assert sorted(numbers) == list(range(len(graph.operators)))


def _with_products(graph):
    """Layers with contractions, as names of their phases in order."""
    result = []
    for layer in graph_layers(graph):
        products = [n for n in layer.operators if graph.operators[n].compute_seconds]
        if products:
            result.append([graph.operators[n].phase for n in products])
    return result


def test_a_dense_layer_has_its_product_and_both_of_its_gradients():
    _, graph = _graph(mlp)
    first, second = _with_products(graph)
    # No gradient of the batch is needed.
    assert first == ["forward", "backward"]
    assert second == ["forward", "backward", "backward"]
    phases = [{graph.operators[n].phase for n in layer.operators} for layer in graph_layers(graph)]
    assert all("update" in each for each in phases[:2])


def test_a_recurrent_layer_has_all_its_time_steps():
    _, graph = _graph(nmt_tiny)
    # Two and two layers of eight steps, each with a product forward and two backward, or one at the
    # first step, where the state is zero and reads nothing; attention and the output.
    products = _with_products(graph)
    recurrent = [phases for phases in products if phases.count("forward") >= 8]
    assert len(recurrent) >= 2
    assert sum(phases.count("forward") for phases in recurrent) >= 4 * 8


@pytest.mark.parametrize("model", [mlp, decoder, alexnet_tiny])
def test_the_batch_spread_over_all_devices_is_data_parallelism(model):
    problem, graph = _graph(model)
    split = Split(((problem.batch_class, 8),), tuple(range(8)))
    assert [spread(o, split) for o in graph.operators] == data_parallel(graph, 8)


@pytest.mark.parametrize("model", [mlp, decoder, alexnet_tiny])
def test_random_splits_suit_every_operator_of_their_layer(model):
    _, graph = _graph(model)
    rng = np.random.default_rng(0)
    for layer in graph_layers(graph):
        for _ in range(10):
            split = random_split(dict(layer.classes), 8, rng)
            for number in layer.operators:
                configuration = spread(graph.operators[number], split)
                check(graph.operators[number], configuration, 8)
                assert set(configuration.devices) == set(split.devices)


def test_what_operators_of_a_split_exchange_is_on_the_same_device():
    """Batch and hidden features of an MLP's first layer: what follows elementwise moves nothing."""
    problem, graph = _graph(mlp)
    hidden = problem.compute_classes(
        problem.graph.inputs[problem.paths.index("[0]['params']['w1']")]
    )[1]
    classes = ((hidden, 2), (problem.batch_class, 4))
    split = Split(classes, (5, 4, 7, 6, 1, 0, 3, 2))
    configurations = [spread(o, split) for o in graph.operators]
    simulator = Simulator(graph, device_network(TOPOLOGY), configurations)
    transfers = simulator.timeline().resource >= 8
    sums = [
        o
        for o, c in zip(graph.operators, configurations, strict=True)
        if any(f.kind.name == "REDUCTION" and d > 1 for f, d in zip(o.factors, c.degrees))
    ]
    assert transfers.sum() == 8 * len(sums)


def test_random_devices_are_different_and_there():
    rng = np.random.default_rng(1)
    for count in (1, 2, 3, 8):
        for _ in range(50):
            devices = random_devices(count, 8, rng)
            assert len(set(devices)) == count
            assert set(devices) <= set(range(8))


def test_splits_are_all_of_two_classes_on_groups_of_a_mesh():
    every = list(splits({7: 4, 9: 2}, 4))
    # On one device: 4. In two, of either class: two groups of neighbours, two of every other
    # device. In four: of the larger class, or of both in either order.
    assert [len(s.devices) for s in every] == [1] * 4 + [2] * 2 * 4 + [4] * 3
    assert {s.degrees for s in every if len(s.devices) == 4} == {
        ((7, 4),),
        ((7, 2), (9, 2)),
        ((9, 2), (7, 2)),
    }
    assert {s.devices for s in every if len(s.devices) == 2} == {(0, 1), (2, 3), (0, 2), (1, 3)}
    assert len(set(every)) == len(every)


def test_degrees_are_any_divisor():
    drawn = {
        degree
        for seed in range(200)
        for _, degree in random_split({0: 6, 1: 5}, 8, np.random.default_rng(seed)).degrees
    }
    assert drawn == {2, 3, 5, 6}
