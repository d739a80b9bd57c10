"""How tables lie in a TPU's memory: what libtpu 0.0.51 for v5e made of small programs, and copies
in closed form.
"""

from dataclasses import replace
import math

import jax
import numpy as np
import optax
import pytest

from automap.backends import backend_for
from automap.backends.xla_tpu.row_layouts import TableUses
from automap.backends.xla_tpu.table_uses import TableAccess
from automap.cost.evaluate import Evaluator
from automap.cost.tables import build_tables
from automap.space.space import Space
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from tests.steps import problem_of


V5E = get_topology("v5e:2x4")
NUMBERS = backend_for("tpu").tile_numbers

# Rows and width of a table, rows added to it on each device, and whether its scatter was compiled
# by row. One program each: a look-up, two products, Adagrad, the batch split over eight devices.
SCATTERED = [
    (1_000, 64, 1024, True), (10_000, 16, 8192, True), (50_000, 64, 1024, True),
    (300_000, 8, 1024, False), (300_000, 16, 1024, False), (300_000, 32, 1024, True),
    (349_000, 32, 1024, True), (349_600, 32, 1024, False), (400_000, 40, 1024, False),
    (400_000, 48, 1024, True), (500_000, 48, 1024, False), (400_000, 64, 64, True),
    (262_144, 64, 1024, True), (524_288, 64, 1024, False), (1_000_000, 64, 1024, True),
    (1_200_000, 64, 1024, False), (1_500_000, 64, 1024, True), (5_000_000, 64, 1024, True),
    (2_000_000, 96, 1024, True), (270_000, 8, 128, True), (280_000, 8, 128, False),
    (400_000, 32, 1024, False), (400_000, 32, 1408, True), (1_000_000, 8, 3900, False),
    (1_000_000, 8, 4000, True), (700_000, 64, 1536, True), (960_000, 64, 1536, False),
    (1_000_000, 32, 8192, True), (1_700_000, 32, 8192, False), (2_000_000, 32, 16384, False),
    (1_200_000, 64, 8192, True), (2_000_000, 64, 8192, False), (2_000_001, 64, 8192, True),
    (1_677_696, 40, 419_424, True),
]  # fmt: skip
# Rows and width of a table, and whether its look-up of 1024 rows turned it.
LOOKED_UP = [
    (100_000, 32, True),
    (300_000, 32, True),
    (400_000, 32, False),
    (1_000_000, 32, False),
    (1_048_576, 56, False),
    (1_048_576, 60, True),
    (1_048_576, 64, True),
    (1_000_003, 64, True),
    (4_000_003, 64, True),
    (1_000_000, 96, True),
    (1_000_000, 128, False),
]


# Milliseconds of a step by these compilers' estimates, in tables of 4,000,000 rows into which each
# device adds 256: zeros, AdamW's update, and the copy to look rows up in a single column.
NARROW = [
    ("v5e:2x4", 2, 0.471, 0.481, 0.0), ("v5e:2x4", 3, 0.471, 0.862, 0.0),
    ("v5e:2x4", 4, 0.471, 0.862, 0.0), ("v5e:2x4", 8, 0.471, 1.352, 0.0),
    ("v5e:2x4", 16, 0.940, 2.703, 0.0), ("v5e:2x4", 1, 0.0, 0.303, 0.514),
    ("v5p:2x2x2", 2, 0.217, 0.161, 0.0), ("v5p:2x2x2", 4, 0.231, 0.286, 0.0),
    ("v5p:2x2x2", 8, 0.204, 0.451, 0.0), ("v5p:2x2x2", 1, 0.026, 0.105, 0.219),
]  # fmt: skip


def whole(rows, width, added, kind):
    """What an access of a table that nothing splits costs."""
    columns = (0, 0, 1, 1, 1, kind, rows, width, added, 4, -1)
    uses = TableUses(*np.array([columns], np.int64).T)
    nowhere = np.full((2, 1), -1)
    return uses.in_memory(nowhere, nowhere[:1], (8,), V5E.device.memory_bytes, NUMBERS)


def held(rows, width, added, kind):
    """By how much longer a whole table takes, and the bytes that turn it."""
    access = whole(rows, width, added, kind)
    return float(access.lengthening[0]), float(access.transposed_bytes[0])


@pytest.mark.parametrize(("name", "width", "zeros", "update", "copy"), NARROW)
def test_narrow_tables_take_the_time_of_registers(name, width, zeros, update, copy):
    device, rows = get_topology(name).device, 4_000_000
    n_bytes = 4 * rows * width

    def of(kind, added):
        return float(whole(rows, width, added, kind).lengthening[0]) * n_bytes * 1e3

    predicted = of(TableAccess.FILLED, 256) / device.memory_bytes_per_s("copy")
    assert predicted == pytest.approx(zeros, rel=0.15, abs=0.06)
    # It reads four tables, and makes three.
    predicted = 7 * of(TableAccess.BY_COLUMN, 256) / device.memory_bytes_per_s("elementwise")
    assert predicted == pytest.approx(update, rel=0.15, abs=0.01)
    copied = float(whole(rows, width, 0, TableAccess.LOOKED_UP).copied_bytes[0])
    assert copied * 1e3 / device.memory_bytes_per_s("copy") == pytest.approx(copy, rel=0.1)


@pytest.mark.parametrize(("rows", "width", "added", "by_row"), SCATTERED)
def test_what_is_scattered_into_lies_as_the_compiler_lays_it(rows, width, added, by_row):
    larger, turned = held(rows, width, added, TableAccess.BY_ROW)
    assert turned == 0
    assert larger * width == (math.ceil(width / 128) * 128 if by_row else math.ceil(width / 8) * 8)


@pytest.mark.parametrize(("rows", "width", "turns"), LOOKED_UP)
def test_look_ups_turn_the_tables_that_the_compiler_turns(rows, width, turns):
    larger, turned = held(rows, width, 0, TableAccess.LOOKED_UP)
    by_column = math.ceil(rows / 128) * 128 * math.ceil(width / 8) * 8
    assert larger == 1
    assert turned == (4 * (rows * math.ceil(width / 128) * 128 + by_column) if turns else 0)


# Of the compiled programs: copies of the table, which of its updates ran by row.
@pytest.mark.parametrize(
    ("optimizer", "turned", "by_row"),
    [
        (optax.sgd(0.1), 2, True),
        (optax.sgd(0.1, momentum=0.9), 4, True),
        (optax.adagrad(0.1), 4, True),
        (optax.rmsprop(0.1), 4, True),
        (optax.adam(0.1), 2, False),
        (optax.adamw(0.1), 2, False),
        (optax.amsgrad(0.1), 2, False),
        (optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)), 2, True),
        (optax.chain(optax.clip_by_global_norm(1.0), optax.adagrad(0.1)), 4, True),
    ],
)
def test_updates_run_by_row_where_they_read_few_tables(optimizer, turned, by_row):
    rows, width, looked_up = 200_001, 64, 1024

    def step(params, state, index):
        gradient = jax.grad(lambda p: (p[index] ** 2).sum())(params)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    params = jax.ShapeDtypeStruct((rows, width), "float32")
    index = jax.ShapeDtypeStruct((looked_up,), "int32")
    problem = problem_of(step, (params, jax.eval_shape(optimizer.init, params), index))
    tables = build_tables(problem, "tpu")
    cost, space = Evaluator(tables, problem.n_classes, V5E), Space(problem)
    (uses,) = (t for t in tables.kernels.effects if isinstance(t, TableUses))
    sharding = cost.price_point(
        space.split_classes(space.point(Mesh(("data",), (8,)), [()]))
    ).sharding
    op_rows = tables.kernels.op_row[tables.kernels.traffic_kernel[uses.access]]
    factors = sharding.factor_of_axis[op_rows]
    accesses = uses.in_memory(
        sharding.dim_of_axis, factors, sharding.sizes, V5E.device.memory_bytes, NUMBERS
    )
    larger, bytes_turned = accesses.lengthening, accesses.transposed_bytes
    once = 4 * (rows * 128 + math.ceil(rows / 128) * 128 * width)
    assert bytes_turned.sum() == turned * once
    is_update = tables.kernels.phase[tables.kernels.traffic_kernel[uses.access]] == 2
    assert (larger[is_update] == 2).any() == by_row


def test_what_is_turned_takes_its_time():
    """A look-up in a table by column: the turn, and no more for a device with no tiles."""
    params = jax.ShapeDtypeStruct((100_000, 32), "float32")
    index = jax.ShapeDtypeStruct((16,), "int32")
    problem = problem_of(lambda p, i: p[i], (params, index))
    tables = build_tables(problem, "tpu")
    space = Space(problem)
    split_classes = space.split_classes(space.point(Mesh(("data",), (8,)), [()]))
    device = replace(V5E.device, on_chip_bytes=0)
    turned = 4 * (100_000 * 128 + 100_096 * 32)
    expected = turned / (device.hbm_bytes_per_s * dict(device.class_efficiency)["turn"])
    for tile, seconds in ((128, expected), (1, backend_for("tpu").launch_gap_seconds)):
        topology = replace(V5E, device=replace(device, matmul_tile=tile))
        kernel_seconds = (
            Evaluator(tables, problem.n_classes, topology).price_point(split_classes).kernel_seconds
        )
        assert kernel_seconds.max() == pytest.approx(seconds, rel=0.01)
