"""What work is counted by: products, or what is computed element by element."""

import jax
import jax.numpy as jnp
import pytest

import automap
from tests.steps import problem_of


PLATES, SIDE, TRIPS = 8, 16, 5


def _flow(conductivity, start):
    def flow(heat, _):
        return heat + conductivity * (jnp.roll(heat, 1, 1) - heat), None

    return jax.lax.scan(flow, start, None, length=TRIPS)[0]


def _array(*dims):
    return jax.ShapeDtypeStruct(dims, "float32")


ARGS = (_array(SIDE, SIDE), _array(PLATES, SIDE, SIDE))


def test_a_simulation_without_products_works_over_its_batch():
    problem = problem_of(_flow, ARGS)
    (batch,) = {problem.compute_classes(v)[0] for v in problem.graph.outputs}
    # A subtraction, a product by element and a sum in each trip.
    numbers = PLATES * SIDE * SIDE * TRIPS
    assert problem.work.by_class[batch] == 3 * numbers
    # The loop counts its trips.
    assert problem.work.total == 3 * numbers + TRIPS
    assert problem.batch_class == batch


def test_its_batch_is_split():
    plan = automap.plan(_flow, ARGS, topology="v5e:2x4")
    assert plan.search.point.compute[0]
    assert plan.predicted.collective_seconds == 0


@pytest.mark.parametrize("terms", [8, 512])
def test_by_element_counts_only_where_it_is_more_than_all_products(terms):
    def step(x, w):
        return jnp.tanh(x @ w)

    problem = problem_of(step, (_array(4, terms), _array(terms, 8)))
    assert problem.work.total == 2 * 4 * terms * 8


def test_a_small_product_beside_a_long_simulation_is_part_of_its_work():
    def step(x, w):
        return jax.lax.fori_loop(0, TRIPS, lambda _, heat: jnp.tanh(heat), x) @ w

    problem = problem_of(step, (_array(64, 2), _array(2, 1)))
    (rows,) = {problem.compute_classes(v)[0] for v in problem.graph.outputs}
    assert problem.work.by_class[rows] == 2 * 64 * 2 + 64 * 2 * TRIPS
