"""Random steps are refused, or compute in microbatches what they compute at once.

Values stay within some tens and sums within some thousand terms, so that rounding is some 1e-5 of
the largest number; what is wrong is wrong in the first digits.
"""

from hypothesis import given, settings, strategies as st
import jax
from jax import numpy as jnp
import numpy as np
import pytest

from automap.errors import NotSeparableError
from automap.runtime.microbatched import microbatched
from tests.automap.jaxpr.microbatch.random_steps import OPERATIONS, random_step
from tests.automap.jaxpr.microbatch.small_steps import ARGS


PROGRAMS = st.lists(
    st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(0, 2), st.integers(0, 2)),
    min_size=2,
    max_size=7,
)


def check(program, microbatches):
    """Whether the step was accepted; fails if it computes something else."""
    step = jax.jit(random_step(program), donate_argnums=0)
    try:
        in_parts = microbatched(step, ARGS, microbatches=microbatches)
    except NotSeparableError:
        return False
    want, got = (run(*jax.tree.map(jnp.copy, ARGS)) for run in (step, in_parts))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        size = np.nanmax(np.abs(np.asarray(b)), initial=1.0)
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * size)
    return True


@settings(max_examples=15)
@given(program=PROGRAMS, microbatches=st.sampled_from([2, 4, 8]))
def test_random_steps(program, microbatches):
    check(program, microbatches)


@pytest.mark.slow
@settings(max_examples=400)
@given(program=PROGRAMS, microbatches=st.sampled_from([2, 4, 8]))
def test_many_random_steps(program, microbatches):
    check(program, microbatches)


def test_some_random_steps_are_accepted():
    program = [("matmul", 0, 0), ("interleave", 0, 1), ("scan layers", 0, 0), ("softmax", 0, 0)]
    assert check(program, 2)
