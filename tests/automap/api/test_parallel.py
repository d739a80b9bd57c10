"""The decorator, as a user writes it."""

from functools import partial
from pathlib import Path
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

import automap
from tests.automap.api.steps import check_equal, filled_mlp, parallelized
from tests.steps import mlp


ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("first", ["plan", "init"])
def test_state_is_born_sharded_and_the_stepcheck_equals_the_single_device_step(first):
    step, make = filled_mlp()
    ours = parallelized(jax.jit(step, donate_argnums=0), preset="zero-3")
    state, batch = make(jax.random.key(0))
    if first == "plan":
        ours.plan_for(state, batch)
    born = ours.init(lambda rng: make(rng)[0], jax.random.key(0))
    check_equal(born, state)
    for leaf in jax.tree.leaves(born):
        assert {s.data.size * 8 for s in leaf.addressable_shards} == {leaf.size}
    new, loss = ours(born, batch)
    check_equal((new, loss), jax.jit(step)(state, batch))
    again, _ = ours(new, batch)
    assert new["params"]["w1"].is_deleted()
    assert again["params"]["w1"].sharding == new["params"]["w1"].sharding
    assert ours.plan.predicted.fits


def test_static_keyword_and_scalar_arguments():
    @partial(parallelized, static_argnums=1, static_argnames="activation", donate_argnames="w")
    def step(x, scale, rate, *, w, activation):
        loss, grad = jax.value_and_grad(
            lambda w: jnp.mean((getattr(jax.nn, activation)(x @ w) * scale) ** 2)
        )(w)
        return w - rate * grad, loss

    x, w = jnp.linspace(0, 1, 16 * 32).reshape(16, 32), jnp.eye(32)
    for rate in (0.1, 0.2):
        want = step.__wrapped__(x, 3, rate, w=w, activation="relu")
        check_equal(step(x, 3, rate, w=jnp.eye(32), activation="relu"), want)
    assert [leaf.path for leaf in step.plan.inputs] == ["[0]", "[2]", "['w']"]
    first = step.plan
    want = step.__wrapped__(x, 2, 0.1, w=w, activation="tanh")
    with pytest.warns(
        automap.errors.PlanWarning, match="a static argument, or what it closes over"
    ):
        check_equal(step(x, 2, 0.1, w=w, activation="tanh"), want)
    assert step.plan is not first


def test_random_keys_and_dropout_give_the_single_device_numbers():
    def step(w, x, rng):
        def loss(w):
            kept = jax.random.bernoulli(rng, 0.5, (16, 32))
            return jnp.mean((jnp.where(kept, x, 0.0) @ w) ** 2)

        value, grad = jax.value_and_grad(loss)(w)
        return w - 0.1 * grad, value

    args = jnp.eye(32), jnp.linspace(0, 1, 16 * 32).reshape(16, 32), jax.random.key(3)
    ours = parallelized(step, preset="data-parallel")
    check_equal(ours(*args), jax.jit(step)(*args))
    key = ours.plan.inputs[2]
    assert (key.role, key.shape, key.spec) == ("rng key", (), ())


def test_one_device():
    step, make = filled_mlp()
    ours = automap.parallelize(step, topology="cpu:1", devices=jax.devices()[:1])
    state, batch = make(jax.random.key(0))
    check_equal(ours(state, batch), step(state, batch))


def test_another_process_applies_a_saved_plan(tmp_path):
    step, make = filled_mlp()
    path = tmp_path / "plan.json"
    automap.plan(step, make(jax.random.key(0)), topology="cpu:8", preset="megatron").save(path)
    program = f"""
import jax
jax.config.update("jax_num_cpu_devices", 8)
import automap.api.call_plans
from tests.automap.api.steps import check_equal, filled_mlp
automap.api.call_plans.plan_workload = None  # a search would fail
step, make = filled_mlp()
args = make(jax.random.key(0))
run = automap.Plan.load({str(path)!r}).jit(step)
out = run(*args)
check_equal(out, step(*args))
print(out[0]["params"]["w1"].sharding.spec)
assert "all-reduce" in run.lower(*args).compile().as_text()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "data" in done.stdout


def test_what_is_not_the_planned_step_is_refused():
    step, make = filled_mlp()
    args = make(jax.random.key(0))
    plan = automap.plan(step, args, topology="cpu:8", preset="data-parallel")

    def other(state, batch):
        state, loss = step(state, batch)
        return state, loss * 2

    with pytest.raises(automap.PlanError, match="computes something else than the planned"):
        plan.jit(other)(*args)
    with pytest.raises(automap.InputError, match="keeps its own options"):
        plan.jit(jax.jit(step), donate_argnums=0)
    with pytest.raises(automap.InputError, match="the plan decides these"):
        plan.jit(step, in_shardings=None)
    with pytest.raises(automap.PlanError, match="has no plan yet"):
        _ = automap.parallelize(step).plan


def test_lowering_touches_no_device():
    step, (state, data) = mlp()
    plan = automap.plan(step, (state, data), topology="cpu:8", preset="zero-3")
    memory = plan.jit(step).lower(state, data).compile().memory_analysis()
    whole = sum(leaf.size * 4 for leaf in jax.tree.leaves(state))
    assert memory.argument_size_in_bytes < whole / 4
