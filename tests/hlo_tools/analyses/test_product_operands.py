"""Which operands products read from memory, and which their kernels make: small steps."""

import jax
import jax.numpy as jnp
import pytest

from automap.backends import backend_for
from hlo_tools.analyses.kernels import kernels
from hlo_tools.analyses.widths import stored_bytes
from tests.hlo_tools.graphs import step_graph


ROWS, WIDTH, HEADS = 256, 32, 4


def _kernels(graph, platform):
    n_bytes = stored_bytes(graph, [False] * len(graph.values))
    return kernels(graph, backend_for(platform).fuser, n_bytes)


def _attention(qkv, x):
    q, k, v = (z.reshape(ROWS, HEADS, -1) for z in jnp.split(x @ qkv, 3, -1))
    shares = jax.nn.softmax(jnp.einsum("qhd,khd->hqk", q, k))
    return jnp.einsum("hqk,khd->qhd", shares, v)


def _blocks(qkv, x):
    return [jnp.tanh(z) @ x.T for z in jnp.split(x @ qkv, 3, -1)]


@pytest.mark.parametrize(
    ("platform", "step", "written"),
    [("tpu", _attention, 3), ("tpu", _blocks, 0), ("cuda", _attention, 0)],
)
def test_slices_that_heads_are_made_of_are_written(platform, step, written):
    """As libtpu 0.0.51 does with 8 x 512 rows of 1,024 features; products read others as they
    are.
    """
    graph = step_graph(step, (WIDTH, 3 * WIDTH), (ROWS, WIDTH))
    slices = {v for op in graph.ops if op.opcode == "slice" for v in op.outputs}
    assert len(slices) == 3
    made = {access.value for kernel in _kernels(graph, platform) for access in kernel.writes}
    assert len(slices & made) == written


def _joined(step):
    graph = step_graph(step, (ROWS, WIDTH), (ROWS, WIDTH), (2 * WIDTH, WIDTH))
    (join,) = (v for op in graph.ops if op.opcode == "concatenate" for v in op.outputs)
    return join in {access.value for k in _kernels(graph, "tpu") for access in k.writes}


def test_products_join_their_operands_as_they_load_them():
    def joined(x, y):
        return jnp.concatenate([jnp.tanh(x), y], -1)

    def used(x, y, w, use):
        both = joined(x, y)
        return both @ w, use(both)

    assert not _joined(lambda x, y, w: used(x, y, w, lambda both: both @ w[::-1]))
    assert _joined(lambda x, y, w: used(x, y, w, jnp.sin))


@pytest.mark.parametrize(
    ("make", "more", "written"),
    [
        pytest.param(lambda p, q, s: p * (q - 1) + q, None, 0, id="of two arrays"),
        pytest.param(lambda p, q, s: p * (q - s) + q, None, 1, id="of three"),
        pytest.param(lambda p, q, s: p * (q - 1) + q, jnp.sin, 1, id="used by others too"),
    ],
)
def test_two_products_make_an_operand_for_themselves(make, more, written):
    """Gradients of scores, of which queries' and keys' products make their operand each."""

    def step(p, q, s, w):
        made = make(p, q, s)
        return made @ w, made.T @ w, () if more is None else more(made).sum()

    graph = step_graph(step, *[(ROWS, ROWS)] * 3, (ROWS, WIDTH))
    arrays = {
        access.value
        for kernel in _kernels(graph, "tpu")
        for access in kernel.writes
        if graph.values[access.value].dims == (ROWS, ROWS)
    }
    assert len(arrays) == written


def test_exponentials_that_a_products_kernel_sums_are_written_and_not_the_scores():
    def step(x, w, v):
        return jax.nn.softmax(x @ w) @ v

    graph = step_graph(step, (ROWS, WIDTH), (WIDTH, ROWS), (ROWS, WIDTH))
    opcodes = [
        graph.ops[graph.values[access.value].producer].opcode
        for kernel in _kernels(graph, "tpu")
        for access in kernel.writes
        if graph.values[access.value].dims == (ROWS, ROWS)
    ]
    assert opcodes == ["exponential"]


def _in_windows(x):
    """Windows of 4 x 4 places of [rows, 16, 16, features]."""
    return x.reshape(-1, 4, 4, 4, 4, x.shape[-1]).swapaxes(2, 3).reshape(-1, 16, 16, x.shape[-1])


def _swapped(x):
    return x.swapaxes(1, 2)


@pytest.mark.parametrize(
    ("make", "written"),
    [
        pytest.param(lambda x, w: _in_windows(x) @ w, 1, id="windows"),
        pytest.param(lambda x, w: _swapped(x) @ w, 0, id="another order"),
        pytest.param(lambda x, w: _swapped(x @ w).reshape(-1, 256 * WIDTH), 0, id="of a product"),
    ],
)
def test_transposes_that_bring_places_together_are_written(make, written):
    graph = step_graph(make, (2, 16, 16, WIDTH), (WIDTH, WIDTH))
    transposed = {v for op in graph.ops if op.opcode == "transpose" for v in op.outputs}
    made = {access.value for kernel in _kernels(graph, "tpu") for access in kernel.writes}
    assert transposed and len(transposed & made) == written


@pytest.mark.parametrize(
    ("use", "written"),
    [
        pytest.param(lambda c, v: c + v, 1, id="repeated over rows"),
        pytest.param(lambda c, v: c + v.sum(), 0, id="summed"),
    ],
)
def test_vectors_of_a_stack_are_cut_before_they_are_repeated(use, written):
    def step(x, vectors):
        return jax.lax.scan(lambda c, v: (use(c, v), None), x, vectors)[0]

    graph = step_graph(step, (ROWS, WIDTH), (6, WIDTH))
    cut = {v for op in graph.ops if op.opcode == "dynamic-slice" for v in op.outputs}
    made = {access.value for kernel in _kernels(graph, "tpu") for access in kernel.writes}
    assert len(cut & made) == written


def test_what_the_next_trip_begins_with_is_stacked_as_it_is_written():
    def step(x, use):
        def trip(state, _):
            state = jnp.tanh(state + x)
            return state, use(state)

        return jax.lax.scan(trip, x, None, length=6)

    joined = []
    for use in (lambda state: state, lambda state: state * 2):
        graph = step_graph(lambda x, use=use: step(x, use), (ROWS, WIDTH))
        joined += [
            kernel.joins
            for kernel in _kernels(graph, "tpu")
            if graph.ops[kernel.op].opcode == "dynamic-update-slice"
        ]
    assert joined == [True, False]


def test_a_cache_is_cut_out_of_its_stack_before_a_part_of_it_changes():
    def step(x, caches):
        def layer(x, cache):
            cache = jax.lax.dynamic_update_slice(cache, x[None], (3, 0))
            return x + cache.sum(0), cache

        return jax.lax.scan(layer, x, caches)

    graph = step_graph(step, (WIDTH,), (6, ROWS, WIDTH))
    (cut,) = (v for op in graph.ops if op.opcode == "dynamic-slice" for v in op.outputs)
    assert cut in {access.value for kernel in _kernels(graph, "tpu") for access in kernel.writes}


def test_steps_of_an_activations_gradient_are_not_written():
    """In the kernel of the product that flows back, as libtpu 0.0.51 has them."""

    def step(x, w, b, o):
        def loss(x, w, b):
            return ((jax.nn.gelu(x @ w + b) @ o) ** 2).sum()

        return jax.grad(loss, (0, 1, 2))(x, w, b)

    graph = step_graph(step, (ROWS, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH,), (4 * WIDTH, WIDTH))
    wide = [
        access.value
        for kernel in _kernels(graph, "tpu")
        for access in kernel.writes
        if graph.values[access.value].dims == (ROWS, 4 * WIDTH)
    ]
    # What the first product made, and its gradient, which two products and a sum read.
    assert len(wide) == 2
