"""Points that split experts inside their region and outside of it."""

from itertools import product

import pytest

from automap.space.space import Space
from automap.topology.mesh import Mesh
from models.moe import moe_tiny
from tests.steps import problem_of


SIZES = (4, 2, 2)


@pytest.fixture(scope="module")
def space():
    return Space(problem_of(*moe_tiny()))


def test_splits_inside_and_outside_of_a_region_divide_a_dimension_together(space):
    """Valid is what splits none of the eight experts' dimensions in more parts than divide it."""
    problem = space.problem
    (inside,) = space.regional
    value, dim = next(
        (v, problem.regional_classes(v).index(inside))
        for v in problem.graph.inputs
        if inside in problem.regional_classes(v)
    )
    outside, size = problem.compute_classes(value)[dim], problem.graph.values[value].dims[dim]
    assert size == 8
    seen = set()
    for choices in product(((), (inside,), (outside,), (inside, outside)), repeat=len(SIZES)):
        point = space.point(Mesh(("a", "b", "c"), SIZES), choices)
        parts = 1
        for axis_size, classes in zip(SIZES, choices):
            parts *= axis_size ** len(classes)
        assert space.is_valid(point) == (size % parts == 0)
        seen.add(space.is_valid(point))
    assert seen == {True, False}
