"""Operands that are copied to another order, as in programs of XLA:GPU (jax 0.10.2, H100)."""

from collections import Counter

import jax
from jax import numpy as jnp
import pytest

from automap.backends.transposes import strided_times
from automap.backends.xla_gpu.relaid import relaid_operands
from automap.program import trace_step


BATCH, LENGTH, HEADS, WIDTH = 8, 64, 4, 32


def _copies(step, *shapes):
    args = tuple(jax.ShapeDtypeStruct(shape, "float32") for shape in shapes)
    graph = trace_step(step, args, platform="cuda").problem.graph
    return graph, list(relaid_operands(graph))


def _heads(x, w, *, heads=(HEADS, WIDTH)):
    return (x @ w).reshape(BATCH, LENGTH, *heads)


def test_heads_are_copied_to_stand_beside_the_batch():
    def step(w, x):
        q, k, v = (_heads(x, each) for each in w)
        weights = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k))
        return w, jnp.einsum("bhts,bshd->bthd", weights, v).sum((0, 1))

    kernel = (16, HEADS * WIDTH)
    graph, copies = _copies(lambda *w_x: step(w_x[:3], w_x[3]), *[kernel] * 3, (BATCH, LENGTH, 16))
    # Queries, keys and values, each if a device has several examples, heads and positions.
    assert Counter(graph.values[copy.value].dims for copy in copies) == {
        (BATCH, LENGTH, HEADS, WIDTH): 3
    }
    assert {copy.long_dims for copy in copies} == {frozenset({0, 1, 2})}
    assert {copy.times for copy in copies} == {1.0}


def test_scores_of_groups_are_turned_and_kept_as_they_are():
    groups, length = 2, 64

    def step(q, k, v):
        scores = jnp.einsum("btkgd,bskd->bkgts", q, k)
        weights = jax.nn.softmax(scores)
        return weights.sum((0, 1, 2, 4)), jnp.einsum("bkgts,bskd->btkgd", weights, v)

    key = (BATCH, length, HEADS, WIDTH)
    query = (BATCH, length, HEADS, groups, WIDTH)
    graph, copies = _copies(step, query, key, key)
    (turned,) = (c for c in copies if graph.values[c.value].dims[-2:] == (length, length))
    # The product writes queries and groups innermost; two groups are asked for line by line.
    assert turned.times == pytest.approx(strided_times(groups))
    # Of one group or of one query there is nothing to turn.
    assert turned.long_dims == {2, 3}


def test_what_others_than_products_make_is_written_in_the_order_that_all_want():
    def step(x, y, z):
        made = jnp.tanh(jnp.einsum("abi,ic->abc", x, y))
        return jnp.einsum("abc,abz->acz", made.transpose(0, 1, 2), z)

    _, copies = _copies(step, (4, 8, 16), (16, 32), (4, 8, 2))
    assert not copies


@pytest.mark.parametrize("is_output", [False, True])
def test_an_output_lies_as_the_program_says(is_output):
    def step(x, y):
        turned = jnp.einsum("abi,ic->abc", x, y).transpose(2, 0, 1)
        return turned if is_output else turned.sum(0)

    _, copies = _copies(step, (4, 8, 16), (16, 32))
    assert len(copies) == is_output
