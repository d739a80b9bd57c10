"""Levers where memory decides: plans that fit only with them run, and are never slower than what
people use.
"""

from dataclasses import replace
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import automap
from automap.config import read_options
from automap.deadline import Clock, Deadline
from automap.errors import InfeasiblePlanError, InputError, NotSeparableError
from automap.jaxpr.blocks import block_groups
from automap.plan.levers import LeversRecord, WithoutLeversRecord
from automap.planner import levers as levers_module
from automap.planner.levers import find_with_levers
from automap.planner.rebuild import levered_workload
from automap.planner.records import build_plan
from automap.planner.remat import keep_nothing, keep_products, remat_records
from automap.planner.sharding import find
from automap.program.trace import trace_step
from automap.topology import get_topology


LAYERS, WIDTH, BATCH = 4, 16, 2048
TOPOLOGY = "v5e:2x4"


def _layer(x, p):
    normed = x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    return x + jax.nn.gelu(jnp.tanh(normed @ p["a"]) * (normed @ p["c"])) @ p["b"]


def _unrolled(params, x):
    x = x @ params["in"]
    for i in range(LAYERS):
        x = _layer(x, params["layers"][i])
    return (x**2).mean()


def _scanned(params, x):
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params["layers"])
    x = jax.lax.scan(lambda x, p: (_layer(x, p), None), x @ params["in"], stacked)[0]
    return (x**2).mean()


OPTIMIZER = optax.sgd(0.1, momentum=0.9)


def _step(loss):
    def step(params, state, x):
        value, grads = jax.value_and_grad(loss)(params, x)
        updates, state = OPTIMIZER.update(grads, state)
        return optax.apply_updates(params, updates), state, value

    return step


def _arguments(batch=BATCH):
    rng = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(rng.normal(0, 0.2, shape), jnp.float32)

    layers = [
        {"a": normal(WIDTH, 64), "c": normal(WIDTH, 64), "b": normal(64, WIDTH)}
        for _ in range(LAYERS)
    ]
    params = {"in": normal(WIDTH, WIDTH), "layers": layers}
    return params, OPTIMIZER.init(params), normal(batch, WIDTH)


GREEDY = read_options(strategy="greedy", budget=3.0)


def _limited(workload, share):
    """Options with a share of what the smallest plan needs, and that plan's outcome."""
    none = replace(GREEDY, levers=())
    topology = get_topology(TOPOLOGY)
    # With next to nothing allowed the best is the smallest.
    smallest = find(workload, topology, replace(none, memory_limit_bytes=1.0))
    limit = share * smallest.best.estimate.peak_bytes
    return replace(GREEDY, memory_limit_bytes=limit), topology


@pytest.mark.parametrize("loss", [pytest.param(_unrolled, marks=pytest.mark.slow), _scanned])
def test_a_step_fits_that_does_not_without(loss):
    workload = trace_step(_step(loss), _arguments(), platform="tpu")
    options, topology = _limited(workload, 0.7)
    outcome = find_with_levers(workload, topology, options)
    assert outcome.context.objective.fits(outcome.best.estimate)
    plan = build_plan(outcome)
    assert plan.levers is not None
    assert not plan.levers.without.fits
    assert plan.predicted.peak_bytes < options.memory_limit_bytes < plan.levers.without.peak_bytes
    # What was found smallest may not be what was found fastest.
    without = plan.levers.without
    assert without.fastest_seconds <= without.step_seconds
    assert without.fastest_bytes >= without.peak_bytes
    assert 0 < plan.levers.recompute_seconds < plan.predicted.compute_seconds
    # What people use, with every preset: no better by the evaluator.
    groups = block_groups(workload.reemitter.flat)
    without = WithoutLeversRecord(step_seconds=1.0, peak_bytes=1, fits=False)
    for policy in (keep_nothing, keep_products):
        levers = LeversRecord(
            remat=remat_records(groups, policy(groups)), recompute_seconds=0.0, without=without
        )
        presets = find(levered_workload(workload, levers, "tpu"), topology, options)
        for preset in presets.context.best_per_preset.values():
            if presets.context.objective.fits(preset.estimate):
                assert outcome.best.estimate.step_seconds <= preset.estimate.step_seconds


@pytest.mark.slow
def test_a_budget_that_is_used_up_says_where_the_time_went():
    workload = trace_step(_step(_scanned), _arguments(), platform="tpu")
    options, topology = _limited(workload, 0.7)
    # More than it takes on a machine that other programs use too.
    enough = find_with_levers(workload, topology, replace(options, budget_seconds=60.0))
    assert not any("was used up" in warning for warning in enough.warnings)
    short = find_with_levers(workload, topology, options, deadline=Deadline.after(0))
    (told,) = [warning for warning in short.warnings if "was used up" in warning]
    assert re.fullmatch(
        r"the budget of 3 s was used up: on the clock .+ for the step as it is, and .+ to plan "
        # What people use, though there was no time for either.
        r"2 choices of levers; a larger one may find more",
        told,
    )


@pytest.mark.slow
def test_no_choice_is_begun_when_time_is_up_after_microbatches(monkeypatch):
    workload = trace_step(_step(_scanned), _arguments(), platform="tpu")
    seconds, tried = [0.0], []

    def lowered(workload, levers, platform):
        tried.append((levers.microbatches, bool(levers.remat)))
        seconds[0] += 1000.0 * (levers.microbatches > 1)
        return levered_workload(workload, levers, platform)

    monkeypatch.setattr(levers_module, "levered_workload", lowered)
    # Nothing fits, so that memory decides to the end.
    options = replace(GREEDY, levers=("accumulate", "remat"), memory_limit_bytes=1.0)
    deadline = Deadline.after(100.0, Clock(lambda: seconds[0], lambda: seconds[0]))
    find_with_levers(workload, get_topology(TOPOLOGY), options, deadline=deadline)
    assert (1, True) in tried
    assert [choice for choice in tried if choice[0] > 1] == [(2, False)]


def test_nothing_changes_where_all_fits():
    workload = trace_step(_step(_unrolled), _arguments(), platform="tpu")
    topology = get_topology(TOPOLOGY)
    outcome = find_with_levers(workload, topology, GREEDY)
    assert outcome.levers is None
    alone = find(workload, topology, replace(GREEDY, levers=()))
    assert outcome.best.estimate == alone.best.estimate


@pytest.mark.slow
def test_the_compiler_and_the_simulator_take_such_a_plan(tmp_path):
    step, args = _step(_scanned), _arguments()
    plan = automap.plan(
        step, args, topology="cpu:8", strategy="greedy", budget=3, levers="remat", memory_limit=1
    )
    assert plan.levers is not None
    # What is run beside it on one device is the step without levers.
    verified = automap.verify(plan, step, args, cache_dir=tmp_path)
    assert verified.numerics is not None
    assert not verified.numerics.skipped
    assert verified.numerics.agrees
    assert automap.simulate(plan, step, args).step_seconds > 0


@pytest.mark.slow
def test_a_lever_that_is_named_is_tried_where_all_fits():
    workload = trace_step(_step(_scanned), _arguments(), platform="tpu")
    topology = get_topology(TOPOLOGY)
    alone = find(workload, topology, replace(GREEDY, levers=()))
    outcome = find_with_levers(workload, topology, replace(GREEDY, levers=("remat",)))
    assert outcome.best.estimate.step_seconds <= alone.best.estimate.step_seconds


@pytest.mark.parametrize("given", ["none,remat", "auto,remat"])
def test_auto_and_none_stand_alone(given):
    with pytest.raises(InputError, match="allowed: auto, none, or accumulate, offload, remat"):
        read_options(levers=given)


def test_without_levers_nothing_fits():
    workload = trace_step(_step(_unrolled), _arguments(), platform="tpu")
    options, _ = _limited(workload, 0.7)
    limit = options.memory_limit_bytes / 2**30
    args = _step(_unrolled), _arguments()
    with pytest.raises(InfeasiblePlanError):
        automap.plan(
            *args, topology=TOPOLOGY, strategy="greedy", budget=1, memory_limit=limit, levers="none"
        )
    with pytest.raises(InputError, match="unknown lever 'rematerialize'"):
        automap.plan(*args, topology=TOPOLOGY, levers="rematerialize")


@pytest.mark.parametrize("loss", [pytest.param(_unrolled, marks=pytest.mark.slow), _scanned])
def test_a_plan_with_levers_runs_as_the_step(loss):
    step, args = _step(loss), _arguments()
    workload = trace_step(step, args, platform="cpu")
    smallest = find(
        workload, get_topology("local"), replace(GREEDY, levers=(), memory_limit_bytes=1.0)
    )
    plan = automap.plan(
        step,
        args,
        topology="local",
        strategy="greedy",
        budget=3,
        memory_limit=0.8 * smallest.best.estimate.peak_bytes / 2**30,
    )
    assert plan.levers is not None
    again = automap.Plan.from_json(plan.to_json())
    planned, plain = again.jit(step), jax.jit(step)
    expected = args
    for _ in range(3):
        expected = (*plain(*expected)[:2], args[2])
    got = args
    for _ in range(3):
        got = (*planned(*got)[:2], args[2])
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6)
    # The plan of another step has other blocks.
    with pytest.raises(automap.PlanError):
        again.jit(_step(lambda params, x: (x @ params["in"]).mean()))(*args)


@pytest.mark.slow
def test_a_step_fits_in_microbatches():
    workload = trace_step(jax.jit(_step(_scanned), donate_argnums=(0, 1)), _arguments())
    options, topology = _limited(workload, 0.7)
    options = replace(options, levers=("accumulate",), budget_seconds=10.0)
    plan = build_plan(find_with_levers(workload, topology, options))
    assert plan.predicted.fits
    assert plan.levers is not None
    assert not plan.levers.remat
    assert plan.levers.microbatches in (2, 4, 8)
    assert plan.levers.recompute_seconds == 0
    assert plan.predicted.peak_bytes < options.memory_limit_bytes < plan.levers.without.peak_bytes


def _levers(microbatches, remat=()):
    without = WithoutLeversRecord(step_seconds=1.0, peak_bytes=1, fits=False)
    return LeversRecord(
        remat=remat, microbatches=microbatches, recompute_seconds=0.0, without=without
    )


@pytest.mark.parametrize(("loss", "times"), [(_unrolled, 1), (_scanned, 4)])
def test_gradients_are_reduced_behind_the_loop_and_the_batch_stays_where_it_is(loss, times):
    """In the closed form of data parallelism. XLA takes sums out of the loop over microbatches (the
    GPU's compiler: one all-reduce of 12,545 numbers), but not those that a loop over layers stacks.
    """
    params = _arguments()[0]
    step = jax.jit(_step(loss), donate_argnums=(0, 1))
    workload = trace_step(step, _arguments(256), platform="tpu")
    options = replace(GREEDY, levers=(), preset="data-parallel")
    plans = [
        build_plan(find(each, get_topology("v5e:2x2"), options))
        for each in (workload, levered_workload(workload, _levers(4), "tpu"))
    ]
    layers, first = (
        sum(leaf.size * 4 for leaf in jax.tree.leaves(params[k])) for k in ("layers", "in")
    )
    for plan, n in zip(plans, (1, times), strict=True):
        (batch,) = (leaf.spec for leaf in plan.inputs if leaf.role == "batch")
        assert batch[0]
        assert {record.kind for record in plan.predicted.collectives} == {"all-reduce"}
        # The loss, too.
        total = sum(record.bytes for record in plan.predicted.collectives)
        assert total == n * layers + first + 4
    assert plans[1].predicted.peak_bytes < plans[0].predicted.peak_bytes


def test_a_step_that_mixes_samples_is_refused_by_name_or_planned_without():
    def loss(params, x):
        x = x @ params["in"]
        return ((x - x.mean(0)) ** 2 / (x.var(0) + 1e-3) * params["layers"][0]["a"][:, 0]).mean()

    args = _step(loss), _arguments(64)
    given = {"topology": "v5e:2x2", "strategy": "greedy", "budget": 6}
    with pytest.raises(NotSeparableError, match=r"test_levers\.py:\d+.*mean over the whole batch"):
        automap.plan(*args, **given, levers="accumulate")
    with pytest.raises(InfeasiblePlanError, match="gradients are not accumulated over 2 micro"):
        automap.plan(*args, **given, memory_limit=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [_unrolled, _scanned])
def test_microbatches_run_as_the_step_alone_and_with_rematerialization(loss):
    step, args = jax.jit(_step(loss)), _arguments(64)
    workload = trace_step(step, args, platform="cpu")
    in_parts = levered_workload(workload, _levers(4), "cpu")
    groups = block_groups(in_parts.reemitter.flat)
    records = remat_records(groups, keep_nothing(groups))
    both = levered_workload(in_parts, _levers(4, records), "cpu")
    assert records
    expected = args
    for _ in range(3):
        expected = (*step(*expected)[:2], args[2])
    for levers, changed in ((_levers(4), in_parts), (_levers(4, records), both)):
        outcome = find(changed, get_topology("local"), replace(GREEDY, levers=()))
        plan = build_plan(replace(outcome, levers=levers))
        planned = automap.Plan.from_json(plan.to_json()).jit(step)
        got = args
        for _ in range(3):
            got = (*planned(*got)[:2], args[2])
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6)
