"""Weighted sums of kernels and collectives never exceed a step in which both run at once."""

import functools

from hypothesis import given, settings, strategies as st
import numpy as np
import pytest
from scipy import optimize

from automap.search.exact.dual import costs
from automap.search.exact.overlap import bounding_weights
from tests.automap.search.factored.test_model import TARGETS, drawn, factored_on


@functools.cache
def weights(name, topology, shape):
    context, model, _ = factored_on(name, topology, shape)
    return bounding_weights(context.evaluator, model.features)


@pytest.mark.parametrize(("topology", "shape"), [("2x2xh100", (2, 2)), ("8xh100", (2, 2, 2))])
@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_the_greatest_weighted_sum_is_at_most_the_step(name, topology, shape, seed):
    context, model, factored = factored_on(name, topology, shape)
    point = factored.variables.point(drawn(factored.variables.sizes, seed))
    if not context.space.is_valid(point):
        return
    split_classes = context.space.split_classes(point)
    step_seconds = context.evaluator.evaluate(split_classes).step_seconds
    allowed = weights(name, topology, shape)
    seconds = costs(context.evaluator, model.features, split_classes, 1.0).seconds
    gain = np.bincount(allowed.which, seconds, allowed.count)
    scale = gain.max()
    solution = optimize.linprog(
        -gain / scale, A_ub=allowed.matrix, b_ub=allowed.most, bounds=(0, 1), method="highs"
    )
    assert seconds @ allowed.by_feature(solution.x) <= step_seconds * (1 + 1e-6)
    # Computation alone, and the link alone, are bounds too.
    assert -solution.fun * scale >= max(
        seconds[: model.features.operands].sum(), seconds[model.features.operands :].sum()
    ) * (1 - 1e-6)


def test_where_nothing_runs_beside_all_weights_are_one():
    allowed = weights("mlp", "v5e:2x4", (2, 4))
    assert allowed.count == 0
    assert (allowed.by_feature(np.zeros(0)) == 1).all()
