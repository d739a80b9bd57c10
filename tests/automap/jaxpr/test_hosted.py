"""A plan with state in host memory computes bit for bit what the same plan without computes, alone
and with the other levers; its state is in that memory between steps, and is saved and restored.
"""

from dataclasses import replace
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import automap
from automap.config import read_options
from automap.cost.hosted import movable_leaves
from automap.jaxpr import in_parts
from automap.jaxpr.blocks import block_groups
from automap.plan.levers import CARRY, LeversRecord, WithoutLeversRecord
from automap.planner.levers import find_with_levers
from automap.planner.rebuild import levered_workload
from automap.planner.records import build_plan
from automap.planner.remat import KeptValues, keep_all, keep_nothing, remat_records
from automap.planner.sharding import find
from automap.program.trace import trace_step
from automap.runtime.meshes import check_has_host_memory
from automap.topology import get_topology
from models.training import random_batch


STEPS = 3
# Counters stay on the device.
KINDS = {"pinned_host", "device"}
PRESET = read_options(preset="zero-1", levers="none")


def _levers(**fields):
    without = WithoutLeversRecord(step_seconds=1.0, peak_bytes=1, fits=False)
    return LeversRecord(**{"remat": (), "recompute_seconds": 0.0, "without": without} | fields)


def _mlp():
    """Adam behind a clip by the norm of all gradients, with layers that repeat."""
    rng = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(rng.normal(0, 0.3, shape), jnp.float32)

    params = {"in": normal(32, 16), "layers": [(normal(16, 64), normal(64, 16)) for _ in range(4)]}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))

    def loss(params, x):
        x = x @ params["in"]
        for a, b in params["layers"]:
            x = x + jnp.tanh(x @ a) @ b
        return (x**2).mean()

    def step(state, x):
        value, gradients = jax.value_and_grad(loss)(state["params"], x)
        updates, opt = optimizer.update(gradients, state["opt"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, value

    state = {"params": params, "opt": optimizer.init(params)}
    return jax.jit(step, donate_argnums=0), (state, normal(32, 32))


def _model(name):
    if name == "mlp":
        return _mlp()
    module = importlib.import_module(f"models.{name}")
    options = {"layers": "scanned"} if name == "gpt" else {}
    step, args = getattr(module, f"{name}_tiny")(**options)
    state = module.init(replace(module.TINY, **options), jax.random.key(0))
    return step, (state, random_batch(args[1], 0))


def _plans(step, args, others):
    """The plan of a preset with other levers and with offload beside them, and without offload."""
    workload = trace_step(step, args, platform="cpu")
    levers = None
    if "accumulate" in others:
        levers = _levers(microbatches=2)
        workload = levered_workload(workload, levers, "cpu")
    if "remat" in others:
        groups = block_groups(workload.reemitter.flat)
        records = remat_records(groups, keep_nothing(groups))
        assert records
        levers = _levers(remat=records, microbatches=1 if levers is None else 2)
        workload = levered_workload(workload, levers, "cpu")
    outcome = find(workload, get_topology("local"), PRESET)
    paths = tuple(
        workload.problem.paths[leaf] for leaf in movable_leaves(workload.problem, "in parts")
    )
    assert paths
    kept = _levers(offload=paths) if levers is None else replace(levers, offload=paths)
    plans = [build_plan(replace(outcome, levers=each)) for each in (levers, kept)]
    return [automap.Plan.from_json(plan.to_json()) for plan in plans]


def _hosted_values(groups):
    """All that loops stack, their carries too, in the host's memory."""
    kept = keep_all(groups)
    hosted = {
        number: group.residuals | {(CARRY, n) for n in range(len(group.blocks[0].carries))}
        for number, group in enumerate(groups)
        if group.blocks[0].kind == "scan"
    }
    return remat_records(groups, KeptValues(kept.kept, hosted))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt", "t5", "moe"])
def test_the_same_numbers_with_kept_values_in_host_memory(name):
    module = importlib.import_module(f"models.{name}")
    step, args = getattr(module, f"{name}_tiny")(layers="scanned")
    state = module.init(replace(module.TINY, layers="scanned"), jax.random.key(0))
    workload = trace_step(step, args, platform="cpu")
    plain = find(workload, get_topology("local"), PRESET)
    records = _hosted_values(block_groups(workload.reemitter.flat))
    assert records
    levers = _levers(remat=records)
    kept = find(levered_workload(workload, levers, "cpu"), get_topology("local"), PRESET)
    assert "<host>" in str(kept.workload.call.jaxpr)
    plans = [build_plan(plain), build_plan(replace(kept, levers=levers))]
    plans = [automap.Plan.from_json(plan.to_json()) for plan in plans]
    batch = random_batch(args[1], 0)
    expected, got = (_run(plan, step, (state, batch)) for plan in plans)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(jax.device_get(a), jax.device_get(b), rtol=2e-4, atol=5e-5)


def _run(plan, step, args):
    run, (state, batch) = plan.jit(step), jax.tree.map(jnp.copy, args)
    for _ in range(STEPS):
        state, value = run(state, batch)
    return state, value


CASES = [
    pytest.param("mlp", ()),
    pytest.param("mlp", ("accumulate", "remat"), marks=pytest.mark.slow),
    *(
        pytest.param(name, others, marks=pytest.mark.slow)
        for name in ("mlp", "gpt", "vit", "bert")
        for others in ((), ("remat",), ("accumulate",))
        if name != "mlp" or others == ("accumulate",)
    ),
]


@pytest.fixture(params=["whole", "parts"])
def how_leaves_come(request, monkeypatch):
    """Leaves of these models come in whole; with parts of one byte they come in parts."""
    if request.param == "parts":
        for name, value in {"_PART_BYTES": 1, "_ROWS": 1, "_LANES": 1}.items():
            monkeypatch.setattr(in_parts, name, value)
    return request.param


@pytest.mark.parametrize(("name", "others"), CASES)
def test_the_same_bits_with_state_in_host_memory(name, others, how_leaves_come):
    step, args = _model(name)
    without, kept = _plans(step, args, others)
    expected, got = (_run(plan, step, args) for plan in (without, kept))
    # Softmax takes no notice of a key's bias: its gradient is a rounding, which Adam makes a step.
    is_noise = [
        "['k']['bias']" in jax.tree_util.keystr(p) for p, _ in jax.tree.leaves_with_path(got)
    ]
    for a, b, skip in zip(jax.tree.leaves(got), jax.tree.leaves(expected), is_noise, strict=True):
        if how_leaves_come == "whole":
            np.testing.assert_array_equal(jax.device_get(a), jax.device_get(b))
        elif not skip:
            np.testing.assert_allclose(jax.device_get(a), jax.device_get(b), rtol=2e-4, atol=2e-5)
    paths = [f"[0]{jax.tree_util.keystr(path)}" for path, _ in jax.tree.leaves_with_path(got[0])]
    for path, leaf in zip(paths, jax.tree.leaves(got[0]), strict=True):
        is_hosted = path in kept.levers.offload
        assert leaf.sharding.memory_kind == ("pinned_host" if is_hosted else "device")


def test_a_leaf_that_the_step_returns_besides_is_in_both_memories(how_leaves_come):
    step, args = _mlp()

    def telling(state, x):
        new, value = step(state, x)
        return new, (value, new["opt"][1][0].mu["in"])

    jitted = jax.jit(telling, donate_argnums=0)
    without, kept = _plans(jitted, args, ())
    expected, got = (_run(plan, jitted, args) for plan in (without, kept))
    told, own = got[1][1], got[0]["opt"][1][0].mu["in"]
    assert told.sharding.memory_kind == "device"
    assert own.sharding.memory_kind == "pinned_host"
    before = jax.device_get(expected[1][1])
    np.testing.assert_allclose(jax.device_get(told), before, rtol=1e-5, atol=1e-8)
    np.testing.assert_array_equal(jax.device_get(told), jax.device_get(own))


@pytest.mark.slow
def test_state_is_born_there_saved_and_restored(tmp_path):
    import orbax.checkpoint as ocp

    step, (state, x) = _mlp()
    asked = {"preset": "zero-1", "strategy": "greedy", "budget": 5}
    plain = automap.parallelize(step, **asked)
    plain(jax.tree.map(jnp.copy, state), x)
    # Less than the step takes: something has to wait in the host's memory.
    limit = 0.9 * plain.plan.predicted.peak_bytes / 2**30
    train = automap.parallelize(step, levers="offload", memory_limit=limit, **asked)
    after, _ = train(jax.tree.map(jnp.copy, state), x)
    plan = train.plan
    assert plan.levers is not None
    assert plan.levers.offload
    run = plan.jit(step)
    born = train.init(lambda: state)
    assert {leaf.sharding.memory_kind for leaf in jax.tree.leaves(born["opt"])} == KINDS
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), after
    )
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", after)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "state", shapes)
    assert {leaf.sharding.memory_kind for leaf in jax.tree.leaves(restored["opt"])} == KINDS
    expected, got = (run(jax.tree.map(jnp.copy, s), x)[0] for s in (after, restored))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(jax.device_get(a), jax.device_get(b))


def test_a_step_fits_that_does_not_without():
    step, args = _mlp()
    workload, topology = trace_step(step, args, platform="tpu"), get_topology("v5e:2x2")
    smallest = find(workload, topology, replace(PRESET, preset="zero-1", memory_limit_bytes=1.0))
    peak = smallest.best.estimate.peak_bytes
    options = replace(PRESET, levers=("offload",), memory_limit_bytes=0.9 * peak)
    plan = build_plan(find_with_levers(workload, topology, options))
    assert plan.predicted.fits
    assert plan.levers is not None
    assert not plan.levers.without.fits
    assert 0 < plan.levers.host_bytes
    assert "offload of" in automap.Plan.from_record(plan).explain()
    # As much stays on the device as there is room for.
    every = {workload.problem.paths[leaf] for leaf in movable_leaves(workload.problem, "in parts")}
    assert set(plan.levers.offload) <= every
    assert plan.predicted.step_seconds == pytest.approx(
        plan.predicted.compute_seconds
        + plan.predicted.collective_seconds
        + plan.predicted.host_seconds
    )


def test_nothing_is_moved_where_all_fits():
    step, args = _mlp()
    workload = trace_step(step, args, platform="tpu")
    assert (
        find_with_levers(
            workload, get_topology("v5e:2x2"), replace(PRESET, levers=("auto",))
        ).levers
        is None
    )


def test_devices_without_such_a_memory_are_refused():
    class Device:
        def addressable_memories(self):
            return []

    with pytest.raises(automap.PlanError, match="no memories that JAX names"):
        check_has_host_memory([Device()])
