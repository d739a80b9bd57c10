"""Attention with the sequence split over devices: keys and values are gathered, numbers are those
of one device, and the search finds it where heads are fewer than devices.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import automap
from automap.config import read_options
from automap.errors import InputError
from automap.planner.records import build_plan
from automap.planner.sharding import find
from automap.program.trace import trace_step
from automap.topology import get_topology
from models.long_context import LongContextConfig, attention, long_context
from models.training import random_batch
from scripts.compare_contexts import WHOLE


LENGTH, KEY_HEADS, D_HEAD, DEPTH = 128, 2, 8, 2


def _model(length=LENGTH):
    sizes = LongContextConfig(
        depth=DEPTH,
        d_model=4 * D_HEAD,
        heads=4,
        key_heads=KEY_HEADS,
        d_ff=64,
        vocab=128,
        blocks=4,
    )
    return long_context(sizes, batch=1, seq=length)


def test_blocks_of_queries_are_attention():
    q, k, v = (
        jax.random.normal(jax.random.key(n), (2, 16, KEY_HEADS, *more, D_HEAD))
        for n, more in ((0, (3,)), (1, ()), (2, ()))
    )
    expected = jax.nn.dot_product_attention(
        q.reshape(2, 16, 3 * KEY_HEADS, D_HEAD), k, v, scale=1.0, is_causal=True
    )
    for blocks in (1, 4, 16):
        got = attention(q, k, v, blocks).reshape(expected.shape)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_sizes_that_do_not_divide_are_refused():
    with pytest.raises(InputError, match="blocks=4 is not possible; give a divisor of 30"):
        _model(30)


@pytest.mark.slow
def test_keys_and_values_are_gathered_and_numbers_are_those_of_one_device():
    model = _model()
    plan = automap.plan(
        *model.target,
        topology="cpu:8",
        mesh={"data": 2, "model": 4},
        pin=["[1]['tokens']=null,model"],
        strategy="greedy",
        budget=5,
        levers="none",
    )
    assert {leaf.spec for leaf in plan.inputs if leaf.role == "batch"} == {(None, ("model",))}
    # Of each layer once: they are what the loop over blocks of queries reads whole.
    forward = [
        (record.kind, record.axes, record.count, record.bytes)
        for record in plan.predicted.collectives
        if record.phase == "forward" and record.kind != "all-reduce"
    ]
    gathered = 2 * DEPTH
    bytes_each = LENGTH * KEY_HEADS * D_HEAD * 4
    assert forward == [("all-gather", ("model",), gathered, gathered * bytes_each)]
    state, batch = model.init(jax.random.key(0)), random_batch(model.args[1], 0)
    expected, got = jax.tree.map(jnp.copy, (state, state))
    planned = plan.jit(model.step)
    for _ in range(3):
        expected, value = model.step(expected, batch)
        got, other = planned(got, batch)
        np.testing.assert_allclose(other["loss"], value["loss"], rtol=1e-5)
    for a, b in zip(jax.tree.leaves(got["params"]), jax.tree.leaves(expected["params"])):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-5)


@pytest.mark.slow
def test_the_search_splits_the_sequence_where_key_heads_are_fewer_than_devices():
    sizes = LongContextConfig(
        depth=4, d_model=2048, heads=16, key_heads=2, d_ff=8192, vocab=32_768, blocks=16
    )
    model = long_context(sizes, batch=1, seq=32_768, dtype="bfloat16")
    workload, topology = trace_step(*model.target, platform="cuda"), get_topology("8xh100")
    split, whole = (
        build_plan(
            find(
                workload,
                topology,
                read_options(strategy="greedy", budget=20.0, levers="none", pin=pins),
            )
        )
        for pins in ((), WHOLE)
    )
    (spec,) = (leaf.spec for leaf in split.inputs if leaf.path == "[1]['targets']")
    assert spec[1]
    assert split.predicted.step_seconds < whole.predicted.step_seconds
    axes = {axis for r in split.predicted.collectives if r.kind == "all-gather" for axis in r.axes}
    assert set(spec[1]) & axes
