"""Stages as programs of their own: one after another they are the step."""

from functools import cache

import jax
from jax.extend import core
from jax.extend.core import jaxpr_as_fun
import jax.numpy as jnp
import numpy as np
import pytest

from automap.deadline import Deadline
from automap.planner.streams import priced_operators, stage_programs
from automap.program import trace_step
from automap.streams.schedule import Stage, find_schedule
from automap.streams.strategies import Limits
from automap.topology import get_topology


@cache
def scheduled(strategy, width=16):
    """(programs, schedule) of products of one operand beside each other, twice."""
    workload = trace_step(branches, arguments(width), platform="cuda")
    priced = priced_operators(workload, get_topology("1xh100"))
    schedule = find_schedule(priced, strategy, Limits(groups=8, group_size=3), Deadline.never())
    return stage_programs(workload, priced), schedule


def branches(weights, x):
    for layer in weights:
        one, two, three = (jnp.tanh(x @ w + 1.0) for w in layer)
        x = (one * two @ layer[0] + three) / 2
    return x.sum(axis=0)


def arguments(width):
    keys = iter(jax.random.split(jax.random.key(0), 7))
    weights = [[jax.random.normal(next(keys), (width, width)) for _ in range(3)] for _ in range(2)]
    return weights, jax.random.normal(next(keys), (8, width))


@pytest.mark.parametrize(
    ("strategy", "on_streams"), [("sequential", False), ("dos", False), ("dos", True)]
)
def test_one_after_another_they_compute_what_the_step_computes(strategy, on_streams):
    programs, schedule = scheduled(strategy)
    flat = programs.flat
    leaves = jax.tree.leaves(arguments(16))
    values = dict(zip(flat.invars, leaves, strict=True))
    assert strategy == "sequential" or any(s.together == "merged" for s in schedule.stages)
    for stage in schedule.stages:
        jaxpr = programs.program(stage, on_streams=on_streams)
        results = jaxpr_as_fun(jaxpr)(*(values[var] for var in jaxpr.jaxpr.invars))
        values |= dict(zip(jaxpr.jaxpr.outvars, results, strict=True))
    (out,) = flat.outvars
    assert not isinstance(out, core.Literal)
    np.testing.assert_allclose(values[out], branches(*arguments(16)), rtol=1e-5, atol=1e-6)


def test_equal_stages_have_one_fingerprint_and_others_have_others():
    programs, schedule = scheduled("sequential")
    signatures = [programs.signature(stage) for stage in schedule.stages]
    # The second layer is the first one again.
    assert len(set(signatures)) < len(signatures)
    wider, others = scheduled("sequential", 32)
    assert not set(signatures) & {wider.signature(stage) for stage in others.stages}
    _, best = scheduled("dos")
    merged = next(stage for stage in best.stages if stage.together == "merged")
    at_once = Stage(together="concurrent", groups=merged.groups, seconds=0.0, block=0)
    assert programs.signature(at_once) != programs.signature(merged)


def test_a_step_with_effects_has_no_programs():
    def printing(x):
        jax.debug.print("{}", x)
        return jnp.tanh(x @ x)

    workload = trace_step(printing, (jnp.ones((4, 4)),), platform="cuda")
    priced = priced_operators(workload, get_topology("1xh100"))
    stage = Stage(together="concurrent", groups=((0,),), seconds=0.0, block=0)
    assert stage_programs(workload, priced).signature(stage) is None
