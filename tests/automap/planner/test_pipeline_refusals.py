"""Pipelines that there cannot be: what is said is of the batch, and of what was asked for."""

import jax
import jax.numpy as jnp
import pytest

import automap
from automap.errors import InfeasiblePlanError, InputError
from automap.runtime.pipeline.step import check_separable
from automap.step.step import traced_call


ARGS = (jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((4, 64), jnp.float32))


def step(w, x):
    def loss(w):
        h = x
        for _ in range(4):
            h = jnp.tanh(h @ w)
        return (h**2).mean()

    return w - 0.1 * jax.grad(loss)(w)


def planned(**options):
    return automap.plan(step, ARGS, topology="8xh100", space="pipeline", **options)


@pytest.mark.parametrize("asked", [{}, {"microbatches": 2}, {"microbatches": 4}])
def test_microbatches_that_the_devices_divide_are_named(asked):
    with pytest.raises(InfeasiblePlanError, match=r"of a batch of 4; give --microbatches 1, or"):
        planned(stages=2, **asked)
    plan = planned(stages=2, microbatches=1)
    assert plan.pipeline.microbatches == 1


def test_without_such_microbatches_none_are_named():
    with pytest.raises(InfeasiblePlanError, match="of a batch of 4; give another number of stages"):
        planned(stages=1, microbatches=1)


def test_parts_that_nobody_asked_for_are_explained():
    """Each replica of a stage takes a part of every microbatch."""
    plan = planned(stages=2, microbatches=1)
    other = traced_call(jax.jit(step), (ARGS[0], jax.ShapeDtypeStruct((6, 64), jnp.float32)), {})
    match = "1 microbatch on stages of up to 4 replicas is 4 parts of the batch: .*6 samples"
    with pytest.raises(InputError, match=match):
        check_separable(other, plan.pipeline)
