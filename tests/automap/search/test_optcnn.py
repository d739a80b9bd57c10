"""The least sum of seconds against every plan of small spaces, and beside the exact search."""

import functools
import math

import pytest

from automap.search import get_strategy
from automap.search.exact.dual import costs
from automap.search.factored.model import FeatureOffsets
from tests.automap.search.brute import every_point, search_context
from tests.steps import decoder, mlp, problem_of


optcnn = get_strategy("optcnn")
PROBLEMS = {
    "small": problem_of(*mlp()),
    "wide": problem_of(*mlp(batch=64, width=512, hidden=1024)),
    "decoder": problem_of(*decoder()),
}


def sum_of_seconds(context, point):
    """Of kernels and collectives one after the other."""
    features = FeatureOffsets.from_evaluator(context.evaluator)
    split_classes = context.space.split_classes(point)
    return costs(context.evaluator, features, split_classes, 1.0).seconds.sum()


@functools.cache
def least_of_all(name, topology, shape, pins=()):
    """The least sum of all plans that keep the pins."""
    context, least = search_context(PROBLEMS[name], topology, pins=pins, meshes=[shape]), math.inf
    for point in every_point(context):
        if context.pinned.allows(point):
            least = min(least, sum_of_seconds(context, point))
    return least


@pytest.mark.parametrize(
    ("name", "topology", "shape", "pins"),
    [
        ("small", "v5e:2x2", (4,), ()),
        ("wide", "v5e:2x2", (4,), ()),
        ("wide", "v5e:2x2", (4,), ("[1]['x']=null,null",)),
        ("wide", "4xh100", (4,), ()),
        ("small", "2x2xh100", (4,), ()),
    ],
)
def test_no_plan_has_a_smaller_sum(name, topology, shape, pins):
    context = search_context(PROBLEMS[name], topology, pins=pins, meshes=[shape])
    optcnn(context)
    least = least_of_all(name, topology, shape, pins)
    assert sum_of_seconds(context, context.best.point) == pytest.approx(least, rel=1e-9)


@pytest.mark.parametrize("name", PROBLEMS)
def test_where_memory_does_not_bind_it_is_the_exact_plan_and_proven(name):
    ours, other = (
        search_context(PROBLEMS[name], "v5e:2x4", meshes=[(8,), (2, 4)]) for _ in range(2)
    )
    optcnn(ours)
    get_strategy("exact")(other)
    least = other.best.estimate.step_seconds
    assert ours.best.estimate.step_seconds == pytest.approx(least, rel=1e-9)
    assert ours.gap(ours.best) == pytest.approx(0.0, abs=1e-8)


def test_where_memory_binds_its_plan_does_not_fit_and_the_bound_stands():
    problem, meshes = PROBLEMS["decoder"], [(8,), (2, 4)]
    free = search_context(problem, "v5e:2x4", meshes=meshes)
    optcnn(free)
    limit = 0.9 * free.best.estimate.peak_bytes
    ours, other = (search_context(problem, "v5e:2x4", limit, meshes=meshes) for _ in range(2))
    optcnn(ours)
    get_strategy("exact")(other)
    assert not ours.objective.fits(ours.best.estimate)
    assert ours.gap(ours.best) is None
    assert 0 < ours.bound_seconds < other.best.estimate.step_seconds


def test_where_collectives_run_beside_kernels_nothing_is_proven():
    context = search_context(PROBLEMS["wide"], "4xh100", meshes=[(4,)])
    optcnn(context)
    assert context.bound_seconds is None
