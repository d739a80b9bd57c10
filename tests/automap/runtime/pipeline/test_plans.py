"""Pipeline plans run from the outside: decorator, plan files, another process, checkpoints,
refusals.
"""

import json
import subprocess
import sys

from click.testing import CliRunner
import jax
from jax import numpy as jnp
import numpy as np
import pytest

import automap
from automap import Plan
from automap.cli import main
from automap.errors import InputError, NotSeparableError, PlanError
from automap.pipeline.schedules import Interleaved
from automap.runtime.pipeline.runner import simulated_order
from models.llama_serving import serving_tiny
from tests.automap.pipeline.problems import assert_simulated_as_predicted, only
from tests.automap.runtime.pipeline.running import assert_same, devices_of, mlp


CLOSE = {"rtol": 1e-5, "atol": 2e-6}


@pytest.fixture(scope="module")
def trained():
    """(planned step, its plan, the single-device step, state at birth, batch)."""
    step, (state, batch) = mlp()
    run = automap.parallelize(
        step, space="pipeline", stages=2, microbatches=2, strategy="even", donate_argnums=0
    )
    plan = run.plan_for(state, batch)
    born = run.init(
        lambda key: jax.tree.map(lambda x: x + key[0].astype(x.dtype), state), jnp.zeros(2)
    )
    return run, plan, step, born, batch


def test_the_decorator_trains_on_stages(trained):
    run, plan, step, born, batch = trained
    assert plan is run.plan
    assert len(plan.pipeline.stages) == 2
    stages = [set(stage.devices) for stage in plan.pipeline.stages]
    assert all(devices in stages for devices in devices_of(born))
    mine = theirs = jax.tree.map(np.asarray, born)
    for _ in range(3):
        mine, results = run(mine, batch)
        theirs, wanted = jax.jit(step)(theirs, batch)
        assert_same((mine, results), (theirs, wanted), **CLOSE)
    # State is born where the steps leave it.
    assert devices_of(mine) == devices_of(born)
    assert jax.tree.structure(mine) == jax.tree.structure(born)


def test_requests_are_decoded_in_stages_with_their_caches():
    step, shapes = serving_tiny()
    keys = iter(jax.random.split(jax.random.key(0), 64))
    weights, caches = jax.tree.map(
        lambda leaf: jax.random.normal(next(keys), leaf.shape) / 8, shapes[:2]
    )
    staged = {"space": "pipeline", "stages": 2, "microbatches": 2, "strategy": "even"}
    run = automap.parallelize(step.__wrapped__, donate_argnums=1, **staged)
    mine, theirs = jax.tree.map(np.asarray, caches), caches
    for position in range(3):
        tokens = jnp.arange(8)[:, None] + 3 * position
        batch = {"tokens": tokens, "position": jnp.int32(position)}
        logits, mine = run(weights, mine, batch)
        wanted, theirs = jax.jit(step.__wrapped__)(weights, theirs, batch)
        assert_same((logits, mine), (wanted, theirs), **CLOSE)
    assert len(run.plan.pipeline.stages) == 2
    # Each stage has the caches of its own layers.
    first, last = (set(stage.devices) for stage in run.plan.pipeline.stages)
    assert devices_of(mine) == [first, first, last, last]


def test_a_checkpoint_is_saved_and_restored(trained, tmp_path):
    checkpoint = pytest.importorskip("orbax.checkpoint")
    run, _, _, born, batch = trained
    state, _ = run(jax.tree.map(np.asarray, born), batch)
    with checkpoint.StandardCheckpointer() as saver:
        saver.save(tmp_path / "state", state)
        saver.wait_until_finished()
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
        )
        restored = saver.restore(tmp_path / "state", shapes)
    assert_same(restored, state, rtol=0, atol=0)
    assert devices_of(restored) == devices_of(state)
    assert_same(run(restored, batch), run(state, batch), rtol=0, atol=0)


SCRIPT = """
import sys
import jax, numpy as np
from automap import Plan
from models.llama_serving import serving_tiny
from tests.automap.pipeline.problems import assert_simulated_as_predicted, only
from tests.automap.runtime.pipeline.running import assert_same, mlp
step, args = mlp()
run = Plan.load(sys.argv[1]).jit(jax.jit(step, donate_argnums=0))
assert_same(run(*args), jax.jit(step)(*mlp()[1]), rtol=1e-5, atol=2e-6)
print(len(run.jobs), run.bubble_fraction)
"""


def test_the_plan_file_runs_in_another_process(trained, tmp_path):
    _, plan, *_ = trained
    plan.save(tmp_path / "plan.json")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path / "plan.json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    jobs, bubble = done.stdout.split()
    # Of each of two stages and microbatches a forward and a backward pass, and one of weights where
    # the schedule has it apart.
    passes = {"gpipe": 2, "1f1b": 2, "zero-bubble": 3}[plan.pipeline.schedule]
    assert int(jobs) == 2 * 2 * passes
    assert 0 <= float(bubble) < 1


@pytest.mark.slow
def test_an_interleaved_plan_is_decorated_kept_and_run_from_its_file(monkeypatch, tmp_path):
    only((Interleaved(2),), monkeypatch)
    step, (state, batch) = mlp(depth=8, batch=32)
    run = automap.parallelize(
        step, space="pipeline", stages=4, microbatches=4, strategy="local-search"
    )
    wanted = jax.jit(step)(state, batch)
    assert_same(run(state, batch), wanted, **CLOSE)
    run.plan.save(tmp_path / "plan.json")
    plan = Plan.load(tmp_path / "plan.json")
    assert plan == run.plan
    assert (len(plan.pipeline.groups), plan.pipeline.stages_per_group) == (2, 2)
    assert "4 stages, 2 on each of 2 groups of devices" in plan.explain()
    assert_simulated_as_predicted(plan)
    again = plan.jit(step)
    assert_same(again(state, batch), wanted, **CLOSE)
    assert list(again.jobs) == list(simulated_order(plan.pipeline))


def test_another_step_and_other_devices_are_refused(trained):
    _, plan, step, born, batch = trained
    # A state that lies on the stages is traced as any other.
    plan.jit(step).prepare(born, batch)
    with pytest.raises(PlanError, match="computes something else"):
        plan.jit(lambda s, b: (s, {"loss": b["x"].sum(), "norm": b["y"].sum()}))(born, batch)
    with pytest.raises(PlanError, match="8 devices.*4 are given"):
        plan.jit(step, devices=jax.devices()[:4])
    with pytest.raises(PlanError, match="cannot be lowered as one"):
        plan.jit(step).lower(born, batch)


def normalized(state, batch):
    """Batch norm: every sample depends on all others."""

    def loss(w):
        y = batch @ w
        y = (y - y.mean(0)) / (y.std(0) + 1e-3)
        return (jnp.tanh(y) @ w).mean() ** 2

    return state - 0.1 * jax.grad(loss)(state)


def test_batch_norm_is_refused_when_it_is_planned():
    args = (jax.ShapeDtypeStruct((8, 8), "float32"), jax.ShapeDtypeStruct((16, 8), "float32"))
    with pytest.raises(
        NotSeparableError, match=r"(sub|mul|div).* at .*test_plans.py:.*mean over the"
    ):
        automap.plan(
            normalized,
            args,
            topology="2x2xv100",
            space="pipeline",
            stages=2,
            strategy="even",
            microbatches=2,
        )


def target():
    """For the command."""
    return normalized, (jnp.zeros((8, 8)), jnp.zeros((16, 8)))


def test_the_command_refuses_it_too():
    run = CliRunner().invoke(
        main,
        [
            "plan",
            f"{__name__}:target",
            "--topology",
            "2x2xv100",
            "--space",
            "pipeline",
            "--stages",
            "2",
            "--strategy",
            "even",
            "--microbatches",
            "2",
        ],
    )
    assert run.exit_code == 2
    assert "cannot be run in microbatches" in run.output
    assert "Traceback" not in run.output


def test_one_microbatch_on_one_device_is_refused(trained, tmp_path):
    _, plan, step, born, batch = trained
    data = plan.to_json()
    data["pipeline"]["microbatches"] = 1
    data["pipeline"]["stages"][0]["devices"] = [0]
    data["pipeline"]["stages"][1]["devices"] = list(range(1, 8))
    (tmp_path / "plan.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match="microbatches=1.*at least 2"):
        Plan.load(tmp_path / "plan.json").jit(step)(born, batch)
