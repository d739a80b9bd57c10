"""Steps that do little: no ops, no inputs, no outputs. They are planned, explained, simulated and
run like any other.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import automap
from automap.api.plan import Plan
from automap.api.simulation import Simulation, simulate_workload
from automap.config import Options
from automap.planner.spaces import plan_workload
from automap.program import trace_step
from automap.search import STRATEGIES
from automap.topology import get_topology


ARRAY = jax.ShapeDtypeStruct((8, 8), "float32")
STEPS = {
    "hands on": (lambda x: x, (ARRAY,)),
    "swaps": (lambda a, b: (b, a), (ARRAY, ARRAY)),
    "forgets": (lambda x: (), (ARRAY,)),
    "makes": (lambda: jnp.ones((8, 8)), ()),
    "does nothing": (lambda: (), ()),
    "counts": (lambda n: n + 1, (jax.ShapeDtypeStruct((), "int32"),)),
}


# Auto-MAP's two refuse a step without variables or a batch.
@pytest.mark.parametrize("strategy", sorted(set(STRATEGIES) - {"adp", "opp"}))
@pytest.mark.parametrize("name", STEPS)
def test_it_is_planned_explained_and_simulated(name, strategy, tmp_path):
    if strategy == "rainbow":
        pytest.importorskip("torch")
    workload = trace_step(*STEPS[name], platform="tpu")
    options = Options(strategy=strategy, budget_seconds=2.0)
    plan = Plan.from_record(plan_workload(workload, get_topology("v5e:2x4"), options))
    assert plan.predicted.fits
    assert "predicted step" in plan.explain()
    simulation = Simulation.from_record(simulate_workload(plan, workload))
    assert simulation.predicted_seconds == plan.predicted.step_seconds
    assert simulation.explain()
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan


@pytest.mark.parametrize("name", STEPS)
def test_it_runs_as_on_one_device(name):
    step, arrays = STEPS[name]
    inputs = [np.arange(np.prod(a.shape), dtype=a.dtype).reshape(a.shape) for a in arrays]
    ours = automap.parallelize(step, topology="cpu:8", budget=2)
    outputs, expected = ours(*inputs), step(*inputs)
    assert jax.tree.structure(outputs) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(outputs), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(a, b)
