"""Gathers in loops beside kernels, in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap.cost.traffic.flows import ALL_GATHER
from automap.program import load_target
from automap.space.presets import PRESETS
from automap.topology.mesh import Mesh
from tests.automap.cost.kernels.plain import FAST_MEMORY, evaluator, machine
from tests.steps import mlp


BATCH, WIDTH, HIDDEN, LAYERS = 64, 256, 512, 4


def scanned():
    """Two products in each trip of a loop, and their gradients."""

    def layer(x, weights):
        first, second = weights
        return jax.nn.relu(x @ first) @ second, None

    def step(weights, x):
        gradients = jax.grad(lambda w: jax.lax.scan(layer, x, w)[0].sum())(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)

    shapes = (LAYERS, WIDTH, HIDDEN), (LAYERS, HIDDEN, WIDTH)
    weights = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    return step, (weights, jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32))


def zero_3(step, args, topology):
    cost, space = evaluator(step, args, topology)
    (point,) = PRESETS["zero-3"].points(space, Mesh(("data",), (8,)))
    return cost, cost.price_point(space.split_classes(point))


def gathers(cost, priced):
    """(reader, whole seconds, hidden ones) of each gather in a loop."""
    collectives, edges = priced.collectives, cost.tables.operands
    for entry in np.flatnonzero(collectives.on_operand & (collectives.kind == ALL_GATHER)):
        edge, hidden = collectives.edge[entry], priced.overlapped_seconds[entry]
        if edges.loop[edge] >= 0:
            yield int(edges.op[edge]), priced.collective_seconds[entry] + hidden, hidden


def rows_by_op(cost):
    program = cost.tables.program
    return {k.op: row for k, row in zip(program.kernels, program.row_of_kernel, strict=True)}


def dots(cost):
    """The products of the loops: two of the forward pass, then by turns a matrix's gradient and
    what goes on to the layer before.
    """
    ops = cost.tables.program.problem.graph.ops
    return [index for index, op in enumerate(ops) if op.opcode == "dot"]


def test_a_gather_runs_beside_the_product_before_and_the_first_of_a_trip_waits():
    cost, priced = zero_3(*scanned(), machine("v5e:2x4"))
    first, second, _, back, _, last = dots(cost)
    by_reader = {reader: (whole, hidden) for reader, whole, hidden in gathers(cost, priced)}
    assert by_reader.keys() == {first, second, back, last}
    for reader, (whole, hidden) in by_reader.items():
        # Here products take longer than gathers.
        assert hidden == (0.0 if reader in (first, back) else pytest.approx(whole))


def test_no_more_is_hidden_than_the_kernels_take_until_it_is_read():
    """Those that make gradients are none of them."""
    cost, priced = zero_3(*scanned(), machine("v5e:2x4", **FAST_MEMORY))
    first, second, _, back, _, last = dots(cost)
    row, seconds = rows_by_op(cost), priced.kernel_seconds
    hidden = {reader: hidden for reader, _, hidden in gathers(cost, priced)}
    # What flows back through the relu is a kernel by itself, one op behind the product.
    select = back + 1
    assert cost.tables.program.problem.graph.ops[select].opcode == "select"
    assert hidden[second] == pytest.approx(seconds[row[first]])
    assert hidden[last] == pytest.approx(seconds[row[back]] + seconds[row[select]])
    assert all(hidden < whole for _, whole, hidden in gathers(cost, priced))


def test_a_product_begins_one_gather():
    """Of three that are read side by side the first waits, and each other one has a product."""

    def layer(x, weights):
        return sum(jnp.tanh(x @ weight) for weight in weights), None

    def step(weights, x):
        return weights, jax.lax.scan(layer, x, weights)[0]

    weight = jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.float32)
    args = [weight] * 3, jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32)
    cost, priced = zero_3(step, args, machine("v5e:2x4"))
    first, second, _ = dots(cost)
    windows, row = cost.tables.hidden_gathers, rows_by_op(cost)
    assert windows.kernel[:, 0].tolist() == [row[first], row[second]]
    # The three are one edge.
    ((_, whole, hidden),) = gathers(cost, priced)
    assert hidden == pytest.approx(2 / 3 * whole)


@pytest.mark.parametrize(("target", "topology"), [(mlp, "v5e:2x4"), (scanned, "8xh100")])
def test_outside_of_loops_and_on_gpus_nothing_is_beside_by_itself(target, topology):
    """On GPUs the schedule says what runs beside what."""
    cost, priced = zero_3(*target(), machine(topology))
    assert not len(cost.tables.hidden_gathers.edge)
    assert not priced.overlapped_seconds.any()


SEQ = 32


def two_blocks(recompute=lambda layer: layer):
    """Layers of two feed-forward blocks in a loop, each normalized and added to its stream."""

    def block(x, first, second):
        centred = x - x.mean(axis=-1, keepdims=True)
        return x + jax.nn.relu(centred @ first) @ second

    def layer(x, weights):
        return block(block(x, *weights[0]), *weights[1]), None

    def step(weights, x):
        scanned = recompute(layer)
        gradients = jax.grad(lambda w: (jax.lax.scan(scanned, x, w)[0] ** 2).sum())(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)

    # Of two sizes, so that no two products are alike.
    weights = [
        tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
        for shapes in (
            ((LAYERS, WIDTH, HIDDEN), (LAYERS, HIDDEN, WIDTH)),
            ((LAYERS, WIDTH, 2 * HIDDEN), (LAYERS, 2 * HIDDEN, WIDTH)),
        )
    ]
    return step, (weights, jax.ShapeDtypeStruct((BATCH, SEQ, WIDTH), jnp.float32))


def products_beside(cost):
    """Of each product that reads a tensor of the stream's sizes what runs beside its gather."""
    tables, products = cost.tables, dots(cost)
    graph, windows = tables.program.problem.graph, tables.hidden_gathers
    by_row = {row: op for op, row in rows_by_op(cost).items() if op in products}
    for edge, value, reader, *_ in tables.operands.incidences.tolist():
        if graph.values[value].dims == (BATCH, SEQ, WIDTH) and reader in products:
            yield (
                reader,
                {by_row[k] for k in windows.kernel[windows.edge == edge].ravel() if k >= 0},
            )


def test_activations_run_beside_products_that_nothing_waits_for_or_that_they_do_not_wait_for():
    cost, _ = evaluator(*two_blocks(), machine("v5e:2x4"))
    # Two products forward for each block; backward, of the second block and then of the first, the
    # gradient of its second matrix, what goes on, the gradient of its first one, what goes on.
    first, _, second, _, *backward = dots(cost)
    second_b, on_b, first_b, out_b, second_a, on_a, first_a, out_a = backward
    beside = dict(products_beside(cost))
    # What flows forward is waited for, and so is what a trip backward begins with.
    assert beside[first] == beside[second] == beside[second_b] == set()
    # What a block was given waits in a stack, and is there for its gradient.
    assert beside[first_b] == {on_b, out_b}
    assert beside[first_a] == {on_a, out_a}
    # What flows back to the first block goes beside gradients of the second.
    assert beside[second_a] == {second_b, first_b}


@pytest.mark.parametrize("recompute", [lambda layer: layer, jax.checkpoint])
def test_what_runs_beside_a_gather_neither_makes_nor_needs_what_is_gathered(recompute):
    cost, _ = evaluator(*two_blocks(recompute), machine("v5e:2x4"))
    graph, beside = cost.tables.program.problem.graph, dict(products_beside(cost))

    def makers(value):
        """The products that a value is made of, in the trip of its loop."""
        producer = graph.values[value].producer
        if producer < 0 or graph.ops[producer].opcode == "while":
            return set()
        own = {producer} if graph.ops[producer].opcode == "dot" else set()
        return own.union(*(makers(v) for v in graph.ops[producer].inputs))

    for _, value, reader, *_ in cost.tables.operands.incidences.tolist():
        if reader in beside and graph.values[value].dims == (BATCH, SEQ, WIDTH):
            assert not beside[reader] & makers(value)
            assert not any(value in graph.ops[op].inputs for op in beside[reader])
    assert any(beside.values())


@pytest.mark.parametrize("name", ["v5e:2x4", "v5p:2x2x2"])
def test_no_more_of_an_activation_is_hidden_than_its_products_take(name):
    """Queries, keys and values, and both products of the feed-forward layer, flow back in two
    gathers a layer; what these layers were given is gathered for their gradients.
    """
    options = {"layers": "scanned", "batch": "8"}
    cost, space = evaluator(*load_target("models.gpt:gpt_tiny", options), machine(name))
    mesh = Mesh(("data", "model"), (2, 4))
    (point,) = PRESETS["sequence-parallel"].points(space, mesh)
    priced = cost.price_point(space.split_classes(point))
    windows, hidden, whole = cost.tables.hidden_gathers, [], []
    for entry in np.flatnonzero(priced.overlapped_seconds > 0):
        (window,) = np.flatnonzero(windows.edge == priced.collectives.edge[entry])
        rows = windows.kernel[window][windows.kernel[window] >= 0]
        hidden.append(priced.overlapped_seconds[entry])
        whole.append(priced.collective_seconds[entry] + hidden[-1])
        assert hidden[-1] == pytest.approx(min(whole[-1], priced.kernel_seconds[rows].sum()))
    assert len(hidden) == 3
