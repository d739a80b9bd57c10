"""State that comes back with other types than it was given with, and inputs of numpy's types: one
search, one plan.

Warnings are errors here, and a second plan warns.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import automap
from automap.errors import PlanWarning
from automap.jaxpr.reemit import Reemitter
from automap.runtime.other_types import DifferentStepError, match_sites


X = jnp.linspace(0, 1, 16 * 8).reshape(16, 8)
SHARDING = {"topology": "cpu:8", "preset": "zero-3"}
PIPELINE = {"topology": "cpu:8", "space": "pipeline", "stages": 2, "microbatches": 2}


def _loss(params, x):
    for w in params["w"]:
        x = jnp.tanh(x @ w)
    return jnp.mean((x * params["scale"]) ** 2)


def _params(scale):
    return {"w": [jnp.eye(8) * 0.9 + 0.01 * i for i in range(4)], "scale": scale}


def _train(tx, params):
    """A step and its state: a tuple (parameters, optimizer state)."""

    def step(state, x):
        value, grads = jax.value_and_grad(_loss)(state[0], x)
        more = {"value": value, "grad": grads, "value_fn": partial(_loss, x=x)}
        update = optax.with_extra_args_support(tx).update
        updates, opt = update(grads, state[1], state[0], **more)
        return (optax.apply_updates(state[0], updates), opt), value

    return step, (params, tx.init(params))


def _halved(state, x):
    """Integers become floats at the first step."""
    grads = jax.grad(lambda w: _loss({"w": w, "scale": 1.0}, x))(state["w"])
    w = jax.tree.map(lambda w, g: w - 0.1 * g * state["rate"], state["w"], grads)
    return {"w": w, "rate": state["rate"] * 0.5}, jnp.sum(state["rate"])


STEPS = {
    "adam": lambda: _train(optax.adam(1e-2), _params(jnp.array(1.0))),
    "adafactor": lambda: _train(optax.adafactor(1e-2), _params(jnp.array(1.0))),
    "lbfgs": lambda: _train(optax.lbfgs(), _params(jnp.array(1.0))),
    "Python number": lambda: _train(optax.sgd(0.1), _params(1.0)),
    "integers to floats": lambda: (_halved, {"w": _params(1)["w"], "rate": jnp.int32(2)}),
    "Python integer to float": lambda: (_halved, {"w": _params(1)["w"], "rate": 2}),
}


def _is_equal(ours, theirs):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert jnp.asarray(a).dtype == jnp.asarray(b).dtype
        np.testing.assert_allclose(a, b, rtol=5e-4, atol=5e-5)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("adam", SHARDING),
        pytest.param("adafactor", SHARDING, marks=pytest.mark.slow),
        pytest.param("lbfgs", SHARDING, marks=pytest.mark.slow),
        ("Python number", SHARDING),
        ("integers to floats", SHARDING),
        ("Python integer to float", SHARDING),
        pytest.param("adam", PIPELINE, marks=pytest.mark.slow),
        ("integers to floats", PIPELINE),
    ],
)
def test_a_step_goes_on_under_its_plan_as_under_jit(name, options):
    step, state = STEPS[name]()
    reference = jax.jit(step)
    ours = automap.parallelize(step, **options)
    mine = theirs = state
    plans = []
    for _ in range(3):
        mine, value = ours(mine, X)
        theirs, want = reference(theirs, X)
        _is_equal((mine, value), (theirs, want))
        plans.append(ours.plan)
    assert plans[0] is plans[1] is plans[2]
    # In a process that begins with the types of the second step, as after a checkpoint, the plan is
    # of the first.
    second, value = reference(state, X)
    loaded = automap.Plan.from_json(plans[0].to_json()).jit(step)
    _is_equal(loaded(second, X), reference(second, X))
    _is_equal(loaded(state, X), (second, value))


def test_other_types_than_the_step_returns_are_refused():
    step, state = STEPS["adam"]()
    plan = automap.plan(step, (state, X), **SHARDING)
    with pytest.raises(
        automap.PlanError, match=r"\[1\]: got bfloat16\[16,8\], the plan has float32"
    ):
        plan.jit(step)(state, X.astype(jnp.bfloat16))

    def other(state, x):
        new, value = step(state, x)
        return new, value * 2

    second, _ = jax.jit(step)(state, X)
    with pytest.raises(automap.PlanError, match="computes something else than the planned"):
        plan.jit(other)(second, X)


def _level(function, *args):
    return Reemitter(jax.jit(function).trace(*args).jaxpr).flat


def test_places_are_renamed_past_conversions():
    def function(x, y):
        a = x * y.astype(jnp.bfloat16).astype(jnp.float32)
        return jax.lax.scan(lambda c, z: (c + x.sum() * z, z * z), a.sum(), y)

    x, y = jnp.ones((4,)), jnp.ones((4,), jnp.bfloat16)
    planned, called = _level(function, x, y.astype(jnp.float32)), _level(function, x, y)
    renaming = match_sites(planned, called)
    names = {e.path: e.eqn.primitive.name for flat in (planned, called) for e in flat.equations}
    at = {e.path: e.eqn.primitive.name for e in called.equations}
    assert len(planned.equations) != len(called.equations)
    kept = [e for e in planned.equations if e.eqn.primitive.name != "convert_element_type"]
    assert kept
    for equation in kept:
        assert at[renaming.new_sites[equation.path]] == equation.eqn.primitive.name, names
    with pytest.raises(DifferentStepError, match="the equations differ from"):
        match_sites(planned, _level(lambda x, y: (x * y, y.sum() - 1), x, y))


# Newer versions of JAX warn of an abstract input of 64 bits, too.
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
def test_inputs_of_numpys_types_are_those_of_jax():
    """int64 and float64 are int32 and float32 as long as `jax_enable_x64` is not set: no plan and
    no program more.
    """

    def step(p, index, factor):
        return p * 0.9 + jnp.mean(factor) * index.sum(), index.sum()

    ours = automap.parallelize(step, topology="cpu:8", budget=1)
    p = want = jnp.ones((16, 4))
    plans = []
    for number in range(3):
        index = np.full(32, number, np.int64)
        p, total = ours(p, index, np.ones(3))
        want, _ = jax.jit(step)(want, index, np.ones(3))
        _is_equal((p, total), (want, index.sum()))
        plans.append(ours.plan)
    assert plans[0] is plans[1] is plans[2]
    ours(p, jnp.zeros(32, jnp.int32), jnp.ones(3))
    ours(p, np.zeros(32, np.int32), np.ones(3, np.float32))
    ours.plan_for(p, jax.ShapeDtypeStruct((32,), np.int64), jax.ShapeDtypeStruct((3,), np.float64))
    assert ours.plan is plans[0]
    assert [leaf.dtype for leaf in ours.plan.inputs] == ["float32", "int32", "float32"]


def test_a_batch_of_another_size_has_a_plan_of_its_own_which_is_said_and_kept():
    step, state = STEPS["adam"]()
    ours = automap.parallelize(step, **SHARDING)
    ours(state, X)
    whole = ours.plan
    with pytest.warns(
        PlanWarning, match=r"planned once more.*: \[1\] is float32\[8,8\], planned was"
    ) as said:
        ours(state, X[:8])
    assert "1 plan is kept, at most 16" in str(said[0].message)
    part = ours.plan
    assert [plan.inputs[-1].shape for plan in (whole, part)] == [(16, 8), (8, 8)]
    for batch, plan in ((X, whole), (X[:8], part), (X, whole)):
        ours(state, batch)
        assert ours.plan is plan
