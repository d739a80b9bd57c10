"""Sums of tables against the evaluator, plan by plan."""

from dataclasses import replace
import functools
from functools import partial
import math
import random

from hypothesis import given, settings, strategies as st
from jax import lax
import numpy as np
import pytest

from automap.program import trace_step
from automap.search.exact.dual import costs
from automap.search.factored.cells import Rows
from automap.search.factored.model import Model
from automap.search.factored.variables import mesh_variables
from models.dlrm import dlrm_tiny
from models.gpt import gpt_tiny
from models.llama import TINY, llama
from models.moe import moe_tiny
from models.resnet import resnet_tiny
from tests.automap.search.brute import search_context
from tests.steps import decode, decoder, images, mlp, problem_of
from tests.user_shardings import PROGRAMS, arguments, on


def constrained():
    """A step whose code splits a hidden layer inside a loop over axes of the meshes below."""
    sharding = on(a=2, b=4)("b", "a")
    return partial(PROGRAMS["in a scan"], lax.with_sharding_constraint, sharding), arguments()


def grouped_heads():
    """cuDNN's attention with fewer heads of keys than devices."""
    config = replace(TINY, key_heads=2, attention="flash")
    return llama(config, batch=4, seq=64, dtype="bfloat16").target


TARGETS = {
    "constrained": constrained,
    "mlp": mlp,
    "decoder": decoder,
    "decode": decode,
    "images": images,
    "gpt": gpt_tiny,
    # Gathers of parameters in a loop, some of which run beside products.
    "gpt in a loop": partial(gpt_tiny, layers="scanned"),
    # Queries of each key head are split beside the key heads.
    "grouped heads": grouped_heads,
    "moe": moe_tiny,
    "dlrm": dlrm_tiny,
    "resnet": resnet_tiny,
}
MESHES = [("v5e:2x4", (2, 4)), ("v5e:2x4", (8,)), ("2x2xh100", (2, 2)), ("8xh100", (2, 2, 2))]
# Joint choices of a scope beyond which a table is left out here.
MOST = 1 << 17


@functools.cache
def problem(name):
    if name == "grouped heads":
        # Elsewhere it is written attention.
        return trace_step(*grouped_heads(), platform="cuda").problem
    return problem_of(*TARGETS[name]())


@functools.cache
def factored_on(name, topology, shape, pins=()):
    """A search, its model and the tables of one mesh."""
    context = search_context(problem(name), topology, 2**30, pins, meshes=[shape])
    model = Model(Rows(context.space, context.evaluator), context.pins)
    variables = mesh_variables(context.space, context.meshes[0])
    return context, model, model.on_mesh(variables, MOST)


def drawn(sizes, seed):
    """A choice for each variable, most of them the first as often as not."""
    source = random.Random(seed)
    busy = source.choice([0.3, 1.0])
    return [source.randrange(n) if source.random() < busy else 0 for n in sizes]


def total(tables, choices):
    return sum(float(t.values[tuple(choices[v] for v in t.scope)]) for t in tables)


@pytest.mark.parametrize(("topology", "shape"), MESHES)
@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=15)
@given(seed=st.integers(0, 2**32))
def test_tables_add_up_to_what_the_evaluator_says(name, topology, shape, seed):
    context, model, factored = factored_on(name, topology, shape)
    features, evaluator = model.features, context.evaluator
    choices = drawn(factored.variables.sizes, seed)
    point = factored.variables.point(choices)
    weights = np.zeros(features.count)
    weights[: features.shapes] = 1.0
    modelled_seconds = total(factored.tables(weights), choices)
    assert math.isfinite(modelled_seconds) == context.space.is_valid(point)
    if not math.isfinite(modelled_seconds):
        return
    estimate = evaluator.evaluate(context.space.split_classes(point))
    seconds = estimate.step_seconds
    if evaluator.backend.collectives == "beside kernels":
        seconds += estimate.hidden_seconds
    limit = context.objective.memory_limit_bytes
    apart = costs(evaluator, features, context.space.split_classes(point), limit)
    assert apart.seconds.sum() == pytest.approx(seconds, rel=1e-9)
    slot = int(apart.excess.argmax())
    rows, copies, kept = evaluator.memory_timeline.at(slot)
    weights = np.zeros(features.count)
    weights[features.shapes : features.kept] = np.concatenate([rows, copies])
    weights[features.kept : features.kept + len(kept)] = kept
    n_bytes = total([part.table(weights) for part in factored.terms], choices)
    peak = (apart.excess[slot] + 1) * limit
    assert peak <= estimate.peak_bytes * (1 + 1e-12)
    assert modelled_seconds <= seconds * (1 + 1e-9)
    assert n_bytes <= peak * (1 + 1e-9)
    if factored.is_complete:
        assert n_bytes == pytest.approx(peak, rel=1e-9)
        # No table sees which collectives go together in a trip of a loop, nor which axes a gradient
        # has beside its parameter's.
        priced = evaluator.price_point(context.space.split_classes(point))
        sharding = priced.sharding
        unseen = replace(sharding, is_late_axis=np.zeros_like(sharding.is_late_axis))
        alone = evaluator.price(unseen)
        beside = priced.collective_seconds + priced.copying_seconds
        is_alike = np.array_equal(alone.collectives.kind, priced.collectives.kind)
        before = alone.collective_seconds + alone.copying_seconds
        if is_alike and np.allclose(beside, before, rtol=1e-12, atol=0.0):
            assert modelled_seconds == pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize("name", ["decoder", "gpt"])
def test_fewer_choices_have_the_same_tables(name):
    context, model, factored = factored_on(name, "v5e:2x4", (2, 4))
    assert factored.is_complete
    source, variables = random.Random(0), factored.variables
    kept = [np.array([i == 0 or source.random() < 0.5 for i in range(n)]) for n in variables.sizes]
    fewer = model.on_mesh(variables.where(kept))
    weights = np.ones(model.features.count)
    for _ in range(20):
        choices = drawn(fewer.variables.sizes, source.random())
        before = [np.flatnonzero(of)[i] for of, i in zip(kept, choices, strict=True)]
        assert fewer.variables.point(choices) == variables.point(before)
        expected = total(factored.tables(weights), before)
        assert total(fewer.tables(weights), choices) == pytest.approx(expected)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_points_and_choices_are_of_each_other(seed):
    context, _, factored = factored_on("decoder", "v5e:2x4", (2, 4))
    point = factored.variables.point(drawn(factored.variables.sizes, seed))
    again = factored.variables.point(factored.variables.assignment(point))
    assert context.space.split_classes(again) == context.space.split_classes(point)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_what_breaks_a_pin_is_not_allowed(seed):
    pins = ("[0]['params']['layers'][*]['up']=null,b", "[1]['tokens']=a,null")
    context, model, factored = factored_on("decoder", "v5e:2x4", (2, 4), pins)
    choices = drawn(factored.variables.sizes, seed)
    if seed % 2:
        imposed = context.pinned.impose(factored.variables.point(choices))
        choices = list(factored.variables.assignment(imposed))
    point = factored.variables.point(choices)
    is_allowed = context.pinned.allows(point)
    assert (total(factored.barriers, choices) == 0) == is_allowed
