"""Memory of single operations: what libtpu 0.0.51 for v5e allocates for them on one device."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap.backends.arrays import DimOrder
from automap.backends.xla_tpu.tiled_arrays import minor_dims
from automap.backends.xla_tpu.workspaces import scratch
from automap.cost.evaluate import Evaluator
from automap.cost.tables import build_tables
from automap.program import trace_step
from automap.space.space import Space
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from tests.steps import problem_of


V5E = get_topology("v5e:2x2")
MIB = 2**20
NUMBERS = 2**26


def _peak_mib(step, *arrays, splits=()):
    """Of a device; `splits` are (input, dimension) that four devices split."""
    args = tuple(jax.ShapeDtypeStruct(dims, dtype) for dims, dtype in arrays)
    problem = trace_step(step, args, platform="tpu").problem
    space = Space(problem)
    classes = {problem.compute_classes(problem.graph.inputs[i])[d] for i, d in splits}
    point = space.point(Mesh(("data",), (4,)), [tuple(sorted(classes))])
    evaluator = Evaluator(build_tables(problem, "tpu"), problem.n_classes, V5E)
    return evaluator.evaluate(space.split_classes(point)).peak_bytes / MIB


def _f(*dims):
    return dims, "float32"


def _i(*dims):
    return dims, "int32"


@pytest.mark.parametrize(
    ("step", "array", "compiled"),
    [
        pytest.param(lambda x: jnp.cumsum(x, 1), _f(NUMBERS // 128, 128), 1024, id="a block"),
        pytest.param(lambda x: jnp.cumsum(x, 1), _f(NUMBERS // 1000, 1000), 1038, id="no blocks"),
        pytest.param(lambda x: jnp.cumsum(x, 1), _f(2**15, 2048), 1024, id="minor"),
        pytest.param(lambda x: jnp.cumsum(x), _f(NUMBERS), 1024, id="vector"),
        pytest.param(lambda x: jax.lax.cummax(x, 1), _f(2**15, 2048), 1024, id="maximum"),
        pytest.param(lambda x: jnp.cumsum(x, 1), _f(1024, 512, 128), 768, id="within tiles"),
        pytest.param(lambda x: jnp.cumsum(x, 1), _f(8192, 64, 128), 768, id="short within tiles"),
        pytest.param(lambda x: jnp.cumsum(x, 1), _f(2048, 512, 64), 1024, id="minor as last is 64"),
        pytest.param(lambda x: jnp.cumsum(x, 0), _f(2048, 2**15), 768, id="first"),
        pytest.param(lambda x: jnp.cumsum(x, 0), _f(64, 2**20), 512, id="short first"),
        pytest.param(lambda x: jnp.cumsum(x, 1), _f(2**20, 64), 512, id="rows in lanes"),
        pytest.param(
            lambda x: jnp.tanh(jnp.cumsum(jnp.exp(x), 1)), _f(2**15, 2048), 1024, id="of a value"
        ),
    ],
)
def test_running_sums_want_their_dimension_outside_of_tiles(step, array, compiled):
    assert _peak_mib(step, array) == pytest.approx(compiled, rel=0.02)


def test_what_is_computed_is_written_to_the_order_that_a_running_sum_wants():
    def places(choice):
        codes = jax.nn.one_hot(choice, 64, dtype=jnp.int32)
        return jnp.sum(jnp.cumsum(codes, axis=0) * codes, axis=1)

    # Codes that are used again are computed again; one array of them and one of sums are there.
    assert _peak_mib(places, _i(2**22)) == pytest.approx(2079, rel=0.15)


@pytest.mark.parametrize(
    ("step", "arrays", "compiled"),
    [
        pytest.param(lambda x: jnp.argsort(x, 1), [_f(2**16, 1024)], 1024, id="places"),
        pytest.param(lambda x: jnp.argsort(x, 0), [_f(1024, 2**16)], 1024, id="places of columns"),
        pytest.param(
            lambda x, y: jax.lax.sort((x, y), num_keys=1), [_f(2**15, 1024)] * 2, 896, id="pairs"
        ),
    ],
)
def test_sorts_copy_what_is_used_of_them(step, arrays, compiled):
    assert _peak_mib(step, *arrays) == pytest.approx(compiled, rel=0.01)


def _taken(x, i):
    return x[i]


def _added(table, i, rows):
    return table.at[i].add(rows)


def _summed(rows, i):
    return jax.ops.segment_sum(rows, i, num_segments=524288)


@pytest.mark.parametrize(
    ("step", "arrays", "compiled"),
    [
        (_taken, [_f(2**20, 48), _i(65536)], 204),
        (_taken, [_f(2**20, 56), _i(65536)], 238),
        (_taken, [_f(2**20, 60), _i(65536)], 784),
        (_taken, [_f(2**19, 32), _i(65536)], 72),
        (_taken, [_f(2**14, 48), _i(2**20)], 711),
        (_taken, [_f(671040, 100), _i(671040)], 1190),
        (_taken, [_f(524288, 128), _i(524288)], 514),
        (_added, [_f(4194304, 16), _i(1048576), _f(1048576, 16)], 580),
        (_added, [_f(1677696, 40), _i(419424), _f(419424, 40)], 1605),
        (_added, [_f(1048576, 64), _i(262144), _f(262144, 64)], 1219),
        (_added, [_f(524288, 128), _i(131072), _f(131072, 128)], 576),
        (_summed, [_f(4194304, 16), _i(4194304)], 2640),
    ],
)
def test_tables_lie_by_columns_where_that_saves_enough(step, arrays, compiled):
    # The last one holds zeros of the result by rows besides.
    assert _peak_mib(step, *arrays) == pytest.approx(
        compiled, rel=0.12 if step is _summed else 0.05
    )


def test_the_part_of_a_table_on_a_device_decides():
    """Whole it lies by columns, and a quarter of its rows saves too little."""
    arrays = [_f(2**20, 32), _i(1024)]
    assert _peak_mib(_taken, *arrays) == pytest.approx(128, rel=0.05)
    # A quarter by columns and a copy of it by rows, four times as large.
    quarter = _peak_mib(_taken, *arrays, splits=[(0, 0)])
    assert quarter == pytest.approx(32 + 128, rel=0.05)


@pytest.mark.parametrize(
    ("step", "compiled"),
    [
        (lambda b: jnp.zeros(100_000).at[b].add(1.0), 384),
        (lambda b: jax.ops.segment_sum(b, b, num_segments=1000), 128),
    ],
)
def test_equal_numbers_are_written_before_they_are_added(step, compiled):
    assert _peak_mib(step, _i(2**25)) == pytest.approx(compiled, rel=0.01)


def _products(a, b):
    return jnp.einsum("nij,njk->nik", a, b)


@pytest.mark.parametrize(
    ("step", "dims", "dtype", "compiled"),
    [
        (_products, (4194304, 2, 2), "float32", 8384),
        (_products, (2**18, 8, 8), "float32", 2240),
        (_products, (2**14, 64, 64), "float32", 1792),
        (_products, (2**18, 8, 8), "bfloat16", 1632),
        (lambda a, b: _products(jnp.tanh(a), jnp.tanh(b)), (2**18, 8, 8), "float32", 2240),
        (lambda a, b: jnp.tanh(_products(a, b)), (2**18, 8, 8), "float32", 2240),
        (lambda a, b: jnp.einsum("nij,jk->nik", a, b[0]), (2**18, 8, 8), "float32", 192),
    ],
)
def test_matrices_of_a_batch_are_copied_for_their_products(step, dims, dtype, compiled):
    assert _peak_mib(step, (dims, dtype), (dims, dtype)) == pytest.approx(compiled, rel=0.03)


def test_an_input_is_turned_once_for_slices_with_strides():
    def odd_and_even(x):
        return x[:, ::2] + x[:, 1::2]

    problem = problem_of(odd_and_even, (jax.ShapeDtypeStruct((64, 256, 256), "float32"),))
    (turned,) = scratch(problem.graph)
    (value,) = problem.graph.inputs
    assert (turned.like, turned.item_bytes, turned.order) == (value, 4, DimOrder.COMPACT)
    assert turned.until == max(problem.graph.users[value]) > turned.op
    plain = problem_of(lambda x: x[:, :128] + x[:, 128:], (jax.ShapeDtypeStruct((64, 256), "f4"),))
    assert not scratch(plain.graph)


@pytest.mark.parametrize(
    ("dims", "minor"),
    [
        ((524288, 128), (1, 0)),
        ((2048, 512, 64), (1, 2)),
        ((2048, 12, 1500), (0, 2)),
        ((4194304, 64), (0, 1)),
        ((1, 4096, 1), (1, -1)),
        ((1, 1), (-1, -1)),
    ],
)
def test_the_minor_dimensions_are_those_that_pad_least(dims, minor):
    assert minor_dims(dims) == minor


def test_no_order_of_minor_dimensions_pads_less():
    rng = np.random.default_rng(0)

    def padded(dims, minor, second):
        rows = min(8, 1 << (dims[second] - 1).bit_length())
        up = {minor: 128, second: rows}
        return math.prod(math.ceil(d / up.get(at, 1)) * up.get(at, 1) for at, d in enumerate(dims))

    for _ in range(200):
        dims = tuple(rng.integers(2, 300, rng.integers(2, 5)).tolist())
        every = [(a, b) for a in range(len(dims)) for b in range(len(dims)) if a != b]
        assert padded(dims, *minor_dims(dims)) == min(padded(dims, *pair) for pair in every)
