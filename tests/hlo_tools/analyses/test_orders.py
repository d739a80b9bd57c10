"""The order of dimensions in memory, against what numpy can do without a copy."""

from math import prod

from hypothesis import assume, given, settings, strategies as st
import jax
from jax import numpy as jnp
import numpy as np
import pytest

from hlo_tools.analyses.orders import known_orders, long_dims, operand_order, reshape_order
from hlo_tools.opcodes import DOT
from tests.hlo_tools.graphs import step_graph


def _array(dims, order):
    """Of these dimensions, which lie in this order."""
    array = np.arange(prod(dims)).reshape([dims[d] for d in order])
    return array.transpose(np.argsort(order)) if dims else array


def _order_of(array):
    """The dimensions of more than one element, that with the largest stride first."""
    long = [d for d, size in enumerate(array.shape) if size > 1]
    return tuple(sorted(long, key=lambda d: -array.strides[d]))


@st.composite
def _arrays(draw, most=4):
    """Dimensions, and the order in which they lie."""
    dims = draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=most))
    return tuple(dims), tuple(draw(st.permutations(range(len(dims)))))


@st.composite
def _reshaped(draw):
    """Dimensions, their order, and dimensions of as many elements: joined, cut and joined anew."""
    dims, order = draw(_arrays())
    cut = [part for d in dims for part in draw(st.sampled_from([(d,), (1, d), (d, 1)]))]
    cut = [part for d in cut for part in draw(st.sampled_from([(d,), (2, 2) if d == 4 else (d,)]))]
    made = []
    for size in cut:
        if made and draw(st.booleans()):
            made[-1] *= size
        else:
            made.append(size)
    return dims, order, tuple(made)


@given(_reshaped())
@settings(deadline=None, max_examples=300)
def test_a_reshape_stays_where_it_is_if_numpy_makes_a_view(case):
    dims, order, made = case
    array = _array(dims, order)
    is_view = np.shares_memory(array.reshape(made), array)
    assert (reshape_order(order, dims, made, dims) is None) == is_view


@given(_reshaped())
@settings(deadline=None, max_examples=60)
def test_what_is_reshaped_lies_as_in_numpy(case):
    dims, order, made = case
    stored = tuple(dims[d] for d in order)

    def step(x, y):
        product = (x @ y).reshape(stored)
        return product.transpose(np.argsort(order)).reshape(made) * 2

    graph = step_graph(step, (prod(dims), 2), (2, 1))
    (result,) = graph.outputs
    assert long_dims(known_orders(graph).by_value[result], made) == _order_of(
        _array(dims, order).reshape(made)
    )


@st.composite
def _operands(draw):
    """An array, and which of its dimensions are of the batch, its own and summed over."""
    dims, order = draw(_arrays(5))
    kinds = draw(st.lists(st.sampled_from("bos"), min_size=len(dims), max_size=len(dims)))
    by_kind = {kind: [d for d, k in enumerate(kinds) if k == kind] for kind in "bos"}
    batch, summed = (tuple(draw(st.permutations(by_kind[kind]))) for kind in "bs")
    assume(summed)
    return dims, order, batch, tuple(by_kind["o"]), summed


@given(_operands())
@settings(deadline=None, max_examples=30)
def test_a_product_reads_in_place_what_numpy_joins_to_three_dimensions(case):
    dims, order, batch, own, summed = case
    other = [dims[d] for d in (*batch, *summed)]
    here = tuple(range(len(batch))), tuple(range(len(batch), len(other)))

    def step(x, y):
        return jax.lax.dot_general(x, y, ((summed, here[1]), (batch, here[0])))

    graph = step_graph(step, dims, other)
    (product,) = (op for op in graph.ops if op.opcode == DOT)
    array = _array(dims, order)
    joined = array.transpose((*batch, *own, *summed)).reshape(
        [prod(dims[d] for d in kind) for kind in (batch, own, summed)]
    )
    long = _order_of(array)
    is_batch_inside = bool({*long[-1:]} & {*batch}) and not {*long} <= {*batch}
    is_read = np.shares_memory(joined, array) and not is_batch_inside
    copied = operand_order(product, product.inputs[0], order, dims)
    assert (copied is None) == is_read
    if copied is not None:
        # What it is copied to is read in place, whether the program's own order would be or not.
        assert copied == (*batch, *own, *summed)
        assert operand_order(product, product.inputs[0], copied, dims) is None


def test_what_is_made_element_by_element_lies_as_the_product_that_it_is_made_of():
    def step(x, y, z):
        scores = jnp.einsum("btd,bsd->bst", x, y).transpose(0, 2, 1)
        return jnp.tanh(scores) + 1.0, scores + z, scores + scores.transpose(0, 2, 1)

    graph = step_graph(step, (2, 8, 4), (2, 8, 4), (2, 8, 8))
    orders = known_orders(graph).by_value
    alone, beside_an_input, beside_another_order = graph.outputs
    assert orders[alone] == (0, 2, 1)
    assert orders[beside_an_input] == orders[beside_another_order] == (0, 1, 2)


def test_orders_are_made_once():
    graph = step_graph(lambda x, y: x @ y, (2, 4), (4, 8))
    assert known_orders(graph) is known_orders(graph)
    other = step_graph(lambda x, y: (x @ y).T, (2, 4), (4, 8))
    assert known_orders(other) != known_orders(graph)


def test_a_part_of_a_stack_takes_the_order_of_what_it_meets():
    def step(x, y, stack):
        def layer(h, part):
            scores = jnp.einsum("btd,bsd->bst", h, y).transpose(0, 2, 1)
            return h, jnp.tanh(part) * scores

        return jax.lax.scan(layer, x, stack)[1]

    graph = step_graph(step, (2, 8, 4), (2, 8, 4), (3, 2, 8, 8))
    orders = known_orders(graph)
    (met,) = (op.outputs[0] for op in graph.ops if op.opcode == "multiply")
    assert orders.by_value[met] == (0, 2, 1)
    assert met not in orders.products


@pytest.mark.parametrize("size", [0, 1])
def test_arrays_of_nothing_and_of_one_element_lie_in_any_order(size):
    dims = (size, 2, size)
    assert reshape_order((2, 1, 0), dims, (size * 2 * size,), dims) is None
