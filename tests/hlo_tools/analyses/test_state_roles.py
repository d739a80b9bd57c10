"""Roles of small steps whose truth is known, and what ZeRO keeps on each device because of them."""

from collections import Counter
from math import prod

import jax
import numpy as np
import pytest

from automap.api.plan import Plan
from automap.config import Options
from automap.planner.records import build_plan
from automap.planner.sharding import find
from automap.program import trace_step
from automap.topology import get_topology
from tests.held_out_role_steps import HELD_OUT
from tests.role_steps import DESIGNED


CASES = {**DESIGNED, **HELD_OUT}


def wrong(make):
    """path -> (role found, role that is right), of the leaves where they differ."""
    step, args, truth = make()
    problem = trace_step(step, args, platform="tpu").problem
    # Each role of `truth` is that of all leaves below it.
    right = jax.tree.leaves(
        jax.tree.map(lambda role, below: jax.tree.map(lambda _: role, below), truth, args)
    )
    assert len(right) == len(problem.roles)
    return {
        path: (role.value, should.value)
        for path, role, should in zip(problem.paths, problem.roles, right, strict=True)
        if role is not should
    }


@pytest.mark.parametrize("name", CASES)
def test_roles_are_what_the_leaves_are(name):
    assert wrong(CASES[name]) == {}


TOPOLOGY = get_topology("cpu:8")
# What ZeRO has to cover: several updates, accumulation, a branch, an inner loop.
COVERED = (
    "two updates",
    "three updates",
    "accumulated in a scan",
    "unrolled accumulation",
    "multisteps",
    "update in cond",
    "scanned steps",
    "inner loop of episodes",
    "sharpness aware",
    "batch norm of linen",
    "adversarial",
)


def stored_shares(plan):
    """role -> share of its bytes that a device holds."""
    whole, held = Counter(), Counter()
    for leaf in plan.inputs:
        n_bytes = prod(leaf.shape) * np.dtype(leaf.dtype).itemsize if "key" not in leaf.dtype else 0
        axes = [axis for dim in leaf.spec for axis in dim or ()]
        whole[leaf.role] += n_bytes
        held[leaf.role] += n_bytes / prod(dict(plan.mesh.axes)[axis] for axis in axes)
    return {role: held[role] / whole[role] for role in whole if whole[role]}


@pytest.mark.parametrize("name", COVERED)
def test_zero_covers_the_state(name):
    """Each device holds an eighth of the moments under ZeRO-1, and of the parameters too under
    ZeRO-3; the peak follows.
    """
    step, args, _ = CASES[name]()
    workload = trace_step(step, args)
    plans = {
        preset: Plan.from_record(build_plan(find(workload, TOPOLOGY, Options(preset=preset))))
        for preset in ("data-parallel", "zero-1", "zero-3")
    }
    shares = {preset: stored_shares(plan) for preset, plan in plans.items()}
    # Counters and other scalars are whole everywhere.
    eighth = pytest.approx(1 / 8, abs=0.01)
    assert shares["data-parallel"]["optimizer state"] == shares["zero-1"]["parameter"] == 1
    assert shares["zero-1"]["optimizer state"] == shares["zero-3"]["optimizer state"] == eighth
    assert shares["zero-3"]["parameter"] == eighth
    peaks = [plan.predicted.peak_bytes for plan in plans.values()]
    assert peaks == sorted(peaks, reverse=True)


def values_like(args):
    """Small numbers for every leaf; moments stay positive."""
    numbers = np.random.default_rng(0)

    def value(leaf):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.key(3)
        if leaf.dtype.kind != "f":
            return np.zeros(leaf.shape, leaf.dtype)
        return np.abs(0.3 * numbers.standard_normal(leaf.shape)).astype(leaf.dtype)

    return jax.tree.map(value, args)


QUICK = (
    ("two updates", "zero-1"),
    ("two updates", "zero-3"),
    ("update in cond", "zero-3"),
    ("unrolled episodes", "zero-3"),
    ("inner loop of episodes", "zero-1"),
)
OTHERS = [
    pytest.param(name, preset, marks=pytest.mark.slow)
    for name in (*COVERED, "balanced experts", "copied target", "recurrent state")
    for preset in ("data-parallel", "zero-1", "zero-3")
    if (name, preset) not in QUICK
]


@pytest.mark.parametrize(("name", "preset"), [*QUICK, *OTHERS])
def test_the_planned_step_computes_the_same(name, preset):
    step, args, _ = CASES[name]()
    plan = Plan.from_record(
        build_plan(find(trace_step(step, args), TOPOLOGY, Options(preset=preset)))
    )
    values = values_like(args)
    want = jax.device_get(jax.jit(step)(*values))
    got = jax.device_get(plan.jit(step)(*values))
    for (path, one), other in zip(
        jax.tree_util.tree_leaves_with_path(want), jax.tree.leaves(got), strict=True
    ):
        if jax.dtypes.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        np.testing.assert_allclose(
            other, one, rtol=2e-4, atol=1e-5, err_msg=jax.tree_util.keystr(path)
        )
