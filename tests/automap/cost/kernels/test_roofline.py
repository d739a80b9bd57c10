"""Seconds of kernels in closed form: products, reductions, scatters."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap.cost.evaluate import Evaluator
from automap.cost.tables import build_tables
from automap.program import trace_step
from automap.space.presets import PRESETS
from automap.space.space import Space
from automap.step.rules import user_rules
from automap.topology.mesh import Mesh
from tests.automap.cost.kernels.plain import (
    BYTES_PER_S,
    FAST_MEMORY,
    FLOPS_PER_S,
    TPU_GAP_SECONDS,
    TPU_START_SECONDS,
    evaluator,
    machine,
    whole,
)
from tests.steps import mlp


def product_seconds(rows, summed, columns, topology):
    """Of x @ w: f32[rows, summed] @ f32[summed, columns], on one device."""

    def step(state, batch):
        return {"w": state["w"]}, batch["x"] @ state["w"]

    shapes = {"w": (summed, columns), "x": (rows, summed)}
    w, x = (jax.ShapeDtypeStruct(shapes[name], "float32") for name in ("w", "x"))
    cost, space = evaluator(step, ({"w": w}, {"x": x}), topology)
    seconds = cost.price_point(whole(space)).kernel_seconds
    is_product = [shape.kind == "dot" for shape in cost.tables.kernels.shape]
    (product,) = seconds[is_product]
    return float(product)


@pytest.mark.parametrize("tile", [1, 8, 128])
@pytest.mark.parametrize("sizes", [(64, 256, 128), (64, 250, 128), (64, 256, 9), (7, 1, 130)])
def test_what_is_summed_and_the_columns_are_rounded_up_to_tiles(sizes, tile):
    rows, summed, columns = sizes
    padded = [n if n == 1 else math.ceil(n / tile) * tile for n in (summed, columns)]
    topology = machine("v5e:2x4", matmul_tile=tile, **FAST_MEMORY)
    # It waits for what comes and for what leaves; a unit with a side of one has no such pieces.
    ends = TPU_START_SECONDS + (2 * TPU_GAP_SECONDS if tile > 1 else 0)
    expected = 2 * rows * math.prod(padded) / FLOPS_PER_S + ends
    assert product_seconds(*sizes, topology) == pytest.approx(expected)


def test_parts_are_rounded_up_not_the_whole():
    step, args = mlp(batch=16, width=32, hidden=512)
    mesh = Mesh(("data", "model"), (1, 8))
    costs = {}
    for tile in (64, 128):
        cost, space = evaluator(step, args, machine("v5e:2x4", matmul_tile=tile, **FAST_MEMORY))
        (point,) = PRESETS["megatron"].points(space, mesh)
        costs[tile] = cost.price_point(space.split_classes(point)).kernel_seconds
    # The hidden dimension is 64 on each device: a whole tile of 64, half of one of 128.
    tables = cost.tables.kernels
    hidden = [
        n
        for n, shape in enumerate(tables.shape)
        if shape.kind == "dot" and tables.side_sizes[:, n].max() == 512
    ]
    work = tables.flops[hidden] / 8 / FLOPS_PER_S
    # The width of 32 is half of one and a quarter: 2 x 4 times the work, and 1 x 2 times; with the
    # whole rounded it would be 4 and 2.
    assert hidden and ((costs[128] - costs[64])[hidden] > 5.9 * work).all()


@pytest.mark.parametrize(
    ("efficiency", "share"), [((), 0.5), ((("reduce", 0.25),), 0.25), ((("product", 0.9),), 0.5)]
)
def test_a_class_of_kernels_has_its_own_share_of_the_memory(efficiency, share):
    def step(state, batch):
        return {"w": state["w"]}, jnp.sum(batch["x"], axis=0)

    w, x = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((4,), (1024, 4096)))
    topology = machine("v5e:2x4", memory_efficiency=0.5, class_efficiency=efficiency)
    cost, space = evaluator(step, ({"w": w}, {"x": x}), topology)
    # What is summed is read, and goes through registers.
    n_bytes = 4 * (2 * 1024 * 4096 + 4096)
    longest = cost.price_point(whole(space)).kernel_seconds.max()
    assert longest == pytest.approx(n_bytes / (BYTES_PER_S * share) + TPU_GAP_SECONDS)


@pytest.mark.parametrize(
    ("rows", "columns", "parts", "held"),
    [
        (10_000, 16, 1, 128),
        (10_000, 16, 8, 128),
        (10_000, 200, 1, 256),
        (10_000, 256, 2, 128),
        (10_000, 1, 1, 1),
        # Over 512 MiB: the columns lie side by side.
        (2_000_000, 16, 1, 16),
        (2_000_000, 16, 8, 8),
    ],
)
def test_what_is_scattered_into_is_rounded_up_to_the_tiles_of_the_memory(
    rows, columns, parts, held
):
    looked_up = 32

    def step(table, index):
        return table - jax.grad(lambda t: (t[index] ** 2).sum())(table)

    shapes = ((rows, columns), "float32"), ((looked_up,), "int32")
    topology = machine("v5e:2x4", matmul_tile=256, class_efficiency=(("copy", 0.25),))
    cost, space = evaluator(step, [jax.ShapeDtypeStruct(*s) for s in shapes], topology)
    (leaf,) = space.leaves
    mesh = Mesh(("replica", "model"), (8 // parts, parts))
    point = space.point(mesh, [[], [leaf.compute[1]] if parts > 1 else []])
    kernels = cost.tables.kernels
    (scatter,) = (n for n, shape in enumerate(kernels.shape) if shape.family == "scatter")
    # Zeros, and what is added to some rows of them.
    n_bytes = 4 * held * (rows + looked_up)
    scatter_seconds = cost.price_point(space.split_classes(point)).kernel_seconds[scatter]
    expected = n_bytes / (BYTES_PER_S * 0.25) + TPU_GAP_SECONDS
    # The few numbers that are added to a single column do not fill a tile.
    assert scatter_seconds == pytest.approx(expected, rel=0.01 if columns > 1 else 0.04)


def test_no_kernel_takes_less_than_its_launch():
    cost, space = evaluator(*mlp(), machine("v5e:2x4", launch_seconds=1.0))
    seconds = cost.price_point(whole(space)).kernel_seconds
    is_product = np.array([shape.kind == "dot" for shape in cost.tables.kernels.shape])
    is_launched = cost.tables.kernels.is_launched & ~is_product
    assert (seconds[is_launched] == 1.0).all()
    # What joins another kernel, and scalars, are not launched, and products start by themselves.
    assert is_launched.any() and (seconds[~is_launched] < 1e-3).all()
    assert (seconds[is_product] >= TPU_START_SECONDS).all()


@pytest.mark.parametrize("name", ["8xh100", "v5e:2x4"])
def test_between_two_kernels_a_backend_has_its_gap(name):
    def step(state, batch):
        return {"w": state["w"]}, jnp.tanh(batch["x"]) * 2

    w, x = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((4,), (256, 256)))
    topology = machine(name)
    cost, space = evaluator(step, ({"w": w}, {"x": x}), topology)
    work = 2 * 4 * 256 * 256 / BYTES_PER_S
    gap = {"8xh100": 0.5e-6, "v5e:2x4": TPU_GAP_SECONDS}[name]
    assert cost.price_point(whole(space)).kernel_seconds.max() == pytest.approx(work + gap)


def test_near_values_that_fit_on_the_chip_move_no_bytes():
    """x -> tanh(x w) w': what the first product makes is read at once, inputs and results not."""

    def step(state, batch):
        hidden = jnp.tanh(batch["x"] @ state["up"])
        return state, hidden @ state["down"]

    array = lambda *shape: jax.ShapeDtypeStruct(shape, "float32")  # noqa: E731
    rows, width, hidden = 32, 16, 256
    args = ({"up": array(width, hidden), "down": array(hidden, width)}, {"x": array(rows, width)})
    # Only a product reads it, so it is kept as bfloat16.
    near, inputs = 2 * rows * hidden, 4 * (2 * width * hidden + 2 * rows * width)
    # It has no rivals. Up to 1/4 of the chip's memory all stays there, from all of it nothing,
    # between them by doublings.
    for on_chip, leaves in ((4 * near, 0), (2 * near, 1 / 2), (near, 1), (0, 1)):
        topology = machine("v5e:2x4", flops_per_s=(("f32", 1e30),), on_chip_bytes=on_chip)
        cost, space = evaluator(step, args, topology)
        table = cost.tables.kernels
        total = float(cost.price_point(whole(space)).kernel_seconds @ table.count) * BYTES_PER_S
        accesses = float(table.traffic_bytes.sum()) - inputs
        assert accesses >= near
        is_product = np.array([shape.kind == "dot" for shape in table.shape])
        launches = table.count[table.is_launched & ~is_product].sum() * TPU_GAP_SECONDS
        starts = table.count[is_product].sum() * TPU_START_SECONDS
        apart = (launches + starts) * BYTES_PER_S
        assert total == pytest.approx(inputs + leaves * accesses + apart, rel=1e-6)


def test_what_every_trip_reads_stays_on_the_chip_longer():
    """A weight that a loop multiplies by, rounded: half of the chip's memory is no more than an
    eighth of others.
    """

    def step(state, batch):
        grown = jax.lax.fori_loop(0, 5, lambda i, c: jnp.tanh(c @ state["w"]), batch["x"])
        return state, grown

    width = 512
    w, x = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((width, width), (2, width)))
    weight = 2 * width * width
    moved = {}
    for share in (1 / 2, 16.0):
        topology = machine("v5e:2x4", on_chip_bytes=round(weight / share), launch_seconds=0.0)
        cost, space = evaluator(step, ({"w": w}, {"x": x}), topology)
        seconds = cost.price_point(whole(space)).kernel_seconds
        is_product = [shape.kind == "dot" for shape in cost.tables.kernels.shape]
        moved[share] = float(seconds[is_product].sum()) * BYTES_PER_S
    assert moved[16.0] >= weight
    assert moved[1 / 2] < 0.1 * weight


@pytest.mark.parametrize(
    ("stated", "flops", "efficiency"),
    [
        ("", 0, 1.0),
        ("flops=50000bk", 50_000 * 64 * 32, 0.5),
        ("flops=50000bk efficiency=0.25", 50_000 * 64 * 32, 0.25),
    ],
)
@pytest.mark.parametrize("parts", [1, 8])
def test_a_kernel_of_a_users_own_takes_what_its_rule_states(stated, flops, efficiency, parts):
    @jax.jit
    def my_kernel(x):
        return jnp.cumsum(x, axis=1)

    def step(state, batch):
        return state, my_kernel(batch["x"])

    state = {"w": jax.ShapeDtypeStruct((2,), "float32")}
    args = (state, {"x": jax.ShapeDtypeStruct((64, 32), "float32")})
    topology = machine("v5e:2x4", matmul_efficiency=0.5)
    rules = user_rules([("my_kernel", f"bk->bk replicate=k {stated}")])
    problem = trace_step(step, args, platform="tpu", rules=rules).problem
    cost = Evaluator(build_tables(problem, "tpu"), problem.n_classes, topology)
    space = Space(problem)
    mesh = Mesh(("data",), (8,))
    compute = [(problem.batch_class,)] if parts == 8 else [()]
    seconds = cost.price_point(space.split_classes(space.point(mesh, compute))).kernel_seconds
    # Read once, written once, in float32.
    moved = 2 * 4 * 64 * 32 / parts / BYTES_PER_S
    expected = max(flops / parts / (FLOPS_PER_S * efficiency), moved)
    assert seconds.max() == pytest.approx(expected + TPU_GAP_SECONDS)
