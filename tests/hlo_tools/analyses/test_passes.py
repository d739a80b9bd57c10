"""Which reductions hold rows, and what is read anew after a sum: small steps, counted by hand."""

import math

import jax
from jax import numpy as jnp
import pytest

from automap.backends import backend_for
from hlo_tools.analyses.kernels import kernels
from hlo_tools.analyses.strided_tiles import LARGE_TILE, strided_tiles
from hlo_tools.analyses.widths import stored_bytes
from tests.hlo_tools.graphs import step_graph


ROWS, WIDTH = 1024, 512
ARRAY = (ROWS, WIDTH)
ARRAY_BYTES = 4 * ROWS * WIDTH
EPSILON = 1e-6


def _softmax(x):
    p = jnp.exp(x - x.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def _normalized(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + EPSILON)


def _normalized_with_statistics(x):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + EPSILON), mean * variance


def _softmax_gradient(p, d):
    return p * (d - (p * d).sum(-1, keepdims=True))


def _columns_normalized(x):
    return (x - x.mean(0)) * jax.lax.rsqrt((x * x).mean(0) + EPSILON)


def _guarded(x):
    most = x.max(-1, keepdims=True)
    return jnp.exp(x - jnp.where(jnp.isfinite(most), most, 0.0))


def _arrays_moved(step, n_arrays, platform="cuda"):
    """(read, written) of a step's kernels, in arrays; results of sums are small."""
    graph = step_graph(step, *[ARRAY] * n_arrays)
    made = kernels(graph, backend_for(platform).fuser, stored_bytes(graph, _wide(graph)))
    read = sum(a.n_bytes for k in made for a in k.reads)
    written = sum(a.n_bytes for k in made for a in k.writes)
    return round(read / ARRAY_BYTES), round(written / ARRAY_BYTES)


def _wide(graph):
    return [False] * len(graph.values)


@pytest.mark.parametrize(
    ("step", "n_arrays", "read"),
    [
        (_softmax, 1, 1),
        (_normalized, 1, 1),
        # Once for the sums, and once for what waits for them.
        (_softmax_gradient, 2, 4),
        (_columns_normalized, 1, 2),
        (_guarded, 1, 2),
        # A sum over the other dimension is no part of a tile.
        (lambda x: (_softmax(x), x.sum(0)), 1, 2),
        # What makes an array and what holds its rows are two kernels; XLA writes the sum first.
        (lambda x, y: (s := x + y, _softmax(s)), 2, 3),
        # Sums that wait for nothing are made at once, but for those over rows.
        (lambda x: ((x * x).sum(1), x.sum(1), jnp.exp(x)), 1, 1),
        (lambda x: (x.sum(0), (x * x).sum(0), jnp.exp(x)), 1, 1),
        (lambda x: (x.sum(0), (x * x).sum(1), jnp.exp(x)), 1, 2),
    ],
)
def test_a_gpu_reads_again_what_waits_for_a_sum_but_for_rows_that_it_holds(step, n_arrays, read):
    assert _arrays_moved(step, n_arrays)[0] == read


def test_two_arrays_of_a_tile_are_two_kernels():
    def both(x, d):
        p = _softmax(x)
        return jnp.tanh(p), _softmax_gradient(p, d)

    assert _arrays_moved(both, 2) == (3, 2)


def _parts_of_softmax(x):
    e = jnp.exp(x - x.max(-1, keepdims=True))
    return e, e.sum(-1, keepdims=True)


def test_a_sum_that_two_arrays_use_is_a_kernel_and_each_reads_the_rows_again():
    """As jax 0.10.2's CUDA plugin compiled it for an H100 on 2026-11-29: three kernels."""

    def both(x):
        e, total = _parts_of_softmax(x)
        return e / total, e * total

    assert _arrays_moved(both, 1) == (3, 2)


def test_a_gradient_of_what_tiles_make_again_is_a_tile_past_a_product():
    """As jax 0.10.2's CUDA plugin compiled it for an H100 on 2026-11-29: four kernels."""

    def step(x):
        e, total = _parts_of_softmax(x)
        made = (e / total) @ jnp.ones((WIDTH, WIDTH))
        return made, e * (made / total - (e * made).sum(-1, keepdims=True) / total**2)

    # x for the sum, for the product's operand and for the gradient; the operand, and the product.
    assert _arrays_moved(step, 1) == (3 + 1 + 1, 3)


@pytest.mark.parametrize(
    ("step", "read"), [(_columns_normalized, 2), (_normalized, 3), (_softmax, 3), (_guarded, 2)]
)
def test_a_tpu_reads_again_what_waits_for_any_sum(step, read):
    assert _arrays_moved(step, 1, "tpu")[0] == read


BATCH, HEADS, LENGTH = 4, 8, 1024


@pytest.mark.parametrize(
    ("step", "shape", "is_strided"),
    [
        (lambda x, m: _softmax(x + m), (LENGTH, LENGTH), True),
        (lambda x, m: _softmax(x + m), (BATCH, 1, LENGTH, LENGTH), False),
        (lambda x, m: _softmax(x + m), (HEADS, LENGTH, LENGTH), False),  # four matrices: too few
        (lambda x, m: _softmax(x + m), (BATCH, 1, 1, LENGTH), False),
        (lambda x, m: _softmax(x) * m, (LENGTH,), False),
        (lambda x, m: _softmax_gradient(x, x + m), (LENGTH, LENGTH), False),  # no tile
        # Of a normalization too, whose sums no tile makes again.
        (lambda x, m: _normalized_with_statistics(x + m), (LENGTH, LENGTH), True),
    ],
)
def test_a_mask_of_matrices_makes_tiles_of_their_same_rows(step, shape, is_strided):
    graph = step_graph(step, (BATCH, HEADS, LENGTH, LENGTH), shape)
    made = kernels(graph, backend_for("cuda").fuser, stored_bytes(graph, _wide(graph)))
    dims = (BATCH, HEADS, LENGTH, LENGTH)
    rows = [math.prod(dims[d] for d in block) for block in strided_tiles(graph, made).values()]
    assert any(n >= LARGE_TILE for n in rows) == is_strided


def test_a_sum_beside_a_masked_softmax_is_of_rows_as_they_lie():
    def both(x, mask):
        p = _softmax(x + mask)
        return p, p.sum((0, 1))

    graph = step_graph(both, (BATCH, HEADS, LENGTH, LENGTH), (LENGTH, LENGTH))
    made = kernels(graph, backend_for("cuda").fuser, stored_bytes(graph, _wide(graph)))
    strided = strided_tiles(graph, made)
    softmax, summed = (graph.values[value].producer for value in graph.outputs)
    assert softmax in strided
    assert summed not in strided


def test_a_causal_mask_is_one_too():
    def causal(x):
        return _softmax(jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), x, -1e9))

    graph = step_graph(causal, (BATCH, HEADS, LENGTH, LENGTH))
    made = kernels(graph, backend_for("cuda").fuser, stored_bytes(graph, _wide(graph)))
    last = {a.value for k in made if k.op in strided_tiles(graph, made) for a in k.writes}
    assert last & {*graph.outputs}


def _strided_rows(step, *shapes):
    """Rows of the largest block that holds the same row of several matrices."""
    graph = step_graph(step, *shapes)
    made = kernels(graph, backend_for("cuda").fuser, stored_bytes(graph, _wide(graph)))
    ops = ((graph.ops[op], block) for op, block in strided_tiles(graph, made).items())
    dims = [(_worked_dims(graph, op), block) for op, block in ops]
    return max((math.prod(sizes[d] for d in block) for sizes, block in dims), default=0)


def _worked_dims(graph, op):
    return graph.values[op.inputs[0] if op.opcode == "reduce" else op.outputs[0]].dims


def test_two_broadcasts_of_a_mask_repeat_as_one():
    def twice(x, m):
        repeated = jnp.broadcast_to(m[None], (HEADS, LENGTH, LENGTH))
        return _softmax(x + repeated)

    once = lambda x, m: _softmax(x + m)  # noqa: E731
    shapes = (BATCH, HEADS, LENGTH, LENGTH), (LENGTH, LENGTH)
    assert _strided_rows(twice, *shapes) == _strided_rows(once, *shapes) == BATCH * HEADS * LENGTH


@pytest.mark.parametrize(("operands", "is_strided"), [("heads", True), ("groups", False)])
def test_rows_lie_as_the_product_writes_them(operands, is_strided):
    # With a causal mask. Where groups of queries stand beside the keys, a block holds several rows
    # of one matrix, which have different rows of the mask or the same one.
    groups = 2 if operands == "groups" else 1
    query, key = (BATCH, LENGTH, HEADS, groups, 64), (BATCH, LENGTH, HEADS, 64)

    def step(x, y):
        product = jax.lax.dot_general(x, y, (((4,), (3,)), ((0, 2), (0, 2))))
        scores = product.transpose(0, 1, 3, 2, 4)
        mask = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
        return _softmax(jnp.where(mask, scores, -1e9))

    assert (_strided_rows(step, query, key) > 0) == is_strided


@pytest.mark.parametrize(("is_key_left", "is_tile"), [(False, True), (True, False)])
def test_sums_over_what_is_not_innermost_in_memory_are_no_tiles(is_key_left, is_tile):
    query, key = (BATCH, LENGTH, HEADS, 64), (BATCH, LENGTH, HEADS, 64)

    def step(x, y):
        operands = (y, x) if is_key_left else (x, y)
        scores = jax.lax.dot_general(*operands, (((3,), (3,)), ((0, 2), (0, 2))))
        return _softmax(scores.transpose(0, 1, 3, 2) if is_key_left else scores)

    graph = step_graph(step, query, key)
    made = kernels(graph, backend_for("cuda").fuser, stored_bytes(graph, _wide(graph)))
    (result,) = graph.outputs
    # A tile has the row at hand, other kernels wait for its sums and go through it again.
    (last,) = (k for k in made for a in k.writes if a.value == result)
    assert last.joins == is_tile


def test_each_slice_of_a_stack_is_a_kernel_that_reads_what_it_is_made_of():
    """Two of one array on a GPU: neither has at hand what the other reads."""
    layers = 3

    def step(weights, x):
        def body(x, w):
            y = x @ w
            return jnp.tanh(y @ w), (jnp.sin(y), jnp.cos(y))

        return jax.lax.scan(body, x, weights)[1]

    graph = step_graph(step, (layers, WIDTH, WIDTH), ARRAY)
    made = kernels(graph, backend_for("cuda").fuser, stored_bytes(graph, _wide(graph)))
    stacks = [
        kernel
        for kernel in made
        if graph.ops[kernel.op].opcode == "dynamic-update-slice"
        and kernel.writes[0].n_bytes == ARRAY_BYTES
    ]
    assert len(stacks) == 2
    assert all(max(a.n_bytes for a in kernel.reads) == ARRAY_BYTES for kernel in stacks)
