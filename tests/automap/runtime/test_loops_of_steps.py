"""Several train steps in one jitted loop: state is known as such, and stored and moved as the plan
says.
"""

import jax
from jax import lax
import numpy as np
import pytest

from automap.api.plan import Plan
from automap.backends import backend_for
from automap.config import Options
from automap.planner.records import build_plan
from automap.planner.sharding import find
from automap.program import trace_step
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from models import gpt, mlp
from models.training import random_batch
from scripts.transfers import compiled_transfers, predicted_transfers


TOPOLOGY = get_topology("cpu:8")
MESH = Mesh(("data", "model"), (4, 2))
MODELS = {"mlp": (mlp, mlp.mlp_tiny), "gpt": (gpt, gpt.gpt_tiny)}


@pytest.mark.parametrize(
    "preset",
    [
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("data-parallel", "zero-1")),
        "zero-3",
        "megatron",
    ],
)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("n_steps", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_loop_of_steps(name, preset, n_steps):
    module, tiny = MODELS[name]
    step, args = tiny()

    def steps(state, batches):
        return lax.scan(step, state, batches)

    many = jax.tree.map(lambda x: jax.ShapeDtypeStruct((n_steps, *x.shape), x.dtype), args[1])
    outcome = find(trace_step(steps, (args[0], many)), TOPOLOGY, Options(mesh=MESH, preset=preset))
    plan = Plan.from_record(build_plan(outcome))
    roles = {leaf.path: leaf.role for leaf in plan.inputs}
    for path, role in roles.items():
        if ".mu" in path or ".nu" in path:
            assert role == "optimizer state"
        elif "['params']" in path:
            assert role == "parameter"

    state = module.init(module.TINY, jax.random.key(0))
    batches = random_batch(many, 0)
    planned = plan.jit(steps)
    compiled_bytes = compiled_transfers(planned.lower(state, batches).compile().as_text(), MESH)
    assert compiled_bytes == predicted_transfers(outcome, backend_for("cpu"))
    want = jax.device_get(jax.jit(steps)(state, batches)[1]["loss"])
    got = jax.device_get(planned(state, batches)[1]["loss"])
    np.testing.assert_allclose(got, want, rtol=1e-5)
