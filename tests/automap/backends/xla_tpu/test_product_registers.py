"""What loops stack and products make: what libtpu 0.0.51 gives their kernels."""

import jax
import jax.numpy as jnp
import pytest

from automap.backends import backend_for
from automap.cost.evaluate import Evaluator
from automap.cost.tables import build_tables
from automap.space.presets import PRESETS
from automap.space.space import Space
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from tests.automap.cost.kernels.plain import evaluator
from tests.steps import problem_of


TPU = backend_for("tpu")
TRIPS, ROWS, WIDTH, HEADS = 6, 4096, 512, 8


def _heads(x, made):
    """Rows of a product as heads, which lie in another order."""
    return made.reshape(HEADS, ROWS // HEADS, HEADS, WIDTH // HEADS)


def _normalized(x, made):
    wide = made.astype("float32")
    return (wide - wide.mean(-1, keepdims=True)).astype(made.dtype)


def _stream(x, made):
    return x + made


def _gelu(x, made):
    return jax.nn.gelu(made + 1)


def kernel_seconds(stacked, dtype, topology, opcode):
    """Of the kernels of an opcode of a loop over products that stacks something, a trip."""

    def step(weights, x):
        def body(x, w):
            made = x @ w
            return jnp.tanh(made), stacked(x, made)

        return jax.lax.scan(body, x, weights)[1]

    args = (
        jax.ShapeDtypeStruct((TRIPS, WIDTH, WIDTH), dtype),
        jax.ShapeDtypeStruct((ROWS, WIDTH), dtype),
    )
    return _seconds(step, args, topology, opcode)


def _seconds(step, args, topology, opcode):
    problem = problem_of(step, args)
    tables, space = build_tables(problem, "tpu"), Space(problem)
    priced = Evaluator(tables, problem.n_classes, get_topology(topology)).price_point(
        space.split_classes(space.point(Mesh(("data",), (1,)), [()]))
    )
    program, ops = tables.program, problem.graph.ops
    return sum(
        float(priced.kernel_seconds[row])
        for kernel, row in zip(program.kernels, program.row_of_kernel, strict=True)
        if ops[kernel.op].opcode == opcode
    )


# Microseconds: a slice from the memory of the chip to a stack there, and in the device's memory.
@pytest.mark.parametrize(
    ("topology", "dtype", "least", "most"),
    [
        ("v5e:2x2", "bfloat16", 19.95, 25.62),
        ("v5p:2x2x1", "bfloat16", 7.0, 8.79),
        ("v5e:2x2", "float32", 16.35, 27.78),
        ("v5p:2x2x1", "float32", 7.0, 11.56),
    ],
)
@pytest.mark.parametrize("stacked", [_heads, _normalized])
def test_a_stack_that_is_filled_by_itself_takes_what_the_compiler_says(
    topology, dtype, least, most, stacked
):
    seconds = kernel_seconds(stacked, dtype, topology, "dynamic-update-slice")
    assert 0.95 * least <= seconds * 1e6 <= 1.15 * most


@pytest.mark.parametrize("stacked", [_stream, _gelu])
def test_what_a_product_makes_is_stacked_for_its_bytes_at_most(stacked):
    topology = get_topology("v5e:2x2")
    written = 2 * ROWS * WIDTH / topology.device.memory_bytes_per_s("elementwise")
    seconds, as_heads = (
        kernel_seconds(each, "bfloat16", "v5e:2x2", "dynamic-update-slice")
        for each in (stacked, _heads)
    )
    # Part of it while the product is at work.
    assert written / 2 < seconds <= written
    assert seconds < as_heads / 3


def product_seconds(dtype, topology, sizes=(2048, 128, 512)):
    """Of a product of m x k and k x n numbers between two other kernels, all on the chip."""
    m, k, n = sizes

    def step(x, w):
        x, w = jax.lax.optimization_barrier((x * 2, w * 3))
        return jax.lax.optimization_barrier(x @ w) * 2

    args = [jax.ShapeDtypeStruct(dims, dtype) for dims in ((m, k), (k, n))]
    return _seconds(step, args, topology, "dot")


# Cycles on v5e, in bfloat16 and float32 (2026-12-01): results of two bytes go through registers.
CYCLES = {
    (8192, 128, 128): (12632, 2304),
    (8192, 256, 128): (14432, 4352),
    (8192, 512, 128): (16480, 8448),
    (8192, 1024, 128): (21187, 16896),
    (4096, 128, 512): (22960, 4352),
    (4096, 512, 512): (28219, 16640),
    (1024, 1024, 1024): (21340, 16640),
    (512, 512, 512): (6236, 2304),
    (256, 512, 512): (4146, 1280),
    (4096, 1024, 1024): (73384, 66432),
}
CLOCK_HZ = 197e12 / (4 * 2 * 128**2)


@pytest.mark.parametrize(("sizes", "cycles"), CYCLES.items())
def test_products_on_the_chip_take_what_the_compiler_says(sizes, cycles):
    for dtype, each in zip(("bfloat16", "float32"), cycles, strict=True):
        seconds = product_seconds(dtype, "v5e:1x1", sizes)
        assert seconds * CLOCK_HZ == pytest.approx(each, rel=0.09)


def test_newer_vector_units_compute_in_two_bytes():
    on_new = product_seconds("bfloat16", "v6e:2x2")
    assert on_new <= product_seconds("float32", "v6e:2x2")
    assert on_new < product_seconds("bfloat16", "v5e:2x2") / 3


def test_what_is_made_of_a_product_goes_through_registers_where_that_is_narrow():
    """Of a product in four bytes, which are written too."""

    def step(x, w):
        made = x @ w
        return made, jnp.tanh(made).astype("bfloat16")

    n = 4096
    args = [jax.ShapeDtypeStruct(dims, "float32") for dims in ((n, 128), (128, n))]
    taken = _seconds(step, args, "v5e:1x1", "dot") + sum(
        _seconds(step, args, "v5e:1x1", opcode) for opcode in ("tanh", "convert")
    )
    bytes_per_s = get_topology("v5e:1x1").device.memory_bytes_per_s("product")
    # Written in four and in two bytes, and through registers of four.
    assert taken >= (4 + 2 + 4) * n * n / bytes_per_s


def _product_rows(step, args):
    """Seconds of the products of a step on one device."""
    problem = problem_of(step, args)
    tables, space = build_tables(problem, "tpu"), Space(problem)
    priced = Evaluator(tables, problem.n_classes, get_topology("v5e:1x1")).price_point(
        space.split_classes(space.point(Mesh(("data",), (1,)), [()]))
    )
    is_product = [shape.kind == "dot" for shape in tables.kernels.shape]
    return priced.kernel_seconds[is_product]


def test_what_a_step_is_given_is_fetched_ahead_as_far_as_there_is_room():
    """8 x n numbers meet a matrix of n x n, all float32 and inputs."""

    def seconds(n):
        args = [jax.ShapeDtypeStruct(dims, "float32") for dims in ((8, n), (n, n))]
        (product,) = _product_rows(jnp.matmul, args)
        return product

    bytes_per_s = get_topology("v5e:1x1").device.memory_bytes_per_s("product")
    gap, start = TPU.launch_gap_seconds, TPU.tile_numbers.product_start_seconds
    # One megabyte is there when the product begins: nothing is waited for but what leaves.
    matrix = 4 * 512 * 512 / bytes_per_s
    assert matrix <= seconds(512) <= matrix * (528 / 512) + gap + start
    # Of 256 there is no room, and the first piece is waited for too.
    assert seconds(8192) >= 4 * 8192 * 8192 / bytes_per_s + 2 * gap


@pytest.mark.parametrize(("rows", "microseconds"), [(8, 312), (16, 103)])
def test_a_matrix_that_meets_one_row_goes_through_registers(rows, microseconds):
    """One row and two of eight devices; of one the compiler makes what it makes of a vector."""

    def step(params, batch):
        return batch["x"] @ params["w"]

    params = {"w": jax.ShapeDtypeStruct((8192, 4096), "bfloat16")}
    batch = {"x": jax.ShapeDtypeStruct((rows, 8192), "bfloat16")}
    cost, space = evaluator(step, (params, batch), get_topology("v5e:2x4"))
    (point,) = PRESETS["data-parallel"].points(space, Mesh(("data",), (8,)))
    seconds = cost.evaluate(space.split_classes(point)).compute_seconds
    assert seconds * 1e6 == pytest.approx(microseconds, rel=0.05)
