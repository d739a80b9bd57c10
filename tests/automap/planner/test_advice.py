"""What would make a step fit that does not: each lever only where it applies, and what follows it
fits.
"""

import dataclasses
import re

from click.testing import CliRunner
import jax
import jax.numpy as jnp
import pytest

from automap.cli import main
from automap.config import Options
from automap.deadline import Deadline
from automap.errors import InfeasiblePlanError
from automap.planner.sharding import find, fitting_plan
from automap.planner.spaces import plan_workload
from automap.program.trace import trace_step
from automap.topology import get_topology
from models.llama import llama_tiny
from models.mlp import mlp_tiny
from tests.steps import decoder


FOUR, EIGHT = get_topology("4xh100"), get_topology("8xh100")
# Much in the forward pass, as in a real language model.
LONG = {"batch": 16, "seq": 256}


def options(limit_bytes, **more):
    return Options(strategy="greedy", memory_limit_bytes=limit_bytes, levers=(), **more)


def least_bytes(step, topology=FOUR):
    """The smallest plan that a search finds which nothing fits."""
    return find(trace_step(*step), topology, options(1.0)).best.estimate.peak_bytes


def refused(step, limit_bytes, topology=FOUR, **more):
    """The levers that are named."""
    with pytest.raises(InfeasiblePlanError) as error:
        plan_workload(trace_step(*step), topology, options(limit_bytes, **more))
    return str(error.value)


def assert_fits(step, limit_bytes, topology=FOUR):
    plan = plan_workload(trace_step(*step), topology, options(limit_bytes))
    assert plan.predicted.peak_bytes <= limit_bytes


def number(pattern, text):
    match = re.search(pattern, text)
    assert match, text
    return int(match[1].replace(",", ""))


@pytest.fixture(scope="module")
def large():
    """A float32 train step that keeps much, what it needs at least, and what is said if it may have
    7/10 of that.
    """
    step = llama_tiny(**LONG)
    limit_bytes = 0.7 * least_bytes(step)
    return limit_bytes, refused(step, limit_bytes)


def test_a_train_step_in_float32_has_all_levers(large):
    limit_bytes, text = large
    assert re.search(r"of these [\d.]+ MiB results of the forward pass \+ ", text)
    assert "rematerialize each layer with jax.checkpoint" in text
    assert re.search(r"use bfloat16: \d+% of the operations", text)
    assert "pad " not in text
    assert "parameters and optimizer state alone" not in text
    assert "leave out" not in text
    assert "--memory-limit" in text


def test_a_plan_with_all_state_split_that_was_not_priced_is_named():
    """And no smaller batch, which such a plan does not need.

    Twelve numbers split over no eight devices, so it is on another mesh than the first that is
    priced.
    """
    workload = trace_step(*decoder(width=12, heads=4, hidden=12, batch=8))
    split = find(workload, EIGHT, options(1.0)).context.best_per_preset["zero-3"]
    limits = options(1.1 * split.estimate.peak_bytes)
    outcome = find(workload, EIGHT, limits, deadline=Deadline.after(0))
    with pytest.raises(InfeasiblePlanError) as error:
        fitting_plan(outcome, limits)
    assert "with all state split over the devices about" in str(error.value)
    assert "give a larger --budget" in str(error.value)
    assert "a batch of" not in str(error.value)
    # So it is.
    assert plan_workload(workload, EIGHT, limits).predicted.fits


@pytest.mark.slow
def test_levers_that_were_ruled_out_are_named(large):
    limit_bytes, text = large
    assert "--levers none rules out remat and accumulate, which may make it fit" in text
    step = trace_step(*llama_tiny(**LONG))
    given = Options(strategy="greedy", memory_limit_bytes=limit_bytes)
    with pytest.raises(InfeasiblePlanError) as error:
        plan_workload(step, FOUR, dataclasses.replace(given, levers=("offload",)))
    assert "with --levers offload,remat,accumulate" in str(error.value)
    # So it does.
    followed = dataclasses.replace(given, levers=("offload", "remat", "accumulate"))
    assert plan_workload(step, FOUR, followed).predicted.fits


def test_levers_that_would_not_help_are_not():
    """Nor any where none is ruled out."""
    workload = trace_step(*mlp_tiny(batch=16))
    for levers in ((), ("auto",)):
        given = Options(strategy="greedy", memory_limit_bytes=1e3, levers=levers)
        with pytest.raises(InfeasiblePlanError) as error:
            plan_workload(workload, FOUR, given)
        assert "remat and accumulate" not in str(error.value)
        assert ("rules out offload" in str(error.value)) == (not levers)


def test_a_step_that_follows_a_lever_fits(large):
    limit_bytes, text = large
    assert_fits(llama_tiny(**LONG, remat="layer"), limit_bytes)
    assert_fits(llama_tiny(**LONG, dtype="bfloat16"), limit_bytes)
    batch = number(r"a batch of ([\d,]+) in place of 16 would need", text)
    assert 8 <= batch < 16
    assert_fits(llama_tiny(seq=LONG["seq"], batch=batch), limit_bytes)
    devices = number(r"([\d,]+) such devices would need", text)
    assert devices == 8
    assert_fits(llama_tiny(**LONG), limit_bytes, EIGHT)


def test_a_step_is_not_told_what_it_does_already():
    step = llama_tiny(**LONG, dtype="bfloat16", remat="layer")
    text = refused(step, 0.7 * least_bytes(step))
    assert "bfloat16" not in text
    assert "jax.checkpoint" not in text
    assert "such devices would need" in text


def test_inference_has_nothing_to_rematerialize():
    array = jax.ShapeDtypeStruct((512, 512), "bfloat16")

    def predict(params, x):
        for w in params:
            x = jax.nn.relu(x @ w)
        return x

    step = predict, ([array] * 2, jax.ShapeDtypeStruct((4096, 512), "bfloat16"))
    limit_bytes = 0.6 * least_bytes(step)
    text = refused(step, limit_bytes)
    assert "jax.checkpoint" not in text
    assert "optimizer" not in text
    batch = number(r"a batch of ([\d,]+) in place of 4,096", text)
    smaller = predict, ([array] * 2, jax.ShapeDtypeStruct((batch, 512), "bfloat16"))
    assert_fits(smaller, limit_bytes)


@pytest.mark.slow
def test_state_that_is_too_large_on_all_devices_says_how_many_it_needs():
    step = mlp_tiny(batch=16)
    state = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(step[1][0]))
    text = refused(step, state / 20)
    least = number(r"they need at least ([\d,]+) devices", text)
    assert 18 <= least <= 21
    assert "a batch of" not in text
    # What is named with a number is enough.
    devices = number(r"([\d,]+) such devices would need", text)
    assert devices >= least
    assert_fits(step, state / 20, get_topology(f"{devices // 4}x4xh100"))


def test_a_table_that_no_axis_divides_is_to_be_padded():
    def make_step(rows):
        def loss(table, tokens):
            return jnp.mean(jnp.take(table, tokens, axis=0) ** 2)

        def step(table, tokens):
            value, grads = jax.value_and_grad(loss)(table, tokens)
            return table - grads, value

        table = jax.ShapeDtypeStruct((rows, 15), "float32")
        return step, (table, jax.ShapeDtypeStruct((8, 4), "int32"))

    odd = make_step(50_257)
    limit_bytes = 0.5 * least_bytes(odd)
    text = refused(odd, limit_bytes)
    assert "pad [0] [50257,15] from 50,257 to 50,260, a multiple of 4 devices" in text
    assert_fits(make_step(50_260), limit_bytes)
    assert "pad " not in refused(make_step(50_260), 0.5 * least_bytes(make_step(50_260)))


@pytest.mark.slow
def test_what_was_asked_for_is_named_where_it_is_in_the_way():
    step = decoder()
    least = find(trace_step(*step), FOUR, options(1.0)).context.best_per_preset
    limit_bytes = least["zero-3"].estimate.peak_bytes
    text = refused(step, limit_bytes, preset="data-parallel")
    assert re.search(r"presets that fit: .*zero-3 \(", text)
    assert "leave out --preset" in text
    pinned = refused(step, limit_bytes / 4, pins=("[1]['tokens']=null,null",))
    assert "leave out --pin" in pinned


@pytest.mark.slow
def test_pipelines_and_comparisons_say_the_same(large):
    limit_bytes, text = large
    levers = text[text.index("rematerialize") : text.index("\n  --memory-limit")]
    given = [
        "models.llama:llama_tiny",
        "--arg",
        "batch=16",
        "--arg",
        "seq=256",
        "--topology",
        "4xh100",
    ]
    given += ["--strategy", "greedy", "--memory-limit", str(limit_bytes / 2**30)]
    shown = CliRunner().invoke(main, ["compare", *given])
    assert shown.exit_code == 0
    assert levers in shown.output
    for space in ("pipeline", "hybrid"):
        with pytest.raises(InfeasiblePlanError) as error:
            plan_workload(
                trace_step(*llama_tiny(**LONG)),
                FOUR,
                Options(
                    space=space,
                    memory_limit_bytes=limit_bytes / 2,
                    stages=1,
                    microbatches=1,
                    levers=(),
                ),
            )
        assert "one program for all devices needs" in str(error.value)
        assert "rematerialize each layer with jax.checkpoint" in str(error.value)


def test_a_pipeline_that_fits_nowhere_is_told_of_one_program_that_does():
    step = mlp_tiny(batch=16)
    limit_bytes = 1.2 * least_bytes(step)
    with pytest.raises(InfeasiblePlanError, match=r"on each: plan with --space sharding"):
        plan_workload(
            trace_step(*step),
            FOUR,
            Options(space="pipeline", memory_limit_bytes=limit_bytes, stages=1),
        )
