"""Loops keep constrained tensors for their backward pass as they are constrained."""

from functools import partial

import jax
from jax import lax
import pytest

import automap
from automap.program import trace_step
from tests.user_shardings import (
    BATCH,
    FOUR_BY_TWO,
    HIDDEN,
    PROGRAMS,
    arguments,
    free,
    largest_difference,
)


LAYERS = 3
SPEC = (("data",), ("model",))


def _scanned():
    return partial(
        PROGRAMS["in a scan"], lax.with_sharding_constraint, FOUR_BY_TWO("data", "model")
    )


def test_stacks_and_what_is_read_of_them_have_the_spec():
    problem = trace_step(jax.jit(_scanned()), arguments(LAYERS)).problem
    values, specs_by_value = problem.graph.values, problem.imposed.specs_by_value
    specs = {values[v].dims: spec for v, spec in specs_by_value.items()}
    assert specs == {
        (BATCH, HIDDEN): SPEC,
        (1, BATCH, HIDDEN): ((), *SPEC),
        (LAYERS, BATCH, HIDDEN): ((), *SPEC),
    }
    kinds = {problem.graph.ops[op].opcode for op in problem.imposed.specs_by_stack_op}
    assert {"reshape", "dynamic-update-slice", "dynamic-slice"} <= kinds


def test_nothing_is_followed_without_a_constraint():
    step = partial(PROGRAMS["in a scan"], free, None)
    imposed = trace_step(jax.jit(step), arguments(LAYERS)).problem.imposed
    assert not (imposed.specs_by_op or imposed.specs_by_stack_op or imposed.specs_by_value)


@pytest.mark.parametrize("options", [{}, {"preset": "data-parallel"}], ids=str)
def test_the_compiled_stack_is_split_as_the_tensor(options):
    args = arguments(LAYERS)
    plan = automap.plan(_scanned(), args, topology="cpu:8", **options)
    run = plan.jit(_scanned())
    assert f"f32[{LAYERS},{BATCH // 4},{HIDDEN // 2}]" in run.lower(*args).compile().as_text()
    expected = jax.jit(partial(PROGRAMS["in a scan"], free, None))(*args)
    assert largest_difference(run(*args), expected) < 1e-6
