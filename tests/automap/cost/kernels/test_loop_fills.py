"""Zeros before loops: which are written, as libtpu 0.0.51 for v5e and v5p does and XLA:GPU of jax
0.10.2, and the time that they take.
"""

import jax
from jax import numpy as jnp
import pytest

from automap.cost.evaluate import Evaluator
from automap.cost.kernels.loop_fills import is_fill
from automap.cost.tables import build_tables
from automap.space.space import Space
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from tests.steps import problem_of


def loops(lengths, rows, columns, dtype="float32"):
    """A loop of each length, one after the other; each stacks its carry."""

    def step(w, x):
        stacks = []
        for length in lengths:

            def body(carry, _):
                carry = jnp.tanh(carry @ w)
                return carry, carry.astype(dtype)

            x, stacked = jax.lax.scan(body, x, None, length=length)
            stacks.append(stacked)
        return w, stacks

    shapes = (columns, columns), (rows, columns)
    return problem_of(step, tuple(jax.ShapeDtypeStruct(shape, "float32") for shape in shapes))


def fills(problem, platform):
    """The zeros that are written: (sizes, bytes)."""
    tables, graph = build_tables(problem, platform), problem.graph
    writes = [k.writes[0] for k in tables.program.kernels if is_fill(graph, k)]
    return [(graph.values[access.value].dims, access.n_bytes) for access in writes]


@pytest.mark.parametrize(
    ("platform", "lengths", "written"),
    [
        ("tpu", (16,), 0),
        ("tpu", (16, 24), 0),
        ("tpu", (16, 16), 2),
        ("tpu", (16, 24, 16, 16), 3),
        ("cuda", (16,), 1),
        ("cuda", (16, 16), 2),
        ("cpu", (16, 16), 0),
    ],
)
def test_stacks_of_forward_loops_are_written_on_gpus_and_where_several_have_equal_ones(
    platform, lengths, written
):
    assert fills(loops(lengths, 8, 128), platform) == written * [((16, 8, 128), 4 * 16 * 8 * 128)]


@pytest.mark.parametrize(
    ("platform", "kernels"),
    # Two stacks that are alike, and one that is longer.
    [("cuda", [2, 1]), ("cpu", [])],
)
def test_stacks_of_one_loop_that_are_alike_are_written_by_one_kernel_on_gpus(platform, kernels):
    def step(w, x):
        def body(carry, _):
            one, two = jnp.tanh(carry @ w), jnp.sin(carry)
            return one, (one, two, jnp.concatenate((one, two)))

        return w, jax.lax.scan(body, x, None, length=16)

    shapes = (128, 128), (8, 128)
    problem = problem_of(step, tuple(jax.ShapeDtypeStruct(shape, "float32") for shape in shapes))
    found = build_tables(problem, platform).program.kernels
    written = [k.writes for k in found if is_fill(problem.graph, k)]
    assert [len(writes) for writes in written] == kernels
    for writes in written:
        assert len({problem.graph.values[access.value].dims for access in writes}) == 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool"])
def test_writing_goes_by_numbers(dtype):
    for _, n_bytes in fills(loops((16, 16), 8, 128, dtype), "tpu"):
        assert n_bytes == 4 * 16 * 8 * 128


# Millions of numbers, and the compiler's milliseconds.
@pytest.mark.parametrize(
    ("name", "sizes", "milliseconds"),
    [
        ("v5e:2x4", (32, 32, 1024), 0.0072),
        ("v5e:2x4", (96, 64, 1024), 0.0923),
        ("v5e:2x4", (96, 100, 1024), 0.1499),
        ("v5p:2x2x2", (32, 32, 1024), 0.0031),
        ("v5p:2x2x2", (48, 32, 2048), 0.0068),
        ("v5p:2x2x2", (96, 64, 1024), 0.0397),
        ("v5p:2x2x2", (96, 100, 1024), 0.0643),
    ],
)
def test_large_zeros_take_the_time_that_the_compiler_estimates(name, sizes, milliseconds):
    problem, topology = loops((sizes[0], sizes[0]), *sizes[1:], "bfloat16"), get_topology(name)
    tables, space = build_tables(problem, "tpu"), Space(problem)
    split_classes = space.split_classes(space.point(Mesh(("data",), (8,)), [()]))
    seconds = (
        Evaluator(tables, problem.n_classes, topology).price_point(split_classes).kernel_seconds
    )
    (fill_seconds,) = set(seconds[tables.kernels.is_fill])
    assert fill_seconds * 1e3 == pytest.approx(milliseconds, rel=0.4)
