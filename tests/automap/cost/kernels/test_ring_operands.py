"""What a ring writes of its operands, in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap.cost.tables import build_tables
from tests.steps import problem_of


ROWS, SUMMED, COLUMNS, LAYERS = 16, 32, 64, 5


def array(*shape, dtype="float32"):
    return jax.ShapeDtypeStruct(shape, dtype)


def written(step, state, batch):
    """(bytes of the left operand, of the right one) of the last product of a step."""
    tables = build_tables(problem_of(step, (state, batch)), "tpu")
    product = np.flatnonzero(tables.kernels.product_edge >= 0)[-1]
    return tuple(tables.kernels.written_bytes[:, product].tolist())


@pytest.mark.parametrize(("dtype", "element_bytes"), [("float32", 2), ("bfloat16", 0)])
def test_what_is_in_memory_is_rounded_if_it_is_not(dtype, element_bytes):
    w, x = array(SUMMED, COLUMNS, dtype=dtype), array(ROWS, SUMMED, dtype=dtype)
    written_bytes = written(lambda state, batch: (state, batch @ state), w, x)
    assert written_bytes == (element_bytes * ROWS * SUMMED, element_bytes * SUMMED * COLUMNS)


def test_what_is_made_on_the_way_is_written_and_read():
    w, x = array(SUMMED, COLUMNS, dtype="bfloat16"), array(ROWS, SUMMED, dtype="bfloat16")
    written_bytes = written(
        lambda state, batch: (state, jnp.tanh(batch) @ state.astype("float32")), w, x
    )
    assert written_bytes == (4 * ROWS * SUMMED, 0)


def test_slices_of_a_stack_are_copied():
    w, x = array(LAYERS, SUMMED, SUMMED, dtype="bfloat16"), array(ROWS, SUMMED, dtype="bfloat16")

    def step(state, batch):
        return state, jax.lax.scan(lambda h, layer: (h @ layer, None), batch, state)[0]

    assert written(step, w, x) == (0, 7 * SUMMED * SUMMED)


def test_two_products_of_one_operand_write_it_once():
    w, x = array(SUMMED, COLUMNS, dtype="bfloat16"), array(ROWS, SUMMED)

    def step(state, batch):
        return state, (batch @ state, batch @ (state * 2))

    assert written(step, w, x) == (0, 4 * SUMMED * COLUMNS)


@pytest.mark.parametrize("columns", [COLUMNS, ROWS])
def test_a_product_with_a_kernel_does_not_write_what_the_kernels_gradient_reads(columns):
    """tanh(x) w is no ring where tanh(x)^T g is one: where rows are split."""
    x, w = array(ROWS, SUMMED, dtype="bfloat16"), array(SUMMED, columns, dtype="bfloat16")

    def step(state, batch):
        made = jnp.tanh(batch["x"])
        return state, (made @ state, made.T @ batch["g"], made.T @ (2 * batch["g"]))

    g = array(ROWS, columns, dtype="bfloat16")
    table = build_tables(problem_of(step, (w, {"x": x, "g": g})), "tpu").kernels
    products = np.flatnonzero(table.product_edge >= 0)
    once = [4 * ROWS * SUMMED, 4 * ROWS * SUMMED, 0]
    assert table.written_bytes[0, products].tolist() == once
    assert table.transposed_bytes[0, products].tolist() == [2 * n for n in once]


@pytest.mark.parametrize("turned", [False, True])
def test_operands_whose_last_dimension_is_cut_are_turned_once(turned):
    """Of a weight's gradient x^T g either dimension may be cut: the first is the last one of x, the
    second of g.
    """
    x, g = array(ROWS, SUMMED, dtype="bfloat16"), array(ROWS, COLUMNS, dtype="bfloat16")

    def gradient(x, g):
        # The same, with the transposition that the compiler folds into the product.
        return x.T @ g if turned else jax.lax.dot_general(x, g, (((0,), (0,)), ((), ())))

    def step(state, batch):
        return state, (gradient(batch["x"], batch["g"]), gradient(batch["x"], batch["g"] * 2))

    table = build_tables(problem_of(step, (x, {"x": x, "g": g})), "tpu").kernels
    first, second = np.flatnonzero(table.product_edge >= 0)
    assert table.cut_dims[:, first].tolist() == [0b01, 0b10]
    assert table.transposed_bytes[:, first].tolist() == [8 * ROWS * SUMMED, 8 * ROWS * COLUMNS]
    assert table.transposed_bytes[:, second].tolist() == [0, 8 * ROWS * COLUMNS]


def test_a_dimension_that_is_not_last_is_cut_as_it_is():
    x, w = array(ROWS, SUMMED, dtype="bfloat16"), array(SUMMED, COLUMNS, dtype="bfloat16")
    table = build_tables(
        problem_of(lambda state, batch: (state, batch @ state), (w, x)), "tpu"
    ).kernels
    (product,) = np.flatnonzero(table.product_edge >= 0)
    assert table.cut_dims[:, product].tolist() == [0, 0b10]
