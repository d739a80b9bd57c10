"""Gradients of weights that are used several times: one all-reduce each, at the end."""

import jax
import jax.numpy as jnp
import pytest

from automap.simulate.operators.build import operator_graph
from automap.simulate.operators.configuration import Configuration, data_parallel, single
from automap.simulate.operators.network import device_network
from automap.simulate.operators.simulator import Simulator
from automap.topology import get_topology
from hlo_tools.rules import FactorKind
from tests.automap.simulate.operators.reference import explicit, full_reference
from tests.steps import problem_of


TOPOLOGY = get_topology("8xv100")
WIDTH, BATCH, STEPS = 64, 32, 5


def _recurrent(steps):
    """x <- tanh(x W) a few times, and a descent of W with moments, which read the gradient too."""

    def step(state, batch):
        def loss(w):
            x = batch
            for _ in range(steps):
                x = jnp.tanh(x @ w)
            return jnp.mean(x**2)

        gradient = jax.grad(loss)(state["w"])
        m = 0.9 * state["m"] + 0.1 * gradient
        v = 0.9 * state["v"] + 0.1 * gradient**2
        return {"w": state["w"] - 0.1 * m / jnp.sqrt(v + 1e-8), "m": m, "v": v}

    w = jax.ShapeDtypeStruct((WIDTH, WIDTH), "float32")
    batch = jax.ShapeDtypeStruct((BATCH, WIDTH), "float32")
    return operator_graph(problem_of(step, ({"w": w, "m": w, "v": w}, batch)), TOPOLOGY)


def _sums(graph):
    return [
        o
        for o in graph.operators
        if any(f.is_batch and f.kind is FactorKind.REDUCTION for f in o.factors)
    ]


@pytest.mark.parametrize("steps", [2, STEPS])
def test_the_gradient_is_added_up_once_however_often_the_weight_is_used(steps):
    graph = _recurrent(steps)
    (last,) = _sums(graph)
    assert last.result_bytes == WIDTH * WIDTH * 4
    terms = {e.source for e in graph.edges if e.sums}
    assert len(terms) == steps
    assert {graph.operators[t].result_bytes for t in terms} == {last.result_bytes}


def test_a_product_that_nothing_is_added_to_is_summed_itself():
    graph = _recurrent(1)
    (last,) = _sums(graph)
    assert last.compute_seconds > 0
    assert not any(edge.sums for edge in graph.edges)


def test_one_all_reduce_over_all_devices_and_nothing_else_moves():
    graph, n = _recurrent(STEPS), 8
    simulator = Simulator(graph, device_network(TOPOLOGY), data_parallel(graph, n))
    timeline = simulator.timeline()
    assert (timeline.resource >= n).sum() == n
    network = device_network(TOPOLOGY)
    alone = Simulator(graph, network, [single(o, 0) for o in graph.operators])
    latency, seconds = (
        network.latency_seconds[0, 1],
        WIDTH * WIDTH * 4 / network.bytes_per_s[0, 1],
    )
    # A ring, or up and down a tree of three levels, which eight small parts are faster by.
    reduced = 2 * min((n - 1) * (latency + seconds / n), 3 * (latency + seconds))
    parts = sum(
        o.part_seconds(c.degrees)
        for o, c in zip(graph.operators, simulator.configurations, strict=True)
    )
    assert simulator.makespan_seconds == pytest.approx(reduced + parts, rel=1e-9)
    assert alone.n_tasks == len(graph.operators)


def test_partial_sums_that_move_move_whole():
    """Two parts of a term on other devices than the addition: each sends all of its partial sum."""
    graph = _recurrent(2)
    numbers = {id(o): i for i, o in enumerate(graph.operators)}
    (last,) = _sums(graph)
    edge = next(e for e in graph.edges if e.sums and e.target == numbers[id(last)])
    term = graph.operators[edge.source]
    configurations = [single(o, 0) for o in graph.operators]
    degrees = tuple(2 if f == edge.sums[0][0] else 1 for f in range(len(term.factors)))
    configurations[edge.source] = Configuration(degrees, (1, 2))
    network = device_network(TOPOLOGY)
    tasks = explicit(graph, network, configurations)
    seconds = edge.n_bytes / network.bytes_per_s[1, 0] + network.latency_seconds[1, 0]
    ways = [8 + network.media[a, 0, 0] for a in (1, 2)]
    sent = [tasks[i].seconds for i in tasks if tasks[i].resource in ways]
    assert sent.count(pytest.approx(seconds)) >= 2
    simulator = Simulator(graph, network, configurations)
    assert simulator.makespan_seconds == max(full_reference(tasks).end.values())
