"""Copies of what is gathered along its last dimension, in closed form."""

from dataclasses import replace

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from automap.cost.evaluate import Evaluator
from automap.cost.lane_copies import copied_bytes
from automap.cost.tables import build_tables
from automap.space.point import Mesh
from automap.space.space import Space
from automap.topology import get_topology
from tests.steps import problem_of


V5E = get_topology("v5e:2x4")


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize(("columns", "is_copied"), [(8 * 128, False), (8 * 64, True), (8, True)])
def test_parts_of_no_whole_tiles_are_copied_where_they_are_gathered_side_by_side(
    dim, columns, is_copied
):
    """What is sorted is gathered along the dimension that is sorted."""
    w, x = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((16, columns), (64, 16)))
    problem = problem_of(lambda w, x: (w, jnp.sort(x @ w, axis=dim)), (w, x))
    tables, space = build_tables(problem, "tpu"), Space(problem)
    split = problem.classes_of(problem.graph.inputs[1 - dim])[dim]
    lanes = space.lanes(space.point(Mesh(("model",), (8,)), [(split,)]))
    evaluator = Evaluator(tables, problem.n_classes, V5E)
    priced = evaluator.priced(lanes)
    copied = copied_bytes(tables, priced.sharding, priced.found)
    expected = 2 * 4 * 64 * columns * (is_copied and dim == 1)
    assert copied @ priced.found.count == expected
    device = replace(V5E.device, matmul_tile=1)
    without = replace(evaluator, topology=replace(V5E, device=device)).priced(lanes)
    seconds = expected / V5E.device.memory_bytes_per_s("copy")
    np.testing.assert_allclose(priced.of_collective.sum(), without.of_collective.sum() + seconds)
