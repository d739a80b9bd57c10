"""What a loop scans is split otherwise than what it carries, though both have one shape."""

from collections import Counter

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from automap.options import Options
from automap.plan_build import build_plan
from automap.planner import find
from automap.space.point import Mesh
from automap.topology import get_topology
from automap.verify.collectives import CPU, compiled_transfers, predicted_transfers
from automap.workload import trace_step


WORDS, WIDTH, BATCH, STEPS = 64, 32, 16, 5
MESH = Mesh(("m",), (8,))


def step(params, tokens):
    """The embedded words go through a recurrence whose state has their shape."""

    def cell(h, x):
        h = jnp.tanh(jnp.concatenate([x, h], axis=-1) @ params["w"])
        return h, h

    def loss(p):
        x = p["table"][tokens]
        _, hs = lax.scan(cell, jnp.zeros((BATCH, WIDTH)), x)
        return jnp.mean(hs**2)

    value, gradients = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value


def bytes_of_kinds(transfers):
    """Bytes of all collectives of each kind."""
    total = Counter()
    for transfer, count in transfers.items():
        total[transfer.kind] += transfer.n_bytes * count
    return total


def test_a_carry_is_not_pinned_as_what_is_scanned():
    keys = jax.random.split(jax.random.key(0), 3)
    params = {
        "table": jax.random.normal(keys[0], (WORDS, WIDTH)),
        "w": jax.random.normal(keys[1], (2 * WIDTH, WIDTH)) / WIDTH,
    }
    tokens = jax.random.randint(keys[2], (STEPS, BATCH), 0, WORDS)
    workload = trace_step(step, (params, tokens))
    pins = ("[0]['table']=null,m", "[1]=null,m")
    outcome = find(
        workload, get_topology("cpu:8"), Options(mesh=MESH, pins=pins, strategy="greedy")
    )
    plan = build_plan(outcome)
    compiled = plan.jit(step).lower(params, tokens).compile()
    # XLA may move what is scanned at once, before the loop.
    found = bytes_of_kinds(compiled_transfers(compiled.as_text(), MESH))
    assert found == bytes_of_kinds(predicted_transfers(outcome, CPU))
    want, got = jax.jit(step)(params, tokens), plan.jit(step)(params, tokens)
    np.testing.assert_allclose(got[1], want[1], rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), got[0], want[0])
