"""Pinned inputs through `plan`: stored exactly so, in the order of axes that was given, and the
step computes the same.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import automap
from automap.api.plan import Plan
from automap.errors import InputError
from automap.planner.rebuild import planned_workload, reprice_plan
from automap.topology import get_topology
from tests.steps import mlp


W1, W2 = "[0]['params']['w1']", "[0]['params']['w2']"
PINS = {
    "order of axes": {W1: "null,model+data"},
    "orders that differ": {W1: "null,model+data", W2: "null,data+model"},
    "both orders of one dimension": {W1: "model+data,null", "[0]['m']['w1']": "data+model,null"},
    "rows of parameters": {
        W1: "data,null",
        W2: "null,data",
        "[1]['x']": "data,null",
        "[1]['y']": "data,null",
    },
    "parameters and optimizer apart": {W1: "null,model", "[0]['m']['w1']": "model,null"},
    "optimizer only": {"[0]['m']['w2']": "model,data", W2: "null,null"},
    "rows over all": {W1: "data+model,null", W2: "data+model,null", "[1]['x']": "data+model,null"},
    "inputs apart": {"[1]['x']": "null,data", "[1]['y']": "data,null"},
}


def arrays(args, seed=0):
    source = np.random.default_rng(seed)
    return jax.tree.map(lambda a: jnp.asarray(source.random(a.shape), a.dtype), args)


def _text(spec):
    return ",".join("+".join(axes) if axes else "null" for axes in spec)


@pytest.mark.parametrize("name", PINS)
def test_inputs_are_as_pinned_and_the_step_computes_the_same(name, tmp_path):
    step, shapes = mlp()
    pins = PINS[name]
    texts = [f"{path}={spec}" for path, spec in pins.items()]
    plan = automap.plan(step, shapes, topology="cpu:8", mesh="data=4,model=2", pin=texts)
    spec_texts = {leaf.path: _text(leaf.spec) for leaf in plan.inputs}
    assert {path: spec_texts[path] for path in pins} == pins
    new = {leaf.path: _text(leaf.spec) for leaf in plan.outputs}
    assert all(new[path] == spec for path, spec in pins.items() if path in new)

    args = arrays(shapes)
    expected = jax.jit(step)(*args)
    result = plan.jit(step)(*args)
    for one, other in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4)

    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded == plan
    workload = planned_workload(loaded, step, shapes, {})
    again = reprice_plan(loaded, workload, get_topology("cpu:8"))
    assert again.warnings == ()
    assert again.estimate.step_seconds == plan.predicted.step_seconds


@pytest.mark.parametrize("order", ["data+model", "model+data"])
def test_what_is_split_with_a_pinned_input_has_its_order_of_axes(order):
    """Else the parts would change places among the devices."""
    step, shapes = mlp()
    plan = automap.plan(
        step,
        shapes,
        topology="cpu:8",
        mesh="data=4,model=2",
        preset="data-parallel",
        pin=f"[1]['x']={order},null",
    )
    batch = [leaf for leaf in plan.inputs if leaf.role == "batch"]
    assert [_text(leaf.spec) for leaf in batch] == [f"{order},null"] * 2
    compiled = plan.jit(step).lower(*shapes).compile()
    assert "collective-permute" not in compiled.as_text()


@pytest.mark.parametrize("mesh", ["auto", "data=8"])
def test_what_no_mesh_divides_together_is_named(mesh):
    step, shapes = mlp(batch=12)
    with pytest.raises(InputError, match=r"\[1\]\['x'\]"):
        automap.plan(
            step,
            shapes,
            topology="cpu:8",
            mesh=mesh,
            pin=["[1]['x']=data,null", f"{W1}=null,data"]
            if mesh == "data=8"
            else ["[1]['x']=data+model+replica,null"],
        )


def test_random_keys_cannot_be_pinned():
    def step(w, key):
        return w + jax.random.normal(key, w.shape)

    args = (jax.ShapeDtypeStruct((16, 8), "float32"), jax.eval_shape(lambda: jax.random.key(0)))
    with pytest.raises(InputError, match="0 dimensions"):
        automap.plan(step, args, topology="cpu:8", pin="[1]=data")
