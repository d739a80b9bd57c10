"""Utilization, rates, where the seconds go and what would help, held against closed forms, against
the same step traced with another batch, and against what another plan is predicted to take.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from automap.config import Options
from automap.cost.evaluate import Evaluator
from automap.cost.tables import build_tables, with_batch
from automap.planner.records import build_plan
from automap.planner.sharding import find
from automap.program.trace import trace_step
from automap.space.batches import batch_tokens, growing_classes
from automap.topology import get_topology
from models.llama import llama_tiny
from models.mlp import mlp_tiny


BATCH, WIDTH = 64, 128


def step(w, batch):
    """One product forward, two of the same size backward but for the batch's own gradient."""
    gradient = jax.grad(lambda w: jnp.sum((batch @ w) ** 2))(w)
    return w - gradient


ARGS = (
    jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32),
    jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32),
)


# Enough work that launches are little of it.
LARGE = (
    jax.ShapeDtypeStruct((8192, 8192), jnp.float32),
    jax.ShapeDtypeStruct((8192, 8192), jnp.float32),
)
LLAMA = llama_tiny(layers="scanned")


def planned(step, args, topology="8xh100", **options):
    """The outcome of a search, or of a preset, which takes no time to find."""
    given = Options(strategy="greedy", **options)
    return find(trace_step(step, args), get_topology(topology), given)


def rates(outcome):
    return build_plan(outcome).predicted.rates


def test_utilization_is_products_over_peak():
    outcome = planned(step, ARGS)
    made, seconds = rates(outcome), outcome.best.estimate.step_seconds
    # Forward, and the gradient of the weights: the batch needs none.
    flops = 2 * 2 * BATCH * WIDTH * WIDTH
    peak = get_topology("8xh100").device.peak_flops_per_s("f32")
    assert made.model_flops == flops
    assert made.mfu == pytest.approx(flops / (8 * peak * seconds))
    assert (made.samples, made.tokens, made.token_input) == (BATCH, 0, None)
    assert made.samples_per_second == pytest.approx(BATCH / seconds)


@pytest.mark.parametrize("topology", ["8xh100", "v5e:2x4"])
@pytest.mark.parametrize("target", [mlp_tiny(), llama_tiny(layers="scanned", remat="layer")])
def test_losses_and_products_at_the_peak_are_the_step(target, topology):
    outcome = planned(*target, topology, preset="zero-3")
    made, seconds = rates(outcome), outcome.best.estimate.step_seconds
    assert sum(made.lost.by_cause.values()) + made.mfu * seconds == pytest.approx(seconds)
    assert made.lost.collectives == outcome.best.estimate.collective_seconds


def test_what_is_computed_again_is_lost_and_is_no_model_work():
    plain, again = (
        rates(planned(*llama_tiny(layers="scanned", remat=remat), preset="zero-3"))
        for remat in ("none", "layer")
    )
    assert plain.model_flops == again.model_flops
    assert plain.lost.rematerialization == 0.0
    assert again.lost.rematerialization > 0.0


def test_tiles_are_lost_where_a_compiler_has_them():
    gpu, tpu = (
        rates(planned(*LLAMA, topology, preset="zero-3")) for topology in ("8xh100", "v5e:2x4")
    )
    assert gpu.lost.padding == 0.0
    assert tpu.lost.padding > 0.0


def test_launches_are_all_that_a_step_of_little_loses():
    outcome = planned(step, ARGS)
    kernels = outcome.context.evaluator.tables.kernels
    device = outcome.topology.device
    most = float(kernels.count.sum()) * device.launch_seconds
    assert 0.5 * most < rates(outcome).lost.launches <= most


def looked_up(tokens_shape, look_up):
    """What counts as tokens of a step whose batch is integers of a shape."""

    def step(table, tokens):
        return jax.grad(lambda table: jnp.mean(look_up(table, tokens) ** 2))(table)

    args = (
        jax.ShapeDtypeStruct((256, 32), jnp.float32),
        jax.ShapeDtypeStruct(tokens_shape, jnp.int32),
    )
    return batch_tokens(trace_step(step, args).problem)


def test_tokens_are_the_positions_of_a_sequence():
    def mixed(table, tokens):
        x = table[tokens]
        return jnp.einsum("bsd,btd->bst", x, x) @ x

    assert looked_up((8, 16), mixed).count == 8 * 16
    # One token more than the step works on, as where targets are the tokens moved on by one.
    assert looked_up((8, 17), lambda table, tokens: mixed(table, tokens[:, :-1])).count == 8 * 16


def test_indices_that_are_looked_up_apart_are_no_sequence():
    columns = lambda table, t: sum(table[t[:, i]] @ table.T for i in range(3))  # noqa: E731
    assert looked_up((8, 3), columns) is None


@pytest.mark.parametrize(("topology", "most_error"), [("8xh100", 0.01), ("v5e:2x4", 0.03)])
def test_another_batch_costs_what_it_does_when_it_is_traced(topology, most_error):
    machine = get_topology(topology)
    small, large = (
        planned(*llama_tiny(batch=batch, layers="scanned"), topology, preset="data-parallel")
        for batch in (32, 64)
    )
    context, point = small.context, small.best.point
    evaluator = context.evaluator
    tables = with_batch(
        evaluator.tables, evaluator.n_classes, growing_classes(context.space.problem), 2.0
    )
    split = context.space.split_classes(point)
    scaled = replace(evaluator, tables=tables).evaluate(split)
    # The same program but for the batch, so its classes have the same numbers.
    problem = large.workload.problem
    traced = Evaluator(build_tables(problem, machine.platform), problem.n_classes, machine)
    exact = traced.evaluate(split)
    assert scaled.step_seconds == pytest.approx(exact.step_seconds, rel=most_error)
    assert scaled.peak_bytes == pytest.approx(exact.peak_bytes, rel=most_error)
    # It is another number at all.
    assert scaled.peak_bytes > 1.2 * small.best.estimate.peak_bytes


def changes(outcome):
    return {row.kind: row for row in rates(outcome).changes}


def test_a_larger_batch_helps_where_launches_are_most():
    row = changes(planned(step, ARGS))["batch"]
    assert "128 in place of 64" in row.what
    assert 1.5 < row.speedup <= 2.0


def test_another_machine_is_priced_with_the_same_plan():
    outcome = planned(step, LARGE, "8xa100")
    row = changes(outcome)["machine"]
    evaluator = outcome.context.evaluator
    other = replace(evaluator, topology=get_topology(row.what.split()[0]), _costs={})
    split = outcome.context.space.split_classes(outcome.best.point)
    assert other.evaluate(split).step_seconds == row.step_seconds
    assert row.speedup > 1.0


def test_a_slower_machine_is_no_help_where_its_products_were_not_measured():
    # Hardly more than launches: products are measured on an H100 and not on an A100.
    outcome = planned(step, ARGS, "8xh100", preset="data-parallel")
    assert "machine" not in changes(outcome)


def test_memory_would_help_a_plan_that_it_slows_down():
    free = planned(step, LARGE)
    tight = planned(step, LARGE, memory_limit_bytes=free.best.estimate.peak_bytes * 0.9)
    assert tight.best.estimate.step_seconds > 1.01 * free.best.estimate.step_seconds
    row = changes(tight)["memory"]
    assert row.step_seconds == free.best.estimate.step_seconds
    assert row.peak_bytes > tight.context.objective.memory_limit_bytes


def test_a_slow_preset_is_told_the_fastest():
    # Of 16 bits, so that the type of products is no change of more help.
    args = tuple(jax.ShapeDtypeStruct(each.shape, jnp.bfloat16) for each in LARGE)
    outcome = planned(step, args, preset="zero-3")
    row = changes(outcome)["preset"]
    fastest = min(
        outcome.context.best_per_preset.values(), key=lambda each: each.estimate.step_seconds
    )
    assert row.step_seconds == fastest.estimate.step_seconds
    assert row.speedup > 1.0


def test_narrow_products_help_where_they_are_faster():
    row = changes(planned(step, LARGE))["type"]
    assert row.speedup > 1.5
