"""Messages of one trip of a loop, where its parameters are gathered, and what it hands on."""

from collections import Counter

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import pytest

from automap.cost.collectives import CollectiveKind, collective_cost
from automap.cost.edges.loops import carried_ops, part_of_message, whole_messages
from automap.cost.evaluate import Evaluator
from automap.cost.tables import build_tables
from automap.cost.traffic.flows import ALL_GATHER
from automap.space.presets import PRESETS
from automap.space.space import Space
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from hlo_tools.analyses.phases import Phase
from hlo_tools.opcodes import DYNAMIC_UPDATE_SLICE, LOOP_EXIT
from tests.hlo_tools.graphs import step_graph
from tests.steps import problem_of


TRIPS, WIDTH = 6, 512
MESH = Mesh(("data",), (8,))


def test_what_goes_alone_in_a_trip_is_a_message_and_outside_of_loops_a_part_of_none():
    assert part_of_message(100, 100, TRIPS) == 1.0
    assert part_of_message(25, 100, TRIPS) == 0.25
    assert part_of_message(25, 0, TRIPS) == 1.0
    assert part_of_message(100, 100, 1) == 0.0


def layers(state, batch):
    """Layers in a loop, each of a product of its own and one that all of them share."""

    def loss(weights):
        def layer(x, w):
            return jnp.tanh(x @ w["up"] + w["bias"]) @ weights["shared"], None

        return jnp.sum(lax.scan(layer, batch["x"], weights["stack"])[0])

    gradients = jax.grad(loss)(state)
    return jax.tree.map(lambda w, g: w - 0.1 * g, state, gradients), 0.0


def _zero_3(platform):
    array = lambda *shape: jax.ShapeDtypeStruct(shape, "float32")  # noqa: E731
    stack = {"up": array(TRIPS, WIDTH, 2 * WIDTH), "bias": array(TRIPS, 2 * WIDTH)}
    args = ({"stack": stack, "shared": array(2 * WIDTH, WIDTH)}, {"x": array(64, WIDTH)})
    problem = problem_of(layers, args)
    topology = get_topology({"cuda": "8xh100", "tpu": "v5e:2x4"}[platform])
    cost = Evaluator(build_tables(problem, platform), problem.n_classes, topology)
    space = Space(problem)
    (point,) = PRESETS["zero-3"].points(space, MESH)
    return cost, cost.collectives(space.split_classes(point))


@pytest.mark.parametrize(("platform", "loops_or_trips"), [("tpu", 1), ("cuda", TRIPS)])
def test_what_a_loop_does_not_change_is_gathered_where_the_backend_does(platform, loops_or_trips):
    cost, collectives = _zero_3(platform)
    values, edges = cost.tables.program.problem.graph.values, cost.tables.operands
    gathers = np.flatnonzero((collectives.kind == ALL_GATHER) & collectives.on_operand)
    shared = [
        int(collectives.count[e])
        for e in gathers
        if values[edges.value[collectives.edge[e]]].dims == (2 * WIDTH, WIDTH)
    ]
    # Once by the loop of the forward pass, and once by that of the backward pass.
    assert sum(shared) == 2 * loops_or_trips


@pytest.mark.parametrize(("platform", "is_one"), [("tpu", False), ("cuda", True)])
def test_all_sums_of_a_trip_are_one_message_where_the_backend_merges_them(platform, is_one):
    cost, _ = _zero_3(platform)
    edges = cost.tables.results
    summed = edges.is_reduced.any(axis=1) & edges.combinable & (edges.trips >= TRIPS)
    parts = edges.least_messages[summed] * edges.trips[summed] / TRIPS
    assert (parts.sum() == pytest.approx(1.0)) == is_one


def test_a_trip_gathers_its_parameters_in_one_message_where_the_backend_merges_them():
    cost, collectives = _zero_3("cuda")
    edges = cost.tables.operands
    gathers = (collectives.kind == ALL_GATHER) & collectives.on_operand
    edge = collectives.edge[gathers]
    in_loops = collectives.count[gathers] >= TRIPS
    parts = (edges.least_messages[edge] * collectives.count[gathers])[in_loops]
    # A trip forwards and one backwards.
    assert parts.sum() / TRIPS == pytest.approx(2.0, rel=0.01)


def residual_layers(state, batch):
    """Layers in a loop: three products of one stream, and one that is added to it."""

    def loss(stacks):
        def layer(x, w):
            inner = jnp.tanh(x @ w["a"]) * jnp.tanh(x @ w["b"]) * jnp.tanh(x @ w["c"])
            return x + inner @ w["out"], None

        return jnp.sum(lax.scan(layer, batch["x"], stacks)[0] ** 2)

    gradients = jax.grad(loss)(state)
    return jax.tree.map(lambda w, g: w - 0.1 * g, state, gradients), 0.0


@pytest.mark.parametrize(("platform", "messages"), [("tpu", 3), ("cuda", 1)])
def test_sums_that_meet_in_one_stream_are_one_message_where_the_backend_merges(platform, messages):
    """The stream's gradient is added to three partial products: none waits for another."""
    array = lambda *shape: jax.ShapeDtypeStruct(shape, "float32")  # noqa: E731
    state = {name: array(TRIPS, WIDTH, 2 * WIDTH) for name in "abc"}
    state["out"] = array(TRIPS, 2 * WIDTH, WIDTH)
    problem = problem_of(residual_layers, (state, {"x": array(64, WIDTH)}))
    topology = get_topology({"cuda": "8xh100", "tpu": "v5e:2x4"}[platform])
    cost = Evaluator(build_tables(problem, platform), problem.n_classes, topology)
    space, mesh = Space(problem), Mesh(("model",), (8,))
    (point,) = PRESETS["megatron"].points(space, mesh)
    priced = cost.price_point(space.split_classes(point))
    entries = priced.collectives
    n_bytes = 64 * WIDTH * 4
    is_backward = cost.tables.results.phase[entries.edge] == Phase.BACKWARD
    of_stream = np.flatnonzero((entries.n_bytes == n_bytes) & is_backward)
    assert entries.count[of_stream].sum() == 3 * TRIPS
    seconds = (priced.collective_seconds * entries.count)[of_stream].sum() / TRIPS
    alone = collective_cost(CollectiveKind.ALL_REDUCE, topology, mesh.sizes, (0,))
    expected = messages * alone.seconds(3 * n_bytes / messages)
    assert seconds == pytest.approx(float(expected))


def test_what_goes_over_the_same_axes_in_a_trip_is_a_message_at_least():
    parts = np.array([0.3, 0.1, 0.25, 0.9, 0.6, 0.2, 0.3, 0.2])
    group, loop = np.array([0, 0, 1, 1, 2, 2, 2, 2]), np.array([7, 7, 7, 8, 8, -1, -1, -2])
    runs = np.array([1.0, 2.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0])
    whole = whole_messages(parts, group, loop, runs)
    # Alone in a trip, or with others; one that fills more than a message; outside of loops; what is
    # never merged.
    assert whole == pytest.approx([0.6, 0.2, 1.0, 1.0, 0.6, 0.4, 0.6, 0.2])
    assert whole[:2] @ runs[:2] == pytest.approx(1.0)


@pytest.mark.filterwarnings("error")
def test_what_has_no_bytes_is_no_message():
    sent = whole_messages(
        np.array([0.0, 0.0, 0.25]), np.array([0, 0, 1]), np.array([7, 7, 7]), np.ones(3)
    )
    assert sent.tolist() == [0.0, 0.0, 1.0]


def test_a_point_takes_what_its_collectives_take_by_themselves_or_more():
    """By itself each is taken for a part of the largest message that it could be in; over one axis
    all gathers of a trip are that one.
    """
    cost, _ = _zero_3("cuda")
    space = Space(cost.tables.program.problem)
    (point,) = PRESETS["zero-3"].points(space, MESH)
    priced = cost.price_point(space.split_classes(point))
    alone = cost.price(priced.sharding).collective_seconds
    is_gather = priced.collectives.kind == ALL_GATHER
    assert priced.collective_seconds[is_gather] == pytest.approx(alone[is_gather], rel=1e-6)
    # Of a point over two axes sums and gathers are over more sets of axes than one.
    both = Mesh(("data", "model"), (4, 2))
    for name, mesh in (("zero-3", MESH), ("zero-3", both), ("megatron", both)):
        for point in PRESETS[name].points(space, mesh):
            priced = cost.price_point(space.split_classes(point))
            alone = cost.price(priced.sharding).collective_seconds
            assert (priced.collective_seconds >= alone * (1 - 1e-9)).all()
            estimate = cost.estimate(priced)
            assert estimate == cost.evaluate(space.split_classes(point))


def test_what_only_the_next_trip_reads_is_carried():
    def step(x, w):
        def trip(carry, _):
            total, h = carry
            made = h @ w
            # Scaled for the next trip alone; the square is stacked too.
            return (total + made * 2.0, jnp.tanh(made)), jnp.square(made)

        return lax.scan(trip, (x, x), None, length=TRIPS)

    graph = step_graph(step, (8, 8), (8, 8))
    (leave,) = (index for index, op in enumerate(graph.ops) if op.opcode == LOOP_EXIT)
    carried = carried_ops(graph)
    assert set(carried.values()) == {leave}
    names = Counter(graph.ops[index].opcode for index in carried if graph.ops[index].outputs)
    # The sum, what it adds, and the activation; the stack; and the number of the trip.
    assert names["add"] == 2 and names["multiply"] == names["tanh"] == 1
    assert names[DYNAMIC_UPDATE_SLICE] == 1
    assert not names["dot"]


def test_a_sum_that_the_next_trip_alone_reads_is_needed_at_the_end_of_the_trip():
    def step(state, batch):
        def trip(carry, w):
            total, h = carry
            made = h @ w["out"]
            return (total + made, jnp.tanh(h @ w["in"]) @ w["out"]), None

        zeros = jnp.zeros((64, WIDTH))
        total, h = lax.scan(trip, (zeros, batch["x"]), state)[0]
        return jax.tree.map(lambda w: w + 1.0, state), jnp.sum(total * h)

    array = lambda *shape: jax.ShapeDtypeStruct(shape, "float32")  # noqa: E731
    args = (
        {"out": array(TRIPS, WIDTH, WIDTH), "in": array(TRIPS, WIDTH, WIDTH)},
        {"x": array(64, WIDTH)},
    )
    tables = build_tables(problem_of(step, args), "cuda")
    graph, order = tables.program.problem.graph, tables.order
    (leave,) = (slot for slot, op in enumerate(order.op) if graph.ops[op].opcode == LOOP_EXIT)
    products = [slot for slot, op in enumerate(order.op) if graph.ops[op].opcode == "dot"]
    needed = {
        int(slot): int(boundary)
        for slot, boundary in zip(order.results.maker, order.results.needed)
        if slot in products
    }
    # The next product needs its sum at once, the next trip's total waits until the end.
    assert sorted(needed.values())[-1] == leave
    assert sorted(needed.values())[0] < leave
