"""Fourier transforms: what libtpu 0.0.51 says that they take on v5e, and whether a plan that splits
them sees it.
"""

import jax
import jax.numpy as jnp
import pytest

from automap.backends import backend_for
from automap.backends.fitted import tile_numbers
from automap.backends.xla_tpu import LIBTPU
from automap.backends.xla_tpu.fourier import moved_bytes
from automap.backends.xla_tpu.workspaces import scratch
from automap.cost.evaluate import Evaluator
from automap.cost.tables import build_tables
from automap.space.space import Space
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from tests.steps import problem_of


NUMBERS = 2**24
# Milliseconds of complex transforms of so many numbers in rows of a length.
COMPLEX = {128: 0.938, 256: 0.824, 1024: 2.769, 2048: 2.895, 4096: 2.904, 16384: 3.226}


def milliseconds(step, args, parts=1):
    problem = problem_of(step, args)
    cost = Evaluator(build_tables(problem, "tpu"), problem.n_classes, get_topology("v5e:2x4"))
    space, mesh = Space(problem), Mesh(("data",), (parts,))
    split = () if parts == 1 else (problem.compute_classes(problem.graph.inputs[0])[0],)
    seconds = cost.price_point(space.split_classes(space.point(mesh, [split]))).kernel_seconds
    return float((seconds * cost.tables.kernels.count).sum()) * 1e3


def rows_of(length, dtype):
    return (jax.ShapeDtypeStruct((NUMBERS // length, length), dtype),)


@pytest.mark.parametrize(("length", "measured"), COMPLEX.items())
def test_transforms_take_what_the_compiler_says(length, measured):
    predicted = milliseconds(jnp.fft.fft, rows_of(length, "complex64"))
    assert predicted == pytest.approx(measured, rel=0.2)


@pytest.mark.parametrize(("length", "measured"), [(1024, 2.689), (4096, 2.878)])
def test_transforms_of_real_numbers_take_as_long(length, measured):
    predicted = milliseconds(jnp.fft.rfft, rows_of(length, "float32"))
    assert predicted == pytest.approx(measured, rel=0.2)


@pytest.mark.parametrize(("length", "measured"), [(1024, 3.216), (4096, 3.419)])
def test_the_other_half_is_written_before_a_transform_back(length, measured):
    halves = (jax.ShapeDtypeStruct((NUMBERS // length, length // 2 + 1), "complex64"),)
    predicted = milliseconds(lambda x: jnp.fft.irfft(x, length), halves)
    assert predicted == pytest.approx(measured, rel=0.15)


def test_a_device_that_has_half_of_the_rows_takes_half_as_long():
    args = rows_of(4096, "complex64")
    half, whole = (milliseconds(jnp.fft.fft, args, parts) for parts in (2, 1))
    gap = 1e3 * backend_for("tpu").launch_gap_seconds
    assert half - gap == pytest.approx((whole - gap) / 2)


@pytest.mark.parametrize(
    ("lengths", "passes", "turns"), [((256,), 1, 0), ((65536,), 2, 1), ((512, 8), 3, 1)]
)
def test_each_pass_makes_256_numbers_of_a_dimension(lengths, passes, turns):
    x = jax.ShapeDtypeStruct((3, *lengths), "complex64")
    axes = range(1, x.ndim)
    graph = problem_of(lambda x: jnp.fft.fftn(x, axes=axes), (x,)).graph
    numbers = tile_numbers(LIBTPU)
    (op,) = (op for op in graph.ops if op.opcode == "fft")
    each = passes * numbers.fourier_pass_bytes + turns * numbers.fourier_turn_bytes
    assert moved_bytes(graph, op, numbers) == x.size * each


@pytest.mark.parametrize(
    ("step", "dtype", "held"),
    [
        # Half of the result is cut off at the end, and half of the operand written first.
        (lambda x: jnp.abs(jnp.fft.rfft(x)), "float32", 16 - 8 * 129 / 256),
        (lambda x: jnp.fft.irfft(x[:, :129] * 2), "complex64", 16 - 8 * 129 / 256),
        # What is given stays, and what is handed on is not there yet.
        (jnp.fft.fft, "complex64", 16),
        (lambda x: jnp.abs(jnp.fft.fft(x * 2)), "complex64", 0),
    ],
)
def test_two_complex_arrays_are_there_while_a_transform_runs(step, dtype, held):
    graph = problem_of(step, (jax.ShapeDtypeStruct((8, 256), dtype),)).graph
    beside = scratch(graph)
    assert [graph.values[s.like].dims for s in beside] == [(8, 256)] * (held > 0)
    assert sum(s.item_bytes for s in beside) == int(held)
