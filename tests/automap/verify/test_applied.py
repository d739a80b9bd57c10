"""`automap apply` and `automap plan --apply` as a user runs them, and what they find."""

from functools import partial
import json
import os
from pathlib import Path
import subprocess
import sys

from click.testing import CliRunner
import jax
from jax import numpy as jnp
from jax.experimental import io_callback
from jax.sharding import PartitionSpec
import numpy as np
import pytest

from automap import plan
from automap.cli import main
from automap.errors import InputError, PlanError
from automap.runtime.run import step_under_plan
from automap.step.step import traced_call
from automap.verify import applied
from automap.verify.applied import STEPS, apply_plan, chosen_devices


ROOT = Path(__file__).resolve().parents[3]
MLP = ("tests.steps:mlp", "--arg", "batch=8", "--budget", "2")
TARGET = ("--target", *MLP[:3])
SPACES = (
    ("--space", "sharding", "--topology", "2x4xv100"),
    ("--space", "pipeline", "--stages", "2", "--topology", "4xv100"),
    ("--space", "placement", "--topology", "haswell-4xk80"),
    ("--space", "streams", "--topology", "1xv100"),
)


def _run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def _counted(scale):
    """A step that counts its calls and adds what a batch sums to; `scale` stands for a wrong
    program.
    """

    def step(state, batch):
        return {"calls": state["calls"] + 1, "sum": state["sum"] + scale * batch.sum()}, batch * 2

    state = {"calls": jax.ShapeDtypeStruct((), jnp.int32), "sum": jnp.float32(0)}
    return jax.jit(step, donate_argnums=0), (state, np.arange(8, dtype=np.float32))


def _applied(record, step, args, **options):
    call = traced_call(step, args, name="counted", mesh=record.mesh.axes)
    given = {"compares": True, "limit_bytes": 2**30, **options}
    return apply_plan(record, call, jax.devices()[: record.mesh.device_count], **given)


def _run_instead(monkeypatch, other):
    """What runs is another function than the planned step; plans are checked as they are."""

    class Running:
        def __init__(self, *args, **options):
            self.prepare = step_under_plan(*args, **options).prepare

        def __call__(self, *args, **kwargs):
            return other(*args, **kwargs)

    monkeypatch.setattr(applied, "step_under_plan", Running)


@pytest.mark.parametrize("space", SPACES, ids=lambda space: space[1])
def test_plans_of_every_space_are_planned_and_run(space):
    done = _run("plan", *MLP, *space, "--apply")
    assert done.exit_code == 0, done.output
    assert f"{STEPS} steps as planned on" in done.stdout
    assert "outputs agree with the single-device step" in done.stdout
    assert "these are other devices, which say nothing of that" in done.stdout


def test_a_saved_plan_is_run_in_a_process_that_has_no_devices_yet(tmp_path):
    path = tmp_path / "plan.json"
    assert _run("plan", *MLP, *SPACES[0], "-o", path).exit_code == 0
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-m", "automap", "apply", path, *TARGET, "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["devices"] == 8
    assert answer["kind"] == "cpu"
    assert all(leaf["agrees"] for leaf in answer["numerics"]["leaves"])


def test_with_json_standard_output_is_the_plan_alone():
    done = _run("plan", *MLP, *SPACES[0], "--apply", "--json")
    assert json.loads(done.stdout)["format"] == "automap-plan"
    assert "steps as planned on" in done.stderr


def test_a_plan_is_run_with_the_limits_of_apply():
    alone = _run("plan", *MLP, *SPACES[0], "--apply", "--no-numerics")
    assert alone.exit_code == 0, alone.output
    assert f"{STEPS} steps as planned on" in alone.stdout
    assert "single-device" not in alone.stdout
    small = _run("plan", *MLP, *SPACES[0], "--apply", "--numerics-limit", "1e-6")
    assert small.exit_code == 2
    assert "1.049 KiB are allowed; give a larger --numerics-limit" in small.stderr
    # Before the search, not behind it.
    for words, said in (
        (("--apply", "--numerics-limit", "nan"), "must be a positive number of GiB"),
        (("--no-numerics",), "--no-numerics is about what --apply runs"),
    ):
        refused = _run("plan", *MLP, *SPACES[0], *words)
        assert refused.exit_code == 2
        assert said in refused.stderr
        assert not refused.stdout


def test_every_step_goes_on_from_the_state_of_the_one_before(monkeypatch):
    step, args = _counted(1.0)
    record = plan(step, args, topology="cpu:4", budget=2)
    seen = []

    def keep(a, b, c, before):
        seen.append((a, b))
        return errors(a, b, c, before)

    errors = applied.leaf_errors
    monkeypatch.setattr(applied, "leaf_errors", keep)
    made = _applied(record, step, args)
    calls, sums = seen[0], seen[1]
    # The kind of abstract integers is 0 or 1; the sum is given.
    assert calls[0] == calls[1]
    assert calls[0] in (STEPS, STEPS + 1)
    np.testing.assert_allclose(sums, STEPS * 28.0)
    assert made.numerics is not None
    assert made.numerics.agrees


def test_a_program_that_computes_something_else_is_told(monkeypatch):
    step, args = _counted(1.0)
    record = plan(step, args, topology="cpu:4", budget=2)
    wrong = _counted(1.001)[0]
    _run_instead(monkeypatch, wrong)
    made = _applied(record, step, args)
    assert made.numerics is not None
    assert [leaf.path for leaf in made.numerics.leaves if not leaf.agrees] == ["[0]['sum']"]
    monkeypatch.setattr("automap.cli.run.apply.apply_plan", lambda *_, **__: made)
    done = _run("plan", *MLP, *SPACES[0], "--apply")
    assert done.exit_code == 3
    assert "[0]['sum']: DIFFERS" in done.stdout


def test_without_a_comparison_one_device_runs_nothing():
    step, args = _counted(1.0)
    record = plan(step, args, topology="cpu:4", budget=2)
    assert _applied(record, step, args, compares=False).numerics is None


def test_numbers_of_python_and_random_keys_are_arguments():
    @jax.jit
    def step(rate, key):
        return rate * jax.random.normal(key, (8, 4))

    args = (0.5, jax.eval_shape(lambda: jax.random.key(0)))
    record = plan(step, args, topology="cpu:4", budget=2)
    made = _applied(record, step, args)
    assert made.numerics is not None
    assert made.numerics.agrees


def test_state_that_begins_at_infinity_is_compared_by_what_it_becomes(monkeypatch):
    """As the least loss so far."""

    def step(scale, state, batch):
        least = jnp.minimum(state["least"], scale * batch.sum())
        return {"least": least, "sum": state["sum"] + least}

    args = ({"least": jnp.float32(jnp.inf), "sum": jnp.float32(0)}, np.ones(8, np.float32))
    right, wrong = (jax.jit(partial(step, scale)) for scale in (1.0, 1.001))
    record = plan(right, args, topology="cpu:4", budget=2)
    made = _applied(record, right, args)
    assert made.numerics is not None
    assert made.numerics.agrees
    assert all(np.isfinite(leaf.allowed) for leaf in made.numerics.leaves)
    _run_instead(monkeypatch, wrong)
    made = _applied(record, right, args)
    assert made.numerics is not None
    assert {leaf.path for leaf in made.numerics.leaves if not leaf.agrees} == {
        "['least']",
        "['sum']",
    }


def test_the_largest_numbers_of_a_type_are_not_rounded_to_infinity():
    """As masks have them: half of them would be none in what rounding alone moves."""
    largest = np.finfo(np.float32).max
    mask = np.where(np.tri(8, dtype=bool), np.float32(1), -largest)
    moved = applied.rounded_otherwise(mask, 2**-9, np.random.default_rng(0))
    assert np.isfinite(moved).all()
    assert (moved != mask)[mask > 0].all()
    unbounded = np.array([np.inf, -np.inf, np.nan], np.float32)
    again = applied.rounded_otherwise(unbounded, 2**-9, np.random.default_rng(0))
    np.testing.assert_array_equal(again, unbounded)


def test_a_shard_map_without_a_mesh_is_run_on_that_of_the_plan():
    def step(batch):
        spec = PartitionSpec("data")
        total = jax.shard_map(
            lambda part: jax.lax.psum(part.sum(), "data"), in_specs=spec, out_specs=PartitionSpec()
        )
        return total(batch)

    args = (np.arange(8, dtype=np.float32),)
    record = plan(jax.jit(step), args, topology="cpu:4", mesh={"data": 4}, budget=2)
    made = _applied(record, jax.jit(step), args)
    assert made.numerics is not None
    assert made.numerics.agrees


def test_what_cannot_be_run_is_refused(tmp_path, monkeypatch):
    step, args = _counted(1.0)
    record = plan(step, args, topology="cpu:4", budget=2)
    with pytest.raises(InputError, match="give a larger --numerics-limit, or --no-numerics"):
        _applied(record, step, args, limit_bytes=1.0)
    other = jax.jit(lambda state, batch: (state, batch * 3))
    # That the plan is of another step is said first, and before anything runs.
    with pytest.raises(PlanError), monkeypatch.context() as nothing_runs:
        nothing_runs.setattr(applied, "timed_steps", None)
        _applied(record, other, args, limit_bytes=1.0)
    with pytest.raises(PlanError):
        _applied(record, other, args)
    with pytest.raises(InputError, match="xla_force_host_platform_device_count=4096"):
        chosen_devices(4096)

    path = tmp_path / "plan.json"
    record.save(path)
    assert "applying a plan runs the step" in _run("apply", path).stderr
    nothing = _run("apply", path, *TARGET, "--numerics-limit", "0")
    assert nothing.exit_code == 2
    assert "must be a positive number of GiB" in nothing.stderr
    program = tmp_path / "step.hlo"
    program.write_text("HloModule m\nENTRY e { ROOT a = f32[8] parameter(0) }\n")
    refused = _run("plan", program, "--topology", "cpu:4", "--apply")
    assert refused.exit_code == 2
    assert "is a program without a step" in refused.stderr


def test_a_key_that_is_donated_by_itself_is_there_for_the_next_step():
    def step(w, key, x):
        key, own = jax.random.split(key)
        return w - x.mean() + jax.random.normal(own, w.shape), key

    step, args = jax.jit(step, donate_argnums=(0, 1)), (jnp.ones(8), jax.random.key(0), jnp.ones(8))
    record = plan(step, args, topology="cpu:4", budget=2)
    made = _applied(record, step, args)
    assert made.numerics is not None
    assert made.numerics.agrees


@pytest.mark.parametrize("compares", [True, False])
@pytest.mark.parametrize("call", [jax.pure_callback, io_callback])
def test_a_callback_that_raises_is_an_error_where_several_devices_would_wait(call, compares):
    def fail(x):
        raise ValueError("nothing to read")

    def body(w, x):
        read = call(fail, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        return w - (read @ w).sum(0), (read @ w).sum()

    def step(w, x):
        return jax.lax.scan(lambda w, _: body(w, x), w, length=2)

    args = np.ones((16, 16), np.float32), np.ones((64, 16), np.float32)
    record = plan(step, args, topology="cpu:8", mesh={"data": 8}, preset="data-parallel")
    with pytest.raises(
        InputError, match="a callback of the step raised: ValueError: nothing to read"
    ):
        _applied(record, step, args, compares=compares)


def test_what_the_devices_refuse_is_an_error_and_no_traceback(monkeypatch):
    step, args = _counted(1.0)
    record = plan(step, args, topology="cpu:4", budget=2)

    def refuse(*_, **__):
        raise NotImplementedError("a kernel of GPUs")

    _run_instead(monkeypatch, refuse)
    with pytest.raises(InputError, match="cannot be run on these devices: .* a kernel of GPUs"):
        _applied(record, step, args)
