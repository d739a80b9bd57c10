"""Reductions that XLA has no all-reduce for run over split dimensions, with the bits of one
device.
"""

import jax
from jax import lax
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


REDUCTIONS = {
    "or of int32": lambda x: lax.reduce_or(x.astype(jnp.int32), (0,)),
    "and of uint8": lambda x: lax.reduce_and(x.astype(jnp.uint8), (0,)),
    "xor of int16": lambda x: lax.reduce_xor(x.astype(jnp.int16), (0,)),
    "xor of bool": lambda x: lax.reduce_xor(x > 4, (0,)),
    "or of bool": lambda x: lax.reduce_or(x > 7.9, (0,)),
    "max of complex": lambda x: lax.reduce_max(x + 1j * x[:, ::-1], (0,)),
    "of two dimensions": lambda x: lax.reduce_xor(x.astype(jnp.int32).reshape(16, 4, 2), (0, 1)),
    "own function": lambda x: lax.reduce(
        x, np.float32(0), lambda a, b: jnp.maximum(a, b) + 0 * a, (0,)
    ),
    "in a loop": lambda x: lax.scan(
        lambda c, _: (c + 1, lax.reduce_or(x.astype(jnp.int32) + c, (0,))), 0, None, 3
    )[1],
}  # fmt: skip


@pytest.mark.parametrize("name", REDUCTIONS)
def test_over_the_batch(name):
    def step(p, x):
        loss, grad = jax.value_and_grad(lambda p: jnp.mean((x @ p) ** 2))(p)
        return p - 0.1 * grad, loss, REDUCTIONS[name](x)

    args = jnp.eye(8), jnp.asarray(np.random.default_rng(0).integers(0, 9, (16, 8)), jnp.float32)
    options = Options(mesh=Mesh(("data", "model"), (4, 2)), preset="data-parallel")
    plan = Plan.from_record(
        build_plan(find(trace_step(step, args), get_topology("cpu:8"), options))
    )
    assert plan.inputs[1].spec[0]  # the batch is split
    want, got = jax.jit(step)(*args)[2], plan.jit(step)(*args)[2]
    np.testing.assert_array_equal(got, want)


def test_a_dimension_that_no_mesh_divides_stays_whole():
    def step(x):
        return lax.reduce_or(x, (1,))

    args = (jnp.arange(56, dtype=jnp.int32).reshape(8, 7),)
    plan = Plan.from_record(
        build_plan(find(trace_step(step, args), get_topology("cpu:8"), Options(strategy="greedy")))
    )
    np.testing.assert_array_equal(plan.jit(step)(*args), step(*args))
