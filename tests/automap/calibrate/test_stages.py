"""Measured stages, with a stopwatch that says the bytes of a loop's carry."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import automap
from automap.calibrate.session import Unmeasurable
from automap.calibrate.stages import StageSession, stage_loop
from automap.calibrate.timing import Timing
from automap.cost.profile import KernelProfile
from automap.program import trace_step
from automap.topology import get_topology


PROFILE = KernelProfile(device="cpu-1", device_kind="cpu", jax_version=jax.__version__)


class Stopwatch:
    """Seconds are nanobytes; after `stop_after` loops comes Ctrl-C."""

    def __init__(self, stop_after=None):
        self.stop_after, self.count = stop_after, 0

    def time_loop(self, program, expected_seconds):
        if self.count == self.stop_after:
            raise KeyboardInterrupt
        self.count += 1
        return Timing(seconds=program.n_bytes * 1e-9, spread=0.0)


def branches(weights, x):
    one, two = (jnp.tanh(x @ w) for w in weights)
    return one @ weights[0] + two


ARGS = ([jnp.ones((64, 64)), jnp.ones((64, 64))], jnp.ones((8, 64)))


def session(stopwatch, profile=PROFILE, clock=lambda: 0.0):
    saved = []
    made = StageSession(
        stopwatch=stopwatch,
        profile=profile,
        on_progress=lambda number, item: None,
        save=saved.append,
        clock=clock,
        deadline_seconds=10.0,
        on_streams=False,
    )
    made.run(trace_step(branches, ARGS, platform="cpu"), get_topology("cpu:1"))
    assert saved[-1] == made.profile
    return made


def test_what_was_measured_is_in_the_profile_and_in_the_plan(tmp_path):
    first = session(Stopwatch())
    assert first.measured == len(first.profile.stages) > 2
    again = session(Stopwatch(), first.profile)
    assert again.measured == 0
    path = tmp_path / "profile.json"
    first.profile.save(path)
    plan = automap.plan(branches, ARGS, topology="cpu:1", space="streams", profile=path)
    assert KernelProfile.load(path) == first.profile
    known = {time.seconds for time in first.profile.stages}
    assert {stage.seconds for stage in plan.streams.stages} <= known
    assert all(stage.model_seconds is not None for stage in plan.streams.stages)
    count = len(plan.streams.stages)
    assert f"{count} of {count} stages were measured on the device" in plan.explain()
    assert plan.search.gap is None
    assert automap.Plan.from_json(plan.to_json()) == plan


def test_ctrl_c_keeps_what_was_measured_and_the_next_run_goes_on():
    stopped = session(Stopwatch(stop_after=1))
    assert stopped.is_interrupted and stopped.measured == 1
    rest = session(Stopwatch(), stopped.profile)
    assert rest.measured == session(Stopwatch()).measured - 1


def test_nothing_is_measured_when_the_budget_is_over():
    late = session(Stopwatch(), clock=lambda: 11.0)
    assert late.is_over and late.measured == 0 and late.profile == PROFILE


def test_a_loop_runs_the_stage_in_each_trip_and_keeps_its_inputs():
    jaxpr = jax.make_jaxpr(lambda x, w: (jnp.tanh(x @ w), w + 1))(
        jnp.ones((4, 4)), jnp.ones((4, 4))
    )
    loop = stage_loop(jaxpr)
    carry = [jnp.full(leaf.shape, 0.5, leaf.dtype) for leaf in loop.carry]
    run = jax.jit(lambda *c: jax.lax.fori_loop(0, 8, lambda _, s: loop.trip(s), c))
    x, w, made, added = run(*carry)
    np.testing.assert_array_equal(x, carry[0])
    np.testing.assert_allclose(made, jnp.tanh(carry[0] @ carry[1]), rtol=1e-6)
    np.testing.assert_array_equal(added, w + 1)
    # No trip's product has been moved out of the loop.
    text = run.lower(*carry).compile().as_text()
    (body,) = re.findall(r"while\(.*body=%?([\w.\-]+)", text)
    computations = re.split(r"\n(?=\S)", text)
    inside = next(c for c in computations if c.startswith(f"%{body} "))
    assert re.search(r"\bdot\(|custom-call|calls=", inside)
    entry = next(c for c in computations if c.startswith("ENTRY"))
    assert "dot(" not in entry


def test_keys_are_no_numbers():
    key = jax.random.key(0)
    with pytest.raises(Unmeasurable, match="allowed: numbers"):
        stage_loop(jax.make_jaxpr(lambda k: jax.random.normal(k, (2,)))(key))
