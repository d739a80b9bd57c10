"""Sums over rows: as XLA:GPU says of its own kernels, in closed form, and split over devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap.backends import backend_for
from automap.topology.mesh import Mesh
from tests.automap.cost.kernels.plain import BYTES_PER_S, FAST_MEMORY, evaluator, machine, whole


NUMBERS = backend_for("cuda").column_numbers
GAP_SECONDS = backend_for("cuda").launch_gap_seconds


def _priced(step, topology_name="8xh100", **inputs):
    """An evaluator of a step where only blocks limit the memory, and its space."""

    def run(state, batch):
        return {"w": state["w"]}, step(**batch)

    arrays = {name: jax.ShapeDtypeStruct(*each) for name, each in inputs.items()}
    args = ({"w": jax.ShapeDtypeStruct((4,), "float32")}, arrays)
    return evaluator(run, args, machine(topology_name, **FAST_MEMORY))


def _kernels(cost, split_classes):
    """(opcode, seconds) of each kernel."""
    seconds = cost.price_point(split_classes).kernel_seconds
    program = cost.tables.program
    ops = program.problem.graph.ops
    return [
        (ops[k.op].opcode, float(seconds[row]))
        for k, row in zip(program.kernels, program.row_of_kernel, strict=True)
    ]


def _on_one_device(step, topology_name="8xh100", **inputs):
    cost, space = _priced(step, topology_name, **inputs)
    return _kernels(cost, whole(space))


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "compiled_us"),
    [
        # What jax 0.10.2's CUDA plugin says of these programs for an H100, compiled 2026-11-24.
        (1024, 768, "float32", 4.2),
        (2048, 768, "float32", 8.3),
        (4096, 256, "float32", 16.6),
        (4096, 768, "float32", 16.6),
        (4096, 768, "bfloat16", 16.6),
        (4096, 3072, "float32", 16.6),
    ],
)
def test_few_columns_take_what_the_compiler_says(rows, columns, dtype, compiled_us):
    kernels = _on_one_device(lambda x: x.astype("float32").sum(0), x=((rows, columns), dtype))
    (summed,) = (seconds for opcode, seconds in kernels if opcode == "reduce")
    assert summed - GAP_SECONDS == pytest.approx(compiled_us * 1e-6, rel=0.02)


def _moves(n_bytes, row_bytes):
    blocks = max(row_bytes / NUMBERS.column_block_bytes, 1.0)
    return n_bytes / (blocks * NUMBERS.column_block_bytes_per_s) + GAP_SECONDS


def test_more_rows_than_a_block_goes_down_are_summed_by_all_blocks():
    rows, columns = 2 * NUMBERS.column_split_rows, 256
    (whole_array,) = _on_one_device(lambda x: x.sum(0), x=((rows, columns), "float32"))
    assert whole_array[1] == pytest.approx(GAP_SECONDS)


def test_on_a_device_count_its_own_rows_and_columns():
    rows, columns = 8 * NUMBERS.column_split_rows, 8 * 256

    def step(state, batch):
        return state, state["w"].sum(0) + batch["x"]

    arrays = [
        {name: jax.ShapeDtypeStruct(shape, "float32")}
        for name, shape in (("w", (rows, columns)), ("x", (columns,)))
    ]
    cost, space = evaluator(step, tuple(arrays), machine("8xh100", **FAST_MEMORY))
    mesh = Mesh(("data",), (8,))
    leaf = max(space.leaves, key=lambda each: len(each.compute))
    splits = [space.split_classes(space.point(mesh, [[c]])) for c in leaf.compute]
    kernels = [kernel for split in splits for kernel in _kernels(cost, split)]
    seconds = sorted(summed for opcode, summed in kernels if opcode == "reduce")
    # The rows of a device are no more than a block goes down; those of fewer columns are.
    n_bytes = 4 * columns * (rows // 8 + 1)
    assert seconds == pytest.approx([GAP_SECONDS, _moves(n_bytes, 4 * columns)])


def test_what_is_computed_of_the_same_array_shares_the_kernel():
    array = (1024, 512)
    n_bytes = 4 * 1024 * 512
    kernels = dict(_on_one_device(lambda x: (x.sum(0), jnp.exp(x)), x=(array, "float32")))
    # The sum reads the array, what stands beside it has it at hand and writes its own.
    assert kernels["reduce"] == pytest.approx(_moves(n_bytes + 4 * 512, 4 * 512))
    assert kernels["exponential"] == pytest.approx(_moves(n_bytes, 4 * 512))


@pytest.mark.parametrize(
    ("step", "topology_name"),
    [
        (lambda x: x.sum(1), "8xh100"),  # along a row
        (lambda x: x.sum((0, 1)), "8xh100"),
        (lambda x: (x * 2).T, "8xh100"),
        (lambda x: x.sum(0), "v5e:2x4"),
    ],
)
def test_no_other_kernel_is_limited_by_blocks(step, topology_name):
    kernels = _on_one_device(step, topology_name, x=((1024, 512), "float32"))
    gap_seconds = backend_for(machine(topology_name).platform).launch_gap_seconds
    assert np.array([seconds for _, seconds in kernels]).max() <= gap_seconds * (1 + 1e-9)


def _scale_gradient(d, x):
    return (d.astype("float32") * x.astype("float32")).sum(0)


def test_what_is_summed_of_two_arrays_is_written_first_where_blocks_are_few():
    rows, columns = 2048, 512
    arrays = dict.fromkeys("dx", ((rows, columns), "bfloat16"))
    kernels = dict(_on_one_device(_scale_gradient, **arrays))
    # Memory is fast here: what is written first takes no time, and its rows are twice as wide.
    n_bytes = 2 * rows * columns
    assert kernels["reduce"] == pytest.approx(_moves(n_bytes, 2 * columns), rel=2e-3)


def test_where_memory_is_no_faster_than_blocks_both_arrays_are_read_by_them():
    rows, columns = 2048, 8192

    def step(state, d, x):
        return state, _scale_gradient(d, x)

    array = jax.ShapeDtypeStruct((rows, columns), "bfloat16")
    args = ({"w": jax.ShapeDtypeStruct((4,), "float32")}, array, array)
    cost, space = evaluator(step, args, machine("8xh100"))
    seconds = dict(_kernels(cost, whole(space)))["reduce"] - GAP_SECONDS
    n_bytes = 2 * 2 * rows * columns + 4 * columns
    assert seconds == pytest.approx(n_bytes / BYTES_PER_S)
