"""Arrays whose tiles are not full, what is moved, and narrow numbers: what libtpu 0.0.51 gives the
kernels of small steps for v5e, in microseconds.
"""

import jax
import jax.numpy as jnp
import pytest

from automap.backends import backend_for
from automap.backends.xla_tpu.tiled_arrays import TiledArrays
from automap.cost.evaluate import Evaluator
from automap.cost.tables import build_tables
from automap.space.space import Space
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from tests.steps import decode, problem_of


# By dimensions: doubled in float32, and in bfloat16. The compiler takes the order that pads least.
DOUBLED = {
    (4096, 8, 96): (39.26, 38.35),
    (1024, 17, 256): (55.47, 55.62),
    (1000, 1000): (13.75, 12.96),
    (4096, 1000): (50.77, 49.83),
    (512, 50, 130): (42.94, 43.08),
    (64, 7, 7, 512): (20.19, 20.32),
    (2048, 4, 64): (7.14, 7.22),
    (4096, 64): (4.17, 4.22),
    (300, 300, 16): (22.82, 22.96),
}
ROWS = jax.ShapeDtypeStruct((32, 256, 1024), "float32")


def microseconds(step, args, parts=1, dim=0):
    """Of all kernels on a device of v5e, of `parts` along a dimension of the first argument."""
    problem = problem_of(step, args)
    tables, space = build_tables(problem, "tpu"), Space(problem)
    cost = Evaluator(tables, problem.n_classes, get_topology("v5e:2x4"))
    split = () if parts == 1 else (problem.compute_classes(problem.graph.inputs[0])[dim],)
    point = space.point(Mesh(("data",), (parts,)), [split])
    seconds = cost.price_point(space.split_classes(point)).kernel_seconds
    return float(seconds @ tables.kernels.count) * 1e6


def doubled(x):
    return x * 2


@pytest.mark.parametrize("dims", DOUBLED)
def test_padding_is_moved_with_what_it_pads(dims):
    for dtype, compiled in zip(("float32", "bfloat16"), DOUBLED[dims], strict=True):
        predicted = microseconds(doubled, (jax.ShapeDtypeStruct(dims, dtype),))
        assert predicted == pytest.approx(compiled, rel=0.07)


def test_what_a_plan_leaves_of_a_dimension_is_padded():
    whole = (jax.ShapeDtypeStruct((4096, 4096), "float32"),)
    part = (jax.ShapeDtypeStruct((4096, 512), "float32"),)
    assert microseconds(doubled, whole, 8, dim=1) == pytest.approx(microseconds(doubled, part))
    # 96 columns of a device of 1,024, where rows are as few, fill no tile either way.
    narrow = (jax.ShapeDtypeStruct((100, 100), "float32"),)
    wide = (jax.ShapeDtypeStruct((100, 800), "float32"),)
    assert microseconds(doubled, wide, 8, dim=1) == pytest.approx(microseconds(doubled, narrow))


def shifted(x):
    return jnp.roll(x, 1, 1) + x


def shifted_both_ways(x):
    return jnp.roll(x, 1, 1) + jnp.roll(x, -1, 1) - 2 * x


def shifted_parts(x):
    return jnp.concatenate([jnp.roll(part, 1, 1) for part in jnp.split(x, 2, -1)], -1) * 2


def neighbours(x):
    return x[1:] + x[:-1]


def quarters(x):
    first, second, third, last = jnp.split(x, 4, -1)
    return first * second + third * last


def padded(x):
    return jnp.pad(x[:, :-1], ((0, 0), (1, 0), (0, 0))) * x


@pytest.mark.parametrize(
    ("step", "compiled", "within"),
    [
        (shifted, 162.0, 0.12),
        (shifted_both_ways, 343.3, 0.12),
        # What is joined of two parts takes a quarter longer than it takes to move it.
        (shifted_parts, 198.0, 0.2),
        (neighbours, 151.9, 0.12),
        (quarters, 66.7, 0.12),
        (padded, 157.4, 0.12),
    ],
)
def test_each_slice_is_read_and_equal_ones_are_written(step, compiled, within):
    assert microseconds(step, (ROWS,)) == pytest.approx(compiled, rel=within)


def plus_one(x):
    return x + 1


def positive(x):
    return x > 0


def sliced(x, at):
    return x[at]


def both(x):
    return x * 2, x + 1


@pytest.mark.parametrize(
    ("step", "dtype", "compiled"),
    [
        (plus_one, "int8", 40.2),
        (positive, "float32", 57.3),
        (positive, "bfloat16", 45.9),
        (sliced, "int8", 34.4),
        (sliced, "bfloat16", 50.7),
        (both, "bfloat16", 64.1),
    ],
)
def test_narrow_numbers_go_through_registers_of_four_bytes(step, dtype, compiled):
    dims = (4, 4096, 1024) if step is sliced else (4096, 1024)
    args = [jax.ShapeDtypeStruct(dims, dtype)]
    if step is sliced:
        args.append(jax.ShapeDtypeStruct((), "int32"))
    assert microseconds(step, args) == pytest.approx(compiled, rel=0.16)


def test_places_of_a_cache_may_be_the_minor_dimension():
    """As in programs of libtpu: heads of 64 are not padded where 2,048 places are side by side."""
    graph = problem_of(*decode(length=2048, heads=4, head=64)).graph
    major = TiledArrays().orders(graph).major_dims
    caches = {v for v, value in enumerate(graph.values) if value.dims == (2, 8, 2048, 4, 64)}
    layers = {v for v, value in enumerate(graph.values) if value.dims == (8, 2048, 4, 64)}
    # Of the caches what loops cut, the layers.
    assert caches and {frozenset({0})} <= {major[v] for v in caches} <= {
        frozenset({0}),
        frozenset(),
    }
    assert layers and {major[v] for v in layers} == {frozenset()}


def test_operands_of_products_are_rounded_in_registers():
    def rows(dtype):
        return [jax.ShapeDtypeStruct(d, dtype) for d in ((16384, 128), (128, 512), (512, 128))]

    def step(x, first, second):
        return (x @ first) @ second

    # What lies between the products is the same numbers of two bytes in both, through registers.
    registers = backend_for("tpu").tile_numbers.register_seconds(2) * 2**23 * 1e6
    narrow, wide = microseconds(step, rows("bfloat16")), microseconds(step, rows("float32"))
    assert registers < min(narrow, wide) and wide == pytest.approx(narrow, rel=0.1)


def test_what_rows_are_looked_up_into_is_written_row_by_row():
    places, bytes_per_s = 2**22, get_topology("v5e:2x4").device.hbm_bytes_per_s
    args = [jax.ShapeDtypeStruct((32, 12), "float32"), jax.ShapeDtypeStruct((places,), "int32")]
    # Each row of twelve numbers takes a row of a tile, once; what turns it reads it without.
    written, turned = (lanes * places * 4 * 1e6 / bytes_per_s for lanes in (128, 3 * 16))
    found = microseconds(lambda table, at: table[at].T + 1, args)
    assert written < found < 1.5 * (written + turned)


def joined_twice(x, y):
    joined = jnp.concatenate([x, y], -1)
    return jnp.exp(joined), joined.sum(-1)


def test_what_several_read_of_joined_arrays_is_written():
    half = jax.ShapeDtypeStruct((16, 256, 512), "float32")
    # The compiler says 152, 84 of them for the sum, which is a kernel of its own there; what is
    # written is on the chip. Read through by both it would be 53.
    assert microseconds(joined_twice, (half, half)) == pytest.approx(152.3 - 84, rel=0.2)
