"""Every kind of step trains under a plan as it does by itself: three steps, one search."""

from functools import partial

import equinox as eqx
from flax import nnx
import jax
import jax.numpy as jnp
import pytest

import automap
from automap.errors import PlanWarning
from tests.automap.runtime.kinds import (
    BATCH,
    KINDS,
    Opaque,
    Tree,
    arrays,
    equal,
    eqx_step,
    nnx_state,
    nnx_step,
    params,
    state,
    update,
)


OPTIONS = {"topology": "cpu:8", "preset": "zero-3"}


# Like others but for donation and what is returned.
SLOW = {"eqx donated", "nnx donated", "nnx returned"}


@pytest.mark.parametrize(
    "name", [pytest.param(k, marks=pytest.mark.slow) if k in SLOW else k for k in KINDS]
)
def test_three_steps_are_those_of_the_step_itself(name):
    kind, other = KINDS[name](), KINDS[name]()
    step = automap.parallelize(kind.step, **OPTIONS)
    reference = kind.reference or kind.step
    mine, theirs = kind.state, other.state
    plans, results = [], []
    for _ in range(3):
        mine, loss = kind.call(step, mine)
        theirs, other_loss = other.call(reference, theirs)
        results.append(arrays((theirs, other_loss)))
        equal((mine, loss), results[-1])
        plans.append(step.plan)
    assert plans[0] is plans[1] is plans[2]
    assert max(len(x.sharding.device_set) for x in arrays(mine)) == 8
    fresh = KINDS[name]()
    loaded = automap.Plan.from_json(plans[0].to_json()).jit(fresh.step)
    equal(fresh.call(loaded, fresh.state), results[0])


def test_what_a_step_brings_along_is_an_argument_of_its_name_if_it_hasarrays():
    plan = automap.plan(Tree(jnp.array(0.5)).step, (state(), BATCH), **OPTIONS)
    assert [leaf.path for leaf in plan.inputs][-1] == "['self'].scale"
    plan = automap.plan(partial(nnx_step, *nnx_state()), (BATCH,), **OPTIONS)
    paths = {leaf.path for leaf in plan.inputs}
    assert {"['model']['first']['kernel']", "['optimizer']['step']", "[0]['x']"} <= paths
    roles = {leaf.path: leaf.role for leaf in plan.outputs}
    assert roles["updated['model']['first']['kernel']"] == "parameter"
    for opaque in (Opaque(0.5).step, partial(update, scale=0.5)):
        plan = automap.plan(opaque, (state(), BATCH), **OPTIONS)
        assert {leaf.path[:3] for leaf in plan.inputs} == {"[0]", "[1]"}


class Decorated:
    """A class with a step of its own."""

    def __init__(self, scale):
        self.scale = scale

    @automap.parallelize(**OPTIONS, donate_argnums=1)
    def step(self, state, batch):
        return update(state, batch, scale=self.scale)


class DecoratedModule(nnx.Module):
    """The same for a module that is trained in place."""

    def __init__(self):
        self.model, self.optimizer = nnx_state()

    @automap.parallelize(**OPTIONS)
    def step(self, batch):
        return nnx_step(self.model, self.optimizer, batch)


def test_the_decorator_makes_methods():
    want, plans = update(state(), BATCH, scale=0.5)[0], []
    for trainer in (Decorated(0.5), Decorated(0.5)):
        given = state()
        new, _ = trainer.step(given, BATCH)
        equal(new, want)
        plans.append(trainer.step.plan)
    # The second object is another constant, but the same program, so it has no plan of its own.
    assert plans[0] is plans[1]
    again, _ = trainer.step(new, BATCH)
    assert all(x.is_deleted() for x in arrays(new))
    equal(again, update(want, BATCH, scale=0.5)[0])
    with pytest.warns(PlanWarning, match="a static argument, or what it closes over, differs"):
        _, loss = Decorated(0.25).step(state(), BATCH)
    equal(loss, update(state(), BATCH, scale=0.25)[1])

    module, (model, optimizer) = DecoratedModule(), nnx_state()
    for _ in range(2):
        equal(module.step(BATCH), nnx_step(model, optimizer, BATCH))
    equal(jax.tree.leaves(nnx.state(module.model)), jax.tree.leaves(nnx.state(model)))


def test_plain_attributes_change_as_in_place_as_arrays_do():
    model, optimizer = nnx_state()
    automap.parallelize(nnx_step, **OPTIONS)(model, optimizer, BATCH)
    assert not model.norm.use_running_average and not model.dropout.deterministic


def test_what_cannot_be_changed_in_place_is_refused():
    def adds(model, optimizer, batch):
        model.seen = nnx.Variable(batch["x"].sum())
        return nnx_step(model, optimizer, batch)

    with pytest.raises(
        automap.InputError, match="adds Variables to an nnx object, or removes some"
    ):
        automap.parallelize(adds, **OPTIONS)(*nnx_state(), BATCH)
    for jitted in (nnx.jit(nnx_step), eqx.filter_jit(eqx_step)):
        with pytest.raises(automap.InputError, match="keeps its own options"):
            automap.parallelize(jitted, donate_argnums=0)


def test_a_step_that_keeps_nothing_of_what_it_trains_says_so():
    def forgets(state, batch):
        return update(state, batch)[1]

    with pytest.warns(PlanWarning, match="differentiates, but none of its results replaces"):
        step = automap.parallelize(forgets, topology="cpu:8", preset="megatron")
        loss = step(state(), BATCH)
    equal(loss, update(state(), BATCH)[1])
    plan = step.plan
    assert any("nothing that it trains is kept" in text for text in plan.warnings)

    def predicts(params, batch):
        return jnp.tanh(batch["x"] @ params["w1"]) @ params["w2"]

    automap.parallelize(predicts, topology="cpu:8", budget=1)(params(), BATCH)


def test_a_planned_step_is_itself_a_step():
    step = automap.parallelize(update, **OPTIONS)
    plan = step.plan_for(state(), BATCH)
    equal(plan.jit(step)(state(), BATCH), update(state(), BATCH))
    assert automap.plan(step, (state(), BATCH), **OPTIONS).inputs == plan.inputs
