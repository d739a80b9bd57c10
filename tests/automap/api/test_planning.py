"""The decorator and the function, as a user writes them."""

from functools import partial
import json
from pathlib import Path
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import automap
from automap.api import planning as api
from automap.api.plan import Plan
from automap.errors import CacheWarning, PlanError
from tests.steps import mlp


ROOT = Path(__file__).resolve().parents[3]


def _problem(batch=16, width=32):
    step, (state, data) = mlp(batch=batch, width=width)
    make = partial(_filled, state, data)
    return step, make


def _filled(state, data, rng):
    draw = lambda leaf: jax.random.normal(rng, leaf.shape) * 0.1  # noqa: E731
    state = jax.tree.map(draw, state)
    return {**state, "v": jax.tree.map(jnp.ones_like, state["v"])}, jax.tree.map(draw, data)


def _equal(ours, theirs):
    # Sums over devices associate differently: a few float32 roundings of values of order one.
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def _fixed_topology(step, **options):
    return automap.parallelize(step, topology="cpu:8", budget=2, **options)


@pytest.mark.parametrize("first", ["plan", "init"])
def test_state_is_born_sharded_and_the_step_equals_the_single_device_step(first):
    step, make = _problem()
    ours = _fixed_topology(jax.jit(step, donate_argnums=0), preset="zero-3")
    state, batch = make(jax.random.key(0))
    if first == "plan":
        ours.plan_for(state, batch)
    born = ours.init(lambda rng: make(rng)[0], jax.random.key(0))
    _equal(born, state)
    for leaf in jax.tree.leaves(born):
        assert {s.data.size * 8 for s in leaf.addressable_shards} == {leaf.size}
    new, loss = ours(born, batch)
    _equal((new, loss), jax.jit(step)(state, batch))
    again, _ = ours(new, batch)
    assert new["params"]["w1"].is_deleted()
    assert again["params"]["w1"].sharding == new["params"]["w1"].sharding
    assert ours.plan.predicted.fits


def test_static_keyword_and_scalar_arguments():
    @partial(_fixed_topology, static_argnums=1, static_argnames="activation", donate_argnames="w")
    def step(x, scale, rate, *, w, activation):
        loss, grad = jax.value_and_grad(
            lambda w: jnp.mean((getattr(jax.nn, activation)(x @ w) * scale) ** 2)
        )(w)
        return w - rate * grad, loss

    x, w = jnp.linspace(0, 1, 16 * 32).reshape(16, 32), jnp.eye(32)
    for rate in (0.1, 0.2):
        want = step.__wrapped__(x, 3, rate, w=w, activation="relu")
        _equal(step(x, 3, rate, w=jnp.eye(32), activation="relu"), want)
    assert [leaf.path for leaf in step.plan.inputs] == ["[0]", "[2]", "['w']"]
    first = step.plan
    want = step.__wrapped__(x, 2, 0.1, w=w, activation="tanh")
    with pytest.warns(
        automap.errors.PlanWarning, match="a static argument, or what it closes over"
    ):
        _equal(step(x, 2, 0.1, w=w, activation="tanh"), want)
    assert step.plan is not first


def test_random_keys_and_dropout_give_the_single_device_numbers():
    def step(w, x, rng):
        def loss(w):
            kept = jax.random.bernoulli(rng, 0.5, (16, 32))
            return jnp.mean((jnp.where(kept, x, 0.0) @ w) ** 2)

        value, grad = jax.value_and_grad(loss)(w)
        return w - 0.1 * grad, value

    args = jnp.eye(32), jnp.linspace(0, 1, 16 * 32).reshape(16, 32), jax.random.key(3)
    ours = _fixed_topology(step, preset="data-parallel")
    _equal(ours(*args), jax.jit(step)(*args))
    key = ours.plan.inputs[2]
    assert (key.role, key.shape, key.spec) == ("rng key", (), ())


def test_one_device():
    step, make = _problem()
    ours = automap.parallelize(step, topology="cpu:1", devices=jax.devices()[:1])
    state, batch = make(jax.random.key(0))
    _equal(ours(state, batch), step(state, batch))


def test_a_cached_plan_is_loaded_without_a_search(tmp_path, monkeypatch):
    step, make = _problem()
    args = make(jax.random.key(0))
    first = _fixed_topology(step, cache_dir=tmp_path).plan_for(*args)
    (file,) = tmp_path.iterdir()

    def no_search(*_, **__):
        raise AssertionError("searched again")

    with monkeypatch.context() as patched:
        patched.setattr(api, "plan_workload", no_search)
        assert _fixed_topology(step, cache_dir=tmp_path).plan_for(*args) == first
        with pytest.raises(AssertionError, match="searched again"):
            _fixed_topology(step, cache_dir=tmp_path, seed=1).plan_for(*args)
    file.write_text('{"format": "automap-plan", "vers')
    assert _fixed_topology(step, cache_dir=tmp_path).plan_for(*args).inputs == first.inputs
    assert automap.Plan.load(file).inputs == first.inputs


@pytest.mark.parametrize("change", ["one too few", "another shape"])
def test_a_cached_plan_with_other_outputs_is_a_miss(tmp_path, change):
    """Finding D6: it failed at every call."""
    step, make = _problem()
    args = make(jax.random.key(0))
    first = _fixed_topology(step, cache_dir=tmp_path).plan_for(*args)
    (file,) = tmp_path.iterdir()
    data = json.loads(file.read_text())
    if change == "one too few":
        del data["outputs"][-1]
    else:
        data["outputs"][0] |= {"shape": [4], "spec": [None]}
    file.write_text(json.dumps(data))
    edited = Plan.load(file)
    with pytest.raises(PlanError, match="the step's outputs are not those of the plan"):
        edited.jit(step).lower(*args)
    assert _fixed_topology(step, cache_dir=tmp_path).plan_for(*args).outputs == first.outputs


def test_a_cache_that_cannot_be_written_is_a_warning_and_the_step_runs(tmp_path):
    """Finding D11: an unwritable cache raised after planning."""
    step, make = _problem()
    (tmp_path / "file").write_text("")
    ours = _fixed_topology(step, cache_dir=tmp_path / "file" / "cache")
    args = make(jax.random.key(0))
    with pytest.warns(CacheWarning, match="not kept in the cache .*: Not a directory; give a"):
        ours.plan_for(*args)
    _equal(ours(*args), step(*args))


def test_a_link_in_a_shared_cache_is_replaced_and_its_victim_left_alone(tmp_path):
    """Finding D10: what the link pointed to was overwritten."""
    step, make = _problem()
    args = make(jax.random.key(0))
    folder, victim = tmp_path / "cache", tmp_path / "victim"
    first = _fixed_topology(step, cache_dir=folder).plan_for(*args)
    (entry,) = folder.iterdir()
    entry.unlink()
    victim.write_text("precious")
    entry.symlink_to(victim)
    assert _fixed_topology(step, cache_dir=folder).plan_for(*args).inputs == first.inputs
    assert victim.read_text() == "precious"
    assert list(folder.iterdir()) == [entry] and not entry.is_symlink()


def test_another_process_applies_a_saved_plan(tmp_path):
    step, make = _problem()
    path = tmp_path / "plan.json"
    automap.plan(step, make(jax.random.key(0)), topology="cpu:8", preset="megatron").save(path)
    program = f"""
import jax
jax.config.update("jax_num_cpu_devices", 8)
import automap
from tests.automap.api.test_planning import _equal, _problem
automap.api.planning.plan_workload = None  # a search would fail
step, make = _problem()
args = make(jax.random.key(0))
run = automap.Plan.load({str(path)!r}).jit(step)
out = run(*args)
_equal(out, step(*args))
print(out[0]["params"]["w1"].sharding.spec)
assert "all-reduce" in run.lower(*args).compile().as_text()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "data" in done.stdout


def test_what_is_not_the_planned_step_is_refused():
    step, make = _problem()
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
