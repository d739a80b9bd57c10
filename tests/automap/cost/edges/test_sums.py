"""Which sums are merged, and which leave their loop, on steps where it can be said by hand."""

import jax
from jax import lax
import jax.numpy as jnp
import pytest

from automap.cost.edges.sums import merged_sums
from tests.steps import problem_of


X = jax.ShapeDtypeStruct((8, 8), "float32")
TRIPS = 5
ORDERS = ("loops first", "terms first")


def _reductions(step, order, n_inputs=3):
    """(how often it is reduced, number of products) for each sum of products of a step."""
    graph = problem_of(step, (X,) * n_inputs).graph
    sums = merged_sums(graph, order)
    reductions = {}
    for op in graph.ops:
        if op.opcode == "dot":
            value = op.outputs[0]
            name = sums.sum_by_term[value]
            trips, number = reductions.get(name, (0, 0))
            reductions[name] = max(trips, sums.trips(value, op.trip_count)), number + 1
    return sorted(reductions.values())


@pytest.mark.parametrize(
    ("step", "wanted"),
    [
        (lambda a, b, c: a @ b + b @ c, [(1, 2)]),
        (lambda a, b, c: a @ b + b @ c + c @ a, [(1, 3)]),
        (lambda a, b, c: (a + a @ b) + b @ c, [(1, 1), (1, 1)]),  # a is no product
        (lambda a, b, c: a @ b + jnp.sin(b @ c), [(1, 1), (1, 1)]),
        (lambda a, b, c: [d := a @ b, d + b @ c], [(1, 1), (1, 1)]),  # both are returned
        (lambda a, b, c: (a @ b).reshape(1, 8, 8)[0] + b @ c, [(1, 2)]),
    ],
)
@pytest.mark.parametrize("order", ORDERS)
def test_products_that_are_only_added_up_are_one_sum(step, order, wanted):
    assert _reductions(step, order) == wanted


def test_reduced_and_scattered_terms_are_merged_too():
    def step(a, b, c):
        rows = jnp.arange(8) % 3
        return (
            a.sum(0) + b.sum(0),
            a.max(0) + b.max(0),
            jnp.zeros((8, 8)).at[rows].add(a) + jnp.zeros((8, 8)).at[rows].add(b) * 1,
        )

    graph = problem_of(step, (X, X, X)).graph
    names = merged_sums(graph, "loops first").sum_by_term
    of = {
        kind: [names.get(op.outputs[0]) for op in graph.ops if op.opcode == kind]
        for kind in ("reduce", "scatter")
    }
    left, right, *largest = of["reduce"]
    assert left == right is not None
    assert largest == [None, None]  # Maxima are not added up.
    assert len(of["scatter"]) == 2


def _loop(body, outside=lambda c: c):
    def step(a, b, c):
        return outside(lax.fori_loop(0, TRIPS, lambda i, carry: body(carry, a, b), c))

    return step


@pytest.mark.parametrize(
    ("step", "wanted"),
    [
        (_loop(lambda c, a, b: c + a @ b), [(1, 1)]),
        (_loop(lambda c, a, b: c + jnp.sin(a @ b)), [(TRIPS, 1)]),
        (_loop(lambda c, a, b: c + c @ b), [(TRIPS, 1)]),  # the carry is read
        (_loop(lambda c, a, b: jnp.sin(c + a @ b)), [(TRIPS, 1)]),
        # Tied weights: what the loop ends with is added to a product outside.
        (lambda a, b, c: b @ b + _loop(lambda c, a, b: c + a @ b)(a, b, c), [(1, 2)]),
        (lambda a, b, c: _loop(lambda c, a, b: c + a @ b)(a, b, c) + b @ b, [(1, 2)]),
    ],
)
@pytest.mark.parametrize("order", ORDERS)
def test_an_accumulated_sum_leaves_its_loop(step, order, wanted):
    assert _reductions(step, order) == wanted


@pytest.mark.parametrize(
    ("order", "wanted"), [("loops first", [(TRIPS, 2)]), ("terms first", [(1, 2)])]
)
def test_what_a_trip_adds_up_itself_leaves_the_loop_where_terms_are_merged_first(order, wanted):
    """Seen of the TPU compiler (libtpu 0.0.51) of a weight that each trip multiplies by twice."""
    assert _reductions(_loop(lambda c, a, b: c + (a @ b + b @ a)), order) == wanted


def _half(a, b):
    return (a.astype("bfloat16") @ b.astype("bfloat16")).astype("float32")


@pytest.mark.parametrize(
    ("step", "order", "wanted", "widened"),
    [
        (_loop(lambda c, a, b: c + _half(a, b)), "loops first", [(1, 1)], {2.0}),
        (_loop(lambda c, a, b: c + _half(a, b).T), "loops first", [(1, 1)], {2.0}),
        (_loop(lambda c, a, b: c + _half(a, b)), "terms first", [(1, 1)], {2.0}),
        (_loop(lambda c, a, b: c + _half(a, b) / 4), "loops first", [(TRIPS, 1)], {1.0}),
        (lambda a, b, c: c + _half(a, b), "loops first", [(1, 1)], {1.0}),
        (lambda a, b, c: _half(a, b) + _half(b, c), "loops first", [(1, 1), (1, 1)], {1.0}),
        (lambda a, b, c: _half(a, b) + _half(b, c), "terms first", [(1, 2)], {2.0}),
    ],
)
def test_a_product_that_is_widened_and_accumulated_is_reduced_in_the_wider_type(
    step, order, wanted, widened
):
    assert _reductions(step, order) == wanted
    graph = problem_of(step, (X,) * 3).graph
    widened_by_term = merged_sums(graph, order).widened
    assert {
        widened_by_term.get(op.outputs[0], 1.0) for op in graph.ops if op.opcode == "dot"
    } == widened


def test_an_accumulated_sum_leaves_both_of_two_loops():
    def inner(carry, a, b):
        return carry + lax.fori_loop(0, 3, lambda i, d: d + a @ b, jnp.zeros_like(carry))

    assert _reductions(_loop(inner), "loops first") == [(1, 1)]
