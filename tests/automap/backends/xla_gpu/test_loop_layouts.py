"""Stacks that a backward loop wants in another order than the forward loop wrote, on attention that
is in no zoo, against what XLA:GPU allocated (jax 0.10.2, one H100, compiled ahead of time).
"""

import math

import jax
import jax.numpy as jnp
import pytest

from automap.backends.xla_gpu.relaid import relaid_stacks
from automap.config import Options
from automap.planner.sharding import find
from automap.program import trace_step
from automap.topology import get_topology
from automap.topology.mesh import Mesh


LAYERS = 6


def _scanned(scores, mixed, query, key, *, batch=8, length=1024, width=512):
    """A training step of layers in a loop whose attention is written with these two einsums."""

    def step(params, x, y):
        def layer(h, w):
            q = (h @ w["q"]).reshape(batch, length, *query)
            k, v = ((h @ w[name]).reshape(batch, length, *key) for name in "kv")
            weights = jnp.einsum(scores, q, k).astype(jnp.float32) * 0.1
            weights = jax.nn.softmax(weights, -1).astype(h.dtype)
            return h + jnp.einsum(mixed, weights, v).reshape(batch, length, -1) @ w["o"], None

        def loss(params):
            rounded = jax.tree.map(lambda p: p.astype("bfloat16"), params)
            return jnp.mean((jax.lax.scan(layer, x, rounded)[0] - y).astype(jnp.float32) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    def array(*dims, dtype="float32"):
        return jax.ShapeDtypeStruct(dims, dtype)

    x = array(batch, length, width, dtype="bfloat16")
    n_query, n_key = math.prod(query), math.prod(key)
    params = {
        "q": array(LAYERS, width, n_query),
        "k": array(LAYERS, width, n_key),
        "v": array(LAYERS, width, n_key),
        "o": array(LAYERS, n_query, width),
    }
    return trace_step(step, (params, x, x), platform="cuda")


def _relaid(workload):
    """The stacks of scores that are copied: their last two dimensions are queries and keys."""
    graph = workload.problem.graph
    return sorted(
        (array.dtype, array.dims)
        for array in (graph.values[copy.value] for copy in relaid_stacks(graph))
        if array.dims[-2:] == array.dims[-1:] * 2
    )


# Name: scores, mixed, dimensions of queries and keys, GiB that the compiler allocated, whether
# stacks of scores are copied in its program.
ATTENTION = {
    "heads": ("bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", (8, 64), (8, 64), 2.956, False),
    "groups": ("btgkd,bskd->bgkts", "bgkts,bskd->btgkd", (4, 2, 64), (2, 64), 3.968, True),
    "one key": ("bthd,bsd->bhts", "bhts,bsd->bthd", (8, 64), (64,), 3.950, True),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_the_peak_is_what_the_compiler_allocated(name):
    scores, mixed, query, key, gib, is_copied = ATTENTION[name]
    workload = _scanned(scores, mixed, query, key)
    assert bool(_relaid(workload)) == is_copied
    options = Options(mesh=Mesh(("data",), (1,)), strategy="greedy")
    peak = find(workload, get_topology("1xh100"), options).best.estimate.peak_bytes
    assert peak / 2**30 == pytest.approx(gib, rel=0.03)


def test_stacks_of_scores_are_copied_in_both_types():
    scores, mixed, query, key, *_ = ATTENTION["groups"]
    workload = _scanned(scores, mixed, query, key, batch=2, length=128)
    dims = (LAYERS, 2, 4, 2, 128, 128)
    assert _relaid(workload) == [("bf16", dims), ("f32", dims)]


def test_dimensions_of_one_element_have_no_order():
    # The same einsum of groups with one head of each: what is swapped are dimensions of one.
    workload = _scanned(
        "bthgd,bshd->bhgts", "bhgts,bshd->bthgd", (1, 1, 64), (1, 64), batch=2, length=1
    )
    assert _relaid(workload) == []


@pytest.mark.parametrize(
    ("read", "cache", "is_written", "n_copies"),
    [
        ("bkgc,btkc->bkgt", (8, 64, 4, 16), True, 2),
        ("bkgc,btkc->bkgt", (8, 64, 4, 16), False, 1),
        ("bkgc,bktc->bkgt", (8, 4, 64, 16), True, 0),
    ],
)
def test_a_cache_is_copied_before_the_loop_that_reads_it_and_back_if_it_is_written(
    read, cache, is_written, n_copies
):
    queries = jax.ShapeDtypeStruct((8, 4, 2, 16), "float32")
    caches = jax.ShapeDtypeStruct((LAYERS, *cache), "float32")

    def step(caches, queries):
        def layer(h, keys):
            if is_written:
                new = jnp.sum(h) * jnp.ones((8, *(1 if n == 64 else n for n in cache[1:])))
                keys = jax.lax.dynamic_update_slice(keys, new, (0, 0, 0, 0))
            scores = jnp.einsum(read, h, keys)
            return h + scores.sum(-1, keepdims=True), keys if is_written else None

        out, kept = jax.lax.scan(layer, queries, caches)
        return (kept if is_written else caches + 1.0), out

    graph = trace_step(step, (caches, queries), platform="cuda").problem.graph
    copies = list(relaid_stacks(graph))
    assert [copy.value in graph.inputs for copy in copies] == [True, False][:n_copies]
    # Of one head or of one place there is nothing to turn.
    assert all(copy.long_dims == {2, 3} for copy in copies)
