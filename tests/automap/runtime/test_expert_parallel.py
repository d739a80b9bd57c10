"""Expert parallelism with a norm of all gradients, as clipping needs it: no kernel of an expert
leaves its device.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap.api.plan import Plan
from automap.config import Options
from automap.planner.records import build_plan
from automap.planner.sharding import find
from automap.program import trace_step
from automap.topology import get_topology
from automap.topology.mesh import Mesh


GROUPS, TOKENS, EXPERTS, ROOM, WIDTH, HIDDEN = 8, 16, 8, 8, 32, 64


def _step(state, batch):
    def loss(w):
        gates = jax.nn.softmax(batch @ w["router"])
        place = jax.nn.one_hot(jnp.arange(TOKENS) % ROOM, ROOM)
        dispatch = gates[..., None] * place[:, None]
        y = jnp.einsum("gsec,gsm->egcm", dispatch, batch)
        y = jax.nn.relu(jnp.einsum("egcm,emf->egcf", y, w["up"]))
        y = jnp.einsum("egcf,efm->egcm", y, w["down"])
        return (jnp.einsum("gsec,egcm->gsm", dispatch, y) ** 2).mean()

    gradients = jax.grad(loss)(state)
    norm = jnp.sqrt(sum((g**2).sum() for g in jax.tree.leaves(gradients)))
    clipped = jax.tree.map(lambda w, g: w - g / jnp.maximum(norm, 1.0), state, gradients)
    return clipped, norm


@pytest.mark.slow  # a smaller one is in tests/hlo_tools/analyses/test_regions.py
def test_a_norm_of_gradients_gathers_no_kernels():
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = {
        "router": (WIDTH, EXPERTS),
        "up": (EXPERTS, WIDTH, HIDDEN),
        "down": (EXPERTS, HIDDEN, WIDTH),
    }
    state = {n: jax.random.normal(k, shape) for (n, shape), k in zip(shapes.items(), keys)}
    batch = jax.random.normal(keys[3], (GROUPS, TOKENS, WIDTH))
    workload = trace_step(_step, (state, batch))
    options = Options(mesh=Mesh(("x",), (8,)), preset="expert-parallel")
    plan = Plan.from_record(build_plan(find(workload, get_topology("cpu:8"), options)))
    assert [leaf.spec[0] for leaf in plan.inputs if leaf.path.endswith(("['up']", "['down']"))] == [
        ("x",),
        ("x",),
    ]
    update = {c.kind for c in plan.predicted.collectives if c.phase == "update"}
    assert update == {"all-reduce"}
    run = plan.jit(_step)
    for got, expected in zip(
        jax.tree.leaves(run(state, batch)), jax.tree.leaves(_step(state, batch))
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    program = run.lower(state, batch).compile().as_text()
    assert re.search(r"all-to-all", program)
    assert not re.search(r" = \S* all-gather", program)
