"""A step on some of the devices that there are, and on another number than its topology has."""

import jax
import jax.numpy as jnp
import pytest

import automap
from automap.api import call_plans
from automap.errors import MeshMismatchError


W, X = jnp.full((64, 64), 0.1), jnp.ones((32, 64))


def train_step(w, x):
    loss, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
    return w - grad, loss


@pytest.fixture
def no_search(monkeypatch):
    def search(*args, **kwargs):
        pytest.fail("a plan that cannot run was searched for")

    monkeypatch.setattr(call_plans, "plan_workload", search)


@pytest.mark.parametrize("space", ["sharding", "placement"])
def test_local_is_the_devices_that_are_given(space):
    some = jax.devices()[2:6]
    step = automap.parallelize(train_step, devices=some, space=space, budget=2)
    new, loss = step(W, X)
    assert step.plan.topology == automap.plan(train_step, (W, X), topology="cpu:4").topology
    assert new.devices() | loss.devices() <= set(some)
    want, _ = train_step(W, X)
    assert jnp.allclose(new, want, rtol=2e-4, atol=2e-5)


@pytest.mark.usefixtures("no_search")
@pytest.mark.parametrize(
    ("topology", "devices", "message"),
    [
        (
            "cpu:16",
            None,
            r"the topology cpu:16 has 16 devices, 8 are given; run where there are 16, or plan for "
            r'these with topology="cpu:8"',
        ),
        (
            "cpu:2",
            None,
            r"has 2 devices, 8 are given; give devices=jax.devices\(\)\[:2\], or plan for these "
            r'with topology="cpu:8"',
        ),
        (
            "cpu:8",
            4,
            r"has 8 devices, 4 are given; leave out devices=, or plan for these with "
            r'topology="cpu:4"',
        ),
    ],
)
def test_another_number_of_devices_is_refused_before_the_search(topology, devices, message):
    given = None if devices is None else jax.devices()[:devices]
    step = automap.parallelize(train_step, topology=topology, devices=given)
    for call in (step, step.plan_for):
        with pytest.raises(MeshMismatchError, match=message):
            call(W, X)


def test_a_plan_says_how_many_devices_to_give_it():
    plan = automap.plan(train_step, (W, X), topology="cpu:4", preset="data-parallel")
    with pytest.raises(
        MeshMismatchError, match=r"for 4 devices .*8 are given; give devices=jax.devices\(\)\[:4\]"
    ):
        plan.jit(train_step)
    assert plan.jit(train_step, jax.devices()[:4])(W, X)[1].shape == ()
