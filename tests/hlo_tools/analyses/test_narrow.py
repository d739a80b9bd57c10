"""Values that are kept rounded: small steps with the answer by hand."""

import jax
from jax import lax, numpy as jnp

from automap.backends import backend_for
from hlo_tools.analyses.kernels import kernels
from hlo_tools.analyses.liveness import buffers
from hlo_tools.analyses.narrow import narrow_values, stored_bytes
from hlo_tools.analyses.phases import phases
from tests.hlo_tools.graphs import graph_of


DEPTH, ROWS, WIDTH = 6, 256, 32


def _relu_chain(weights, x):
    for i in range(DEPTH):
        x = jax.nn.relu(x @ weights[i])
    return x.sum()


def _relu_step(weights, x):
    loss, grads = jax.value_and_grad(_relu_chain)(weights, x)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), loss


def _narrow_inside(graph, opcode):
    narrow = narrow_values(graph)
    return [narrow[v] for op in graph.ops if op.opcode == opcode for v in op.outputs]


def test_what_only_products_read_is_narrow():
    graph = graph_of(lambda a, b: jnp.tanh(jnp.sin(a) @ b.T), (8, 16), (8, 16))
    assert _narrow_inside(graph, "sine") == [True]
    assert _narrow_inside(graph, "dot") == [False]  # tanh reads it
    assert _narrow_inside(graph, "tanh") == [False]  # a result of the step


def test_products_of_high_precision_read_whole_floats():
    graph = graph_of(lambda a, b: jnp.matmul(jnp.sin(a), b, precision="highest"), (8, 16), (16, 8))
    assert _narrow_inside(graph, "sine") == [False]


def test_residuals_of_products_are_stacked_narrow_and_others_are_not():
    def loss(weights, x):
        def layer(c, w):
            # Of the sine the weight's gradient needs the value, a product; its own gradient the
            # cosine, as it is.
            return jnp.sin(c) @ w + c, None

        return lax.scan(layer, x, weights)[0].sum()

    shapes = [(DEPTH, WIDTH, WIDTH), (ROWS, WIDTH)]
    graph = graph_of(lambda w, x: jax.grad(loss)(w, x), *shapes)
    narrow = narrow_values(graph)
    stacks = [
        narrow[op.outputs[0]]
        for op in graph.ops
        if op.opcode == "dynamic-update-slice"
        and graph.values[op.outputs[0]].dims == (DEPTH, ROWS, WIDTH)
    ]
    assert sorted(stacks) == [False, True]


def test_a_loop_that_multiplies_what_it_does_not_change_has_a_rounded_copy():
    def step(weights, x):
        grown = lax.fori_loop(0, 3, lambda i, c: jnp.tanh(c @ weights), x)
        return grown, weights * 2

    graph = graph_of(step, (WIDTH, WIDTH), (ROWS, WIDTH))
    narrow = narrow_values(graph)
    sizes = stored_bytes(graph, narrow)
    live = buffers(
        graph, kernels(graph, backend_for("tpu").fuser, sizes), phases(graph, {}), {}, narrow
    )
    stored = sorted(sizes[v] for v in live.value if graph.values[v].dims == (WIDTH, WIDTH))
    whole = 4 * WIDTH * WIDTH
    assert stored == [whole // 2, whole, whole]  # the copy, the input, the result


def test_narrow_values_are_a_fixed_point_that_no_value_could_join():
    graph = graph_of(_relu_step_flat, *[(WIDTH, WIDTH)] * DEPTH, (ROWS, WIDTH))
    narrow = narrow_values(graph)
    for value, users in enumerate(graph.users):
        if narrow[value]:
            assert graph.values[value].dtype == "f32" and value not in graph.outputs
            for user in (graph.ops[u] for u in users):
                assert user.opcode == "dot" or any(narrow[v] for v in user.outputs)


def _relu_step_flat(*arrays):
    return _relu_step(list(arrays[:-1]), arrays[-1])
