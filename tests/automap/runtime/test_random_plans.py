"""Plans that nobody would choose compute what the step computes: random points of the space."""

from functools import cache
import random

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from automap.api.plan import Plan
from automap.config import Options
from automap.planner.records import Outcome, build_plan
from automap.planner.sharding import find
from automap.program import trace_step
from automap.search.context import Candidate
from automap.search.greedy import random_point
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from tests.steps import decoder


TOPOLOGY = get_topology("cpu:8")
MESHES = [Mesh(("data", "model"), (4, 2)), Mesh(("replica", "data", "model"), (2, 2, 2))]


@cache
def _workload():
    step, args = decoder()
    key = iter(jax.random.split(jax.random.key(0), 1000))

    def concrete(leaf):
        if jnp.issubdtype(leaf.dtype, jnp.integer):
            return jax.random.randint(next(key), leaf.shape, 0, 256, leaf.dtype)
        # Second moments are not negative.
        return jnp.abs(jax.random.normal(next(key), leaf.shape, leaf.dtype)) / 8

    values = jax.tree.map(concrete, args)
    return step, trace_step(step, args), values, jax.device_get(jax.jit(step)(*values))


@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: "x".join(map(str, mesh.sizes)))
@pytest.mark.parametrize("seed", range(4))
def test_a_random_plan_computes_what_the_step_computes(mesh, seed):
    step, workload, values, want = _workload()
    result = find(workload, TOPOLOGY, Options(mesh=mesh, preset="data-parallel"))
    context, source = result.context, random.Random(seed)
    point = random_point(context, mesh, source)
    while not context.space.is_valid(point):
        point = random_point(context, mesh, source)
    estimate = context.evaluator.evaluate(context.space.split_classes(point))
    outcome = Outcome(
        workload=workload,
        topology=TOPOLOGY,
        context=context,
        best=Candidate(point, estimate, "random"),
        strategy="random",
        seconds=0.0,
    )
    got = jax.device_get(Plan.from_record(build_plan(outcome)).jit(step)(*values))
    # One step of gradients of order one: sums of some thousand float32 terms in another order.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), got, want)
