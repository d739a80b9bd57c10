"""Scalars spread over tensors that are split differently: where that is pinned, and that it costs
nothing.
"""

import re

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest

from automap.api.plan import Plan
from automap.config import Options
from automap.errors import PlanError
from automap.jaxpr.reemit import Reemitter
from automap.planner.records import build_plan
from automap.planner.sharding import find
from automap.program import trace_step
from automap.topology import get_topology
from automap.topology.mesh import Mesh


WIDTH = 64


def _step(state, x):
    """Two equal kernels; `scale` is spread over both, and comes first in one of the equations."""

    def loss(kernels):
        return ((jax.nn.relu(x @ kernels["a"]) @ kernels["b"]) ** 2).sum()

    loss_value, gradients = jax.value_and_grad(loss)(state["kernels"])
    scale = 1 - 0.9 ** state["count"]
    kernels = {
        "a": state["kernels"]["a"] - gradients["a"] / scale,
        "b": state["kernels"]["b"] - scale * gradients["b"],
    }
    return {"kernels": kernels, "count": state["count"] + 1}, loss_value


def _arguments():
    a, b, x = jax.random.normal(jax.random.key(0), (3, WIDTH, WIDTH)) / WIDTH
    return {"kernels": {"a": a, "b": b}, "count": jnp.float32(3)}, x[:16]


def _plan(preset):
    workload = trace_step(_step, _arguments())
    options = Options(mesh=Mesh(("x",), (8,)), preset=preset)
    return Plan.from_record(build_plan(find(workload, get_topology("cpu:8"), options)))


def _spread(plan):
    return sorted(
        (side, c.spec) for c in plan.constraints if "spread" in (side := c.at.partition(":")[2])
    )


def test_a_scalar_spread_over_rows_and_columns_is_pinned_whole():
    plan = _plan("megatron")
    assert [leaf.spec for leaf in plan.inputs[:3]] == [(), (None, ("x",)), (("x",), None)]
    assert _spread(plan) == [("spread0", (None, None)), ("spread1", (None, None))]


def test_a_scalar_spread_whole_is_sliced_before_it_is_made():
    args, plan = _arguments(), _plan("megatron")
    run = plan.jit(_step)
    for got, expected in zip(jax.tree.leaves(run(*args)), jax.tree.leaves(_step(*args))):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    program = run.lower(*args).compile().as_text()
    # The product and the loss are partial sums; nothing is moved for the update.
    assert set(re.findall(r"(?:all-|collective-|reduce-scatter)[\w-]*(?=\()", program)) == {
        "all-reduce"
    }
    assert f"f32[{WIDTH},{WIDTH}]" not in program


def test_a_scalar_spread_over_tensors_split_alike_needs_no_pin():
    assert not _spread(_plan("data-parallel"))


def test_a_pin_on_what_is_not_spread_is_refused():
    emitter = Reemitter(jax.jit(_step).trace(*_arguments()).jaxpr)
    (first, *_) = (s.path for s in emitter.sites if s.primitive == "div")
    mesh = jax.sharding.AbstractMesh((8,), ("x",))
    emitter.constrained({f"{first}:spread1": P(None, None)}, mesh)
    with pytest.raises(PlanError, match="no scalar that is spread"):
        emitter.constrained({f"{first}:spread0": P(None, None)}, mesh)
