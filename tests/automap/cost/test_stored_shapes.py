"""Bytes on a device of what is stored: closed forms of tiles, and every order of dimensions."""

from itertools import permutations
import math

from hypothesis import given, settings, strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap.backends import BACKENDS
from automap.backends.arrays import DimOrder
from automap.backends.xla_tpu.tiled_arrays import TiledArrays
from automap.cost.stored_shapes import Stored, stored_shapes
from hlo_tools.graph import flatten
from hlo_tools.read.proto import decode_module


TPU = BACKENDS["tpu"]
# Of a v5e.
MEMORY_BYTES = 16_911_433_728


def _local(stored, dim_of_axis, sizes, backend=TPU):
    shapes, shape = stored_shapes([stored], 1, backend.arrays)
    assert shape.tolist() == [0]
    dims = np.array([dim_of_axis])
    numbers = backend.tile_numbers
    return float(shapes.local(dims, sizes, backend.arrays, numbers, MEMORY_BYTES)[0])


def _padded(dims, minor, second, item_bytes):
    rows = next(
        (n for n in TPU.tile_numbers.small_rows(item_bytes) if dims[second] <= n),
        math.ceil(dims[second] / 8) * 8,
    )
    rest = math.prod(d for i, d in enumerate(dims) if i not in (minor, second))
    return math.ceil(dims[minor] / 128) * 128 * rows * rest


@given(
    st.lists(st.integers(2, 300), min_size=2, max_size=4),
    st.sampled_from([2, 4]),
)
def test_compact_is_the_best_of_all_orders(dims, item_bytes):
    stored = Stored(0, tuple(dims), item_bytes, DimOrder.COMPACT, frozenset())
    best = min(
        _padded(dims, minor, second, item_bytes)
        for minor, second in permutations(range(len(dims)), 2)
    )
    assert _local(stored, [-1], (4,)) == pytest.approx(best / math.prod(dims))


@pytest.mark.parametrize(
    ("dims", "order", "n_numbers"),
    [
        # What libtpu 0.0.51 allocates for inputs and for what look-ups make of them.
        ((1_000_000, 300), DimOrder.COMPACT, 1_000_064 * 304),
        ((1_000_000, 300), DimOrder.ROWS, 1_000_000 * 384),
        ((4_000_000, 48), DimOrder.COMPACT, 4_000_000 * 48),
        ((4_000_000, 48), DimOrder.ROWS, 4_000_000 * 128),
        # A copy by rows is made only where the compact order is another one.
        ((4_000_000, 48), DimOrder.ROWS_BESIDE, 4_000_000 * 128),
        ((4_000_000, 48), DimOrder.COMPACT_BESIDE, 4_000_000 * 48),
        ((4_096, 1_024), DimOrder.ROWS_BESIDE, 0),
        ((4_096, 1_024), DimOrder.COMPACT_BESIDE, 0),
    ],
)
def test_orders_take_what_the_compiler_allocates(dims, order, n_numbers):
    local = _local(Stored(0, dims, 4, order, frozenset()), [-1], (4,))
    assert local == pytest.approx(n_numbers / math.prod(dims))


def test_the_part_of_a_device_is_padded_and_not_the_whole():
    stored = Stored(0, (1024, 512), 4, DimOrder.ROWS, frozenset())
    # 512 numbers over 8 devices are 64, which take a tile of 128.
    assert _local(stored, [1], (8,)) == pytest.approx(2 / 8)
    assert _local(stored, [0], (8,)) == pytest.approx(1 / 8)


def test_a_stacked_dimension_stays_the_major_one():
    # Minor, the 256 layers would leave no gaps.
    dims = (256, 9, 5)
    free = _local(Stored(0, dims, 4, DimOrder.COMPACT, frozenset()), [-1], (2,))
    stacked = _local(Stored(0, dims, 4, DimOrder.COMPACT, frozenset({0})), [-1], (2,))
    assert free < stacked == pytest.approx(8 * 128 / 45)


def test_a_batch_of_products_stays_the_major_one():
    def scores(queries, keys):
        products = jnp.einsum("bqhd,bkhd->bhqk", queries, keys)
        return jnp.exp(products.astype(jnp.float32)), (queries @ keys[0, 0].T)

    shape = jax.ShapeDtypeStruct((128, 261, 12, 64), jnp.bfloat16)
    lowered = jax.jit(scores).lower(shape, shape).compiler_ir("hlo")
    assert lowered is not None
    graph = flatten(decode_module(lowered.as_serialized_hlo_module_proto()))
    major = TiledArrays().orders(graph).major_dims
    scored, projected = graph.outputs
    # Sequences and heads count matrices; a product of one matrix has no batch.
    assert major[scored] == {0, 1}
    assert major[projected] == frozenset()
    dims = graph.values[scored].dims
    local = _local(Stored(0, dims, 4, DimOrder.COMPACT, major[scored]), [-1], (2,))
    # Minor, the 128 sequences would leave no gaps.
    assert local == pytest.approx(264 * 384 / 261**2)
    assert _local(Stored(0, dims, 4, DimOrder.COMPACT, frozenset()), [-1], (2,)) < local


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.sampled_from(["exp", "add a mask", "one more", "none of one"])
        | st.permutations(range(6)),
        max_size=5,
    )
)
def test_a_batch_is_followed_through_all_orders_and_dimensions_of_one(changes):
    """All sizes differ, so the result's own say which dimensions those of the batch are."""
    batch = {3, 5}

    def made(left, right):
        x = jnp.einsum("abij,abkj->abik", left, right)
        for change in changes:
            if change == "exp":
                x = jnp.exp(x)
            elif change == "add a mask":
                x = jnp.where(jnp.arange(x.shape[-1]) > 2, x, -1.0)
            elif change == "one more":
                x = x[None] if x.ndim < 6 else x
            elif change == "none of one":
                x = x.squeeze()
            else:
                x = x.transpose([dim for dim in change if dim < x.ndim])
        # What a product makes is turned before it is a result.
        return jnp.exp(x)

    shapes = (jax.ShapeDtypeStruct((3, 5, n, 64), jnp.float32) for n in (7, 11))
    lowered = jax.jit(made).lower(*shapes).compiler_ir("hlo")
    assert lowered is not None
    graph = flatten(decode_module(lowered.as_serialized_hlo_module_proto()))
    (result,) = graph.outputs
    major = TiledArrays().orders(graph).major_dims[result]
    assert {graph.values[result].dims[dim] for dim in major} - {1} == batch


@given(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=3))
def test_without_gaps_bytes_are_divided_by_the_parts(sizes):
    dims = list(range(len(sizes)))
    stored = Stored(0, (6,) * len(sizes), 4, DimOrder.COMPACT, frozenset())
    local = _local(stored, dims, tuple(sizes), BACKENDS["cuda"])
    assert local == pytest.approx(1 / math.prod(sizes))
