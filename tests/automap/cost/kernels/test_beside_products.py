"""What products' kernels compute besides: what libtpu 0.0.51 gives them, and closed forms."""

from hypothesis import given, strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap.cost.evaluate import Evaluator
from automap.cost.kernels.beside_products import (
    HeldWork,
    HostProduct,
    beside,
    summed_over_batch,
)
from automap.cost.tables import build_tables
from automap.space.space import Space
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from scripts.compare_measured import predicted_alone
from tests.steps import problem_of


ROWS = 4096
TIMES = st.floats(1e-7, 1e-2)
DEVICE = get_topology("v5e:1x1").device


def _tanh(made, z):
    return jnp.tanh(made)


def _multiplied(made, z):
    return made * z


def _transposed(made, z):
    return made.T * z


def _twice(made, z):
    return made * z, made + z


def _adam(made, p, m, v):
    m, v = 0.9 * m + 0.1 * made, 0.99 * v + 0.01 * made * made
    return p - m / (jnp.sqrt(v) + 1e-8), m, v


def _summed(made, z):
    return (made * z).sum(0)


# Microseconds with sums over 256, 1,024 and 4,096 terms (v5e, cycles by the clock, 2026-11-30).
COMPILED = {
    ("float32", _tanh): (118.8, 195.7, 735.3),
    ("float32", _multiplied): (224.2, 257.8, 758.0),
    ("float32", _transposed): (227.5, 267.4, 791.3),
    ("float32", _twice): (322.7, 368.1, 810.0),
    ("float32", _adam): (632.8, 688.0, 911.8),
    ("float32", _summed): (214.1, 257.8, 758.0),
    ("bfloat16", _tanh): (159.5, 198.2, 720.6),
    ("bfloat16", _multiplied): (208.9, 235.4, 722.9),
    ("bfloat16", _transposed): (211.3, 241.7, 724.7),
    ("bfloat16", _twice): (262.2, 287.1, 725.0),
    ("bfloat16", _adam): (416.0, 448.2, 758.0),
}


@pytest.mark.parametrize(("dtype", "use"), COMPILED)
def test_products_with_what_is_made_of_them_take_what_the_compiler_says(dtype, use):
    n_others = use.__code__.co_argcount - 1
    other = jax.ShapeDtypeStruct((ROWS, ROWS), dtype)
    for terms, microseconds in zip((256, 1024, 4096), COMPILED[dtype, use], strict=True):

        def step(x, w, *others):
            return use(x @ w, *others)

        x = jax.ShapeDtypeStruct((ROWS, terms), dtype)
        w = jax.ShapeDtypeStruct((terms, ROWS), dtype)
        predicted = predicted_alone(step, (x, w, *[other] * n_others), get_topology("v5e:1x1"))
        assert predicted.step_seconds * 1e6 == pytest.approx(microseconds, rel=0.1)


def test_gradients_are_summed_before_they_are_used():
    def step(w, x):
        gradient = jax.grad(lambda w: ((x @ w) ** 2).sum())(w)
        return w - 0.1 * gradient

    problem = problem_of(step, [jax.ShapeDtypeStruct(d, "float32") for d in ((8, 4), (64, 8))])
    dots = [op for op in problem.graph.ops if op.opcode == "dot"]
    assert [dot.outputs[0] in summed_over_batch(problem) for dot in dots] == [False, True]
    # So that the update is a kernel of its own, which reads what they have summed.
    kernels = build_tables(problem, "tpu").program.kernels
    update = next(k for k in kernels if problem.graph.ops[k.op].outputs[0] in problem.graph.outputs)
    assert not update.joins
    assert dots[1].outputs[0] in [access.value for access in update.reads]


def _alone(problem):
    """An evaluator for one device, and the plan that splits nothing, priced."""
    space = Space(problem)
    point = space.split_classes(space.point(Mesh(("data",), (1,)), [()]))
    tables = build_tables(problem, "tpu")
    evaluator = Evaluator(tables, problem.n_classes, get_topology("v5e:1x1"))
    return evaluator, evaluator.price_point(point)


def test_gradients_that_a_loop_adds_up_on_the_chip_are_read_for_nothing():
    """As two layers of recurrent units: 512 x 512 numbers that every trip adds to."""

    def step(w, x):
        def trip(h, x):
            return jnp.tanh(h @ w + x), None

        return jax.lax.scan(trip, x[0], x)[0].sum()

    args = [jax.ShapeDtypeStruct(dims, "float32") for dims in ((512, 512), (64, 128, 512))]
    problem = problem_of(jax.grad(step), args)
    evaluator, priced = _alone(problem)
    seconds, program, ops = priced.kernel_seconds, evaluator.tables.program, problem.graph.ops
    (added,) = [
        float(seconds[row])
        for kernel, row in zip(program.kernels, program.row_of_kernel, strict=True)
        if ops[kernel.op].opcode == "add" and kernel.product >= 0 and ops[kernel.op].trip_count > 1
        if problem.graph.values[ops[kernel.op].outputs[0]].dims == (512, 512)
    ]
    # Read and written in the device's memory they would take 3.2 us.
    assert added < 0.3 * 2 * 4 * 512**2 / DEVICE.memory_bytes_per_s("elementwise")


def test_what_registers_take_is_no_padding():
    def step(x, w):
        return jnp.tanh(x @ w)

    args = [jax.ShapeDtypeStruct(dims, "bfloat16") for dims in ((4096, 256), (256, 4096))]
    evaluator, priced = _alone(problem_of(step, args))
    padding = evaluator.roofline.padding_seconds(priced.sharding)
    assert padding.tolist() == [0.0] * len(padding)


def _held(flops, own_bytes, held_bytes):
    host = HostProduct(0, own_bytes, held_bytes)
    return HeldWork.build([None, host], np.array([flops, 0.0]), ["bf16", ""])


RATES = {"bf16": 1e12}


def kernel_seconds(busy, moved, piece):
    """The law as a sentence says it, of numbers."""
    pieces = max(1.0, ((busy + moved) / piece) ** 0.5)
    return max(busy, moved) + min(busy, moved) / pieces


@given(busy=TIMES, moved=TIMES, piece=TIMES)
def test_of_the_shorter_side_one_piece_is_seen(busy, moved, piece):
    (seconds,) = beside(np.array([busy]), np.array([moved]), piece).tolist()
    assert seconds == pytest.approx(kernel_seconds(busy, moved, piece))
    assert max(busy, moved) <= seconds <= (busy + moved) * (1 + 1e-9)


@given(busy=TIMES, moved=TIMES, more=TIMES, piece=TIMES)
def test_a_kernel_that_moves_more_is_no_shorter(busy, moved, more, piece):
    first, second = beside(np.full(2, busy), np.array([moved, moved + more]), piece).tolist()
    assert second >= first * (1 - 1e-9)


@given(busy=TIMES, own=TIMES, held=TIMES, piece=TIMES, parts=st.integers(1, 512))
def test_the_rows_of_a_product_and_of_what_it_does_add_up_to_its_kernel(
    busy, own, held, piece, parts
):
    """The law is one of whole kernels; rows share it, of whatever part a device has."""
    bytes_per_s = DEVICE.memory_bytes_per_s("product")
    work = _held(busy * 1e12, own * bytes_per_s, held * bytes_per_s)
    (seen,) = work.seconds(DEVICE, RATES).seen(piece, float(parts)).tolist()
    product, kernel = (
        kernel_seconds(busy / parts, moved / parts, piece) for moved in (own, own + held)
    )
    assert product + held / parts * seen == pytest.approx(kernel, rel=1e-6)
    assert work.kernels.tolist() == [1]


@given(busy=TIMES, own=TIMES, held=TIMES, piece=TIMES, parts=st.floats(1, 64))
def test_no_part_is_seen_less_than_the_least(busy, own, held, piece, parts):
    bytes_per_s = DEVICE.memory_bytes_per_s("product")
    work = _held(busy * 1e12, own * bytes_per_s, held * bytes_per_s)
    seconds = work.seconds(DEVICE, RATES)
    least = seconds.least_seen(piece, 64)
    assert (seconds.seen(piece, parts) >= least * (1 - 1e-6) - 1e-9).all()


def test_copied_rows_keep_their_product():
    work = _held(1e12, 5.0, 7.0).select(np.array([1, 0, 1]), 2)
    assert (work.kernels.tolist(), work.held_bytes.tolist()) == ([0, 2], [7.0, 7.0])
    assert work.dtype == ("bf16", "bf16")
