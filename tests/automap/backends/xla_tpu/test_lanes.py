"""Copies of what is gathered along its last dimension, in closed form."""

from dataclasses import replace

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from automap.backends.xla_tpu.lanes import LaneCopyEffect
from automap.cost.evaluate import Evaluator
from automap.cost.tables import build_tables
from automap.cost.traffic.flows import ALL_TO_ALL
from automap.space.space import Space
from automap.topology import get_topology
from automap.topology.mesh import Mesh
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
    split = problem.compute_classes(problem.graph.inputs[1 - dim])[dim]
    split_classes = space.split_classes(space.point(Mesh(("model",), (8,)), [(split,)]))
    evaluator = Evaluator(tables, problem.n_classes, V5E)
    priced = evaluator.price_point(split_classes)
    n_bytes = 2 * 4 * 64 * columns
    seconds = max(n_bytes / V5E.device.memory_bytes_per_s("copy"), V5E.device.launch_seconds)
    expected = seconds * (is_copied and dim == 1)
    copies = LaneCopyEffect().seconds(
        evaluator.collective_work(priced.sharding, priced.collectives)
    )
    assert copies @ priced.collectives.count == pytest.approx(expected)
    device = replace(V5E.device, matmul_tile=1)
    without = replace(evaluator, topology=replace(V5E, device=device)).price_point(split_classes)
    np.testing.assert_allclose(priced.collective_seconds, without.collective_seconds + copies)


@pytest.mark.parametrize(("dims", "is_copied"), [((0, 2), True), ((1, 2), True), ((0, 1), False)])
def test_what_moves_from_the_last_dimension_or_to_it_is_copied(dims, is_copied):
    """Sorted along one of the dimensions, then along the other: each time that one is whole."""
    first, second = dims
    x = jax.ShapeDtypeStruct((64, 32, 1024), "float32")
    w = jax.ShapeDtypeStruct((8,), "float32")

    def step(w, x):
        return w, jnp.sort(jnp.sort(jnp.sin(x), axis=first), axis=second).sum()

    problem = problem_of(step, (w, x))
    tables, space = build_tables(problem, "tpu"), Space(problem)
    classes = problem.compute_classes(problem.graph.inputs[1])
    split_classes = space.split_classes(
        space.point(Mesh(("model",), (8,)), [(classes[first], classes[second])])
    )
    evaluator = Evaluator(tables, problem.n_classes, V5E)
    priced = evaluator.price_point(split_classes)
    is_exchange = priced.collectives.kind == ALL_TO_ALL
    assert is_exchange.any()
    copies = LaneCopyEffect().seconds(
        evaluator.collective_work(priced.sharding, priced.collectives)
    )[is_exchange]
    each = 2 * 4 * 64 * 32 * 1024 / 8 / V5E.device.memory_bytes_per_s("copy")
    np.testing.assert_allclose(copies, each * is_copied)
