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


@pytest.mark.parametrize(("dtype", "of_each"), [("float32", 2), ("bfloat16", 0)])
def test_what_is_in_memory_is_rounded_if_it_is_not(dtype, of_each):
    w, x = array(SUMMED, COLUMNS, dtype=dtype), array(ROWS, SUMMED, dtype=dtype)
    found = written(lambda state, batch: (state, batch @ state), w, x)
    assert found == (of_each * ROWS * SUMMED, of_each * SUMMED * COLUMNS)


def test_what_is_made_on_the_way_is_written_and_read():
    w, x = array(SUMMED, COLUMNS, dtype="bfloat16"), array(ROWS, SUMMED, dtype="bfloat16")
    found = written(lambda state, batch: (state, jnp.tanh(batch) @ state.astype("float32")), w, x)
    assert found == (4 * ROWS * SUMMED, 0)


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
