"""Products of vectors, told apart from those that a matrix unit computes."""

import jax.numpy as jnp
import pytest

from hlo_tools.analyses.matrix_vector import summed_value, with_vectors_summed
from hlo_tools.opcodes import DOT, MATRIX_VECTOR
from tests.hlo_tools.graphs import step_graph


def _products(step, *shapes):
    graph = step_graph(step, *shapes)
    found = with_vectors_summed(graph)
    return found, [op for op in found.ops if op.opcode in (DOT, MATRIX_VECTOR)]


@pytest.mark.parametrize(
    "equation, left, right, matrix",
    [
        pytest.param("mk,k->m", (8, 4), (4,), 0, id="matrix and vector"),
        pytest.param("k,kn->n", (4,), (4, 8), 1, id="vector and matrix"),
        pytest.param("ok,kn->on", (1, 4), (4, 8), 1, id="one row"),
        pytest.param("bhkv,bhk->bhv", (2, 3, 4, 5), (2, 3, 4), 0, id="of a batch"),
        pytest.param("bhd,bshd->bhs", (2, 3, 4), (2, 8, 3, 4), 1, id="one query of each head"),
    ],
)
def test_a_product_of_a_vector_sums_the_matrix(equation, left, right, matrix):
    graph, (product,) = _products(lambda x, y: jnp.einsum(equation, x, y), left, right)
    assert product.opcode == MATRIX_VECTOR
    assert summed_value(graph, product) == product.inputs[matrix]


@pytest.mark.parametrize(
    "equation, left, right",
    [
        pytest.param("mk,kn->mn", (2, 4), (4, 8), id="two rows"),
        pytest.param("bqhd,bshd->bhqs", (2, 2, 3, 4), (2, 8, 3, 4), id="two queries of a head"),
    ],
)
def test_a_product_of_matrices_stays_one(equation, left, right):
    graph, (product,) = _products(lambda x, y: jnp.einsum(equation, x, y), left, right)
    assert product.opcode == DOT
    # Analyses that a graph remembers are not made again.
    assert with_vectors_summed(graph) is graph


def test_a_product_of_complex_vectors_stays_one():
    _, (product,) = _products(lambda x, y: (x + 1j * x) @ (y - 1j * y), (8, 4), (4,))
    assert product.opcode == DOT
