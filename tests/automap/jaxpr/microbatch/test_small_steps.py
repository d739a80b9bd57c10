"""Small steps: either refused with the operation and the line, or equal to the step on the whole
batch.

Tolerances: sums of at most 100 float32 products of order one, associated differently: some 1e-6.
"""

import jax
from jax import numpy as jnp
import pytest

from automap.errors import NotSeparableError
from automap.runtime.microbatched import microbatched
from tests.automap.jaxpr.microbatch.comparison import assert_close
from tests.automap.jaxpr.microbatch.refused_steps import REFUSED
from tests.automap.jaxpr.microbatch.separable_steps import SEPARABLE
from tests.automap.jaxpr.microbatch.small_steps import ARGS, Y


# Eight are of one sample each.
@pytest.mark.parametrize("microbatches", [2, 4, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SEPARABLE)
def test_separable_steps_compute_the_same(name, microbatches):
    step = jax.jit(SEPARABLE[name], donate_argnums=0)
    if name == "pairs_in_one_microbatch" and microbatches == len(Y):
        with pytest.raises(NotSeparableError, match="one sample"):
            microbatched(step, ARGS, microbatches=microbatches)
        return
    in_parts = microbatched(step, ARGS, microbatches=microbatches)
    want, got = (run(*jax.tree.map(jnp.copy, ARGS)) for run in (step, in_parts))
    # Short floats are rounded to 8 bits once per microbatch before they are added.
    rounding = 2**-6 if name == "short_floats" else 2e-5
    assert_close(got, want, rtol=rounding, atol=rounding / 4)


@pytest.mark.parametrize("microbatches", [2, 4, 8])
@pytest.mark.parametrize("name", REFUSED)
def test_steps_that_need_several_samples_are_refused(name, microbatches):
    with pytest.raises(NotSeparableError, match="microbatches"):
        microbatched(jax.jit(REFUSED[name], donate_argnums=0), ARGS, microbatches=microbatches)
