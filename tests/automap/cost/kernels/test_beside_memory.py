"""Launches and passes through registers: closed forms, and what libtpu 0.0.51 gives kernels."""

import jax
import jax.numpy as jnp
import pytest

from automap.topology import get_topology
from tests.automap.cost.kernels.plain import (
    BYTES_PER_S,
    TPU_GAP_SECONDS,
    evaluator,
    machine,
    whole,
)


ROWS, COLUMNS = 1024, 512
NUMBERS = ROWS * COLUMNS


def seconds_of(step, *arrays, topology=None):
    """Of all kernels of a step on one device, and how many are launched."""

    def run(state, batch):
        return {"w": state["w"]}, step(*batch)

    batch = tuple(jax.ShapeDtypeStruct(*array) for array in arrays)
    args = ({"w": jax.ShapeDtypeStruct((4,), "float32")}, batch)
    cost, space = evaluator(run, args, topology or machine("v5e:2x4"))
    table = cost.tables.kernels
    seconds = cost.price_point(whole(space)).kernel_seconds
    return float(seconds @ table.count), int(table.count[table.is_launched].sum())


def wide(x):
    return x.astype("float32")


# Bytes for each number: read, written, and through registers.
@pytest.mark.parametrize(
    ("step", "dtypes", "n_bytes"),
    [
        (lambda x: x * 2 + 1, "f", 4 + 4),
        (lambda x: x * 2 + 1, "b", 2 + 2 + 4),
        (lambda x, y: x * 2 + y, "bb", 2 + 2 + 2 + 4),
        # One op alone is no pipeline: once more.
        (jnp.tanh, "f", 4 + 4 + 4),
        (jnp.tanh, "b", 2 + 2 + 4 + 4),
        (jnp.multiply, "ff", 4 + 4 + 4 + 4),
        (lambda x, y: x[:, None] * y[:, None], "ff", 4 + 4 + 4 + 4),
        (lambda x: x * 2, "f", 4 + 4),
        (lambda x, y: (x + y, (x + y).sum()), "ff", 4 + 4 + 4),
        (lambda x: (x * 2 + 1, jnp.tanh(x)), "f", 4 + 4 + 4),
        (lambda x: (x * 2 + 1, jnp.tanh(x)), "b", 2 + 2 + 2 + 4),
        (lambda x: jnp.exp(x).sum(), "f", 4 + 4),
        (lambda x: jnp.exp(wide(x)).sum(), "b", 2 + 4),
        (lambda x: (jnp.exp(x).sum(), jnp.square(x).max()), "f", 4 + 4),
    ],
)
def test_numbers_that_are_summed_or_rounded_go_through_registers_once(step, dtypes, n_bytes):
    names = {"f": "float32", "b": "bfloat16"}
    seconds, launches = seconds_of(step, *(((ROWS, COLUMNS), names[d]) for d in dtypes))
    moved = n_bytes * NUMBERS / BYTES_PER_S
    assert seconds == pytest.approx(moved + launches * TPU_GAP_SECONDS, rel=1e-4)


def test_what_is_never_stored_is_summed_at_the_speed_of_the_memory():
    seconds, _ = seconds_of(
        lambda x, y: jnp.exp(x[:, :, None] + y).sum(1), ((64, 256), "float32"), ((256,) * 2, "f4")
    )
    once = 4 * 64 * 256 * 256 / BYTES_PER_S
    assert seconds == pytest.approx(once, rel=0.1)


def test_two_results_of_one_kernel_are_launched_once():
    step = lambda x: (x * 2 + 1, jnp.tanh(x))  # noqa: E731
    assert seconds_of(step, ((ROWS, COLUMNS), "float32"))[1] == 1


def test_on_a_gpu_nothing_goes_through_registers():
    topology = machine("8xh100")
    array = ((ROWS, COLUMNS), "bfloat16")
    seconds, _ = seconds_of(lambda x: x * 2 + 1, array, topology=topology)
    assert seconds == pytest.approx(4 * NUMBERS / BYTES_PER_S, rel=1e-2)


def product_and(step):
    return seconds_of(
        lambda x, w: step(x @ w), ((ROWS, 256), "float32"), ((256, COLUMNS), "float32")
    )


@pytest.mark.parametrize(
    "follows",
    [
        lambda made: (made, made.sum(0)),
        lambda made: (made, made.max()),
        lambda made: (made, jnp.square(made).sum(-1)),
    ],
)
def test_sums_of_what_a_product_makes_are_part_of_its_kernel(follows):
    alone, _ = product_and(lambda made: made)
    seconds, _ = product_and(follows)
    assert seconds == pytest.approx(alone, rel=0.01)


def test_a_softmax_goes_on_with_the_maxima_of_short_rows():
    def weights(made):
        e = jnp.exp(made - made.max(-1, keepdims=True))
        return e.sum(-1), e / e.sum(-1, keepdims=True)

    (alone, _), (seconds, _) = product_and(lambda made: made), product_and(weights)
    # The product, and then one kernel that reads what it made and writes the weights.
    assert seconds - alone == pytest.approx(2 * 4 * NUMBERS / BYTES_PER_S, rel=0.05)


def test_what_waits_for_any_other_sum_reads_the_products_result_again():
    def centred(made):
        return jnp.square(made - made.mean(-1, keepdims=True)).sum(-1)

    (alone, _), (seconds, _) = product_and(lambda made: made), product_and(centred)
    # Read, and summed through registers.
    assert seconds - alone == pytest.approx(2 * 4 * NUMBERS / BYTES_PER_S, rel=0.05)


def gradient(x, index):
    return jax.grad(lambda x: jnp.take_along_axis(jnp.tanh(x), index, -1).sum())(x)


def added(x, index):
    return jnp.tanh(x).at[jnp.arange(ROWS)[:, None], index].add(1.0)


@pytest.mark.parametrize(
    ("step", "columns", "is_scattered"),
    [(gradient, 1, False), (gradient, 2, True), (added, 1, True)],
)
def test_one_number_a_row_of_zeros_is_compared_and_not_scattered(step, columns, is_scattered):
    def run(state, batch):
        return {"w": state["w"]}, step(*batch)

    batch = (
        jax.ShapeDtypeStruct((ROWS, COLUMNS), "float32"),
        jax.ShapeDtypeStruct((ROWS, columns), "int32"),
    )
    args = ({"w": jax.ShapeDtypeStruct((4,), "float32")}, batch)
    cost, _ = evaluator(run, args, machine("v5e:2x4"))
    ops = cost.tables.program.problem.graph.ops
    opcodes = {ops[kernel.op].opcode for kernel in cost.tables.program.kernels}
    assert ("scatter" in opcodes) == is_scattered


# Microseconds of arrays [n / 256, 256] on one v5e, by the compiler's cycles (2026-11-28).
MEASURED = [
    (lambda x: x * 2 + 1, "float32", {2**13: 1.30, 2**18: 4.22, 2**22: 52.13, 2**26: 810.9}),
    (lambda x: x * 2 + 1, "bfloat16", {2**13: 1.31, 2**18: 4.27, 2**22: 51.18, 2**26: 806.1}),
    (jax.nn.gelu, "bfloat16", {2**13: 1.32, 2**18: 4.61, 2**22: 52.55, 2**26: 807.5}),
    (lambda x: jnp.exp(wide(x)).sum(-1), "float32", {2**13: 1.31, 2**22: 51.18, 2**26: 806.1}),
    (lambda x: jnp.exp(wide(x)).sum(0), "bfloat16", {2**13: 1.28, 2**18: 3.56, 2**22: 39.81}),
]


@pytest.mark.parametrize(
    ("step", "dtype", "numbers", "measured"),
    [(step, dtype, *case) for step, dtype, cases in MEASURED for case in cases.items()],
)
def test_kernels_take_what_the_compiler_says(step, dtype, numbers, measured):

    v5e = get_topology("v5e:2x4")
    seconds, _ = seconds_of(step, ((numbers // 256, 256), dtype), topology=v5e)
    assert seconds * 1e6 == pytest.approx(measured, rel=0.12)
