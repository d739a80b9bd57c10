"""Seconds of kernels in closed form: one product, one reduction, a product behind a reduce-scatter."""

from dataclasses import replace
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap.backends import backend_for
from automap.cost.collectives import CollectiveKind, collective_cost
from automap.cost.evaluate import Evaluator
from automap.cost.kernels.rings import with_rings
from automap.cost.kernels.roofline import Roofline
from automap.cost.tables import build_tables
from automap.cost.traffic.flows import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from automap.space.presets import PRESETS
from automap.space.space import Space
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from tests.steps import decoder, mlp, problem_of


FLOPS_PER_S, BYTES_PER_S = 1e12, 1e9
# Nothing is rounded up, kept on the chip or launched for free: the roofline alone.
PLAIN = {
    "hbm_bytes_per_s": BYTES_PER_S,
    "flops_per_s": (("f32", FLOPS_PER_S), ("bf16", FLOPS_PER_S)),
    "matmul_efficiency": 1.0,
    "memory_efficiency": 1.0,
    "class_efficiency": (),
    "launch_seconds": 1e-12,
    "on_chip_bytes": 0,
    "matmul_tile": 1,
}
FAST_MEMORY = {"hbm_bytes_per_s": 1e30}


def machine(name, **changed):
    topology = get_topology(name)
    return replace(topology, device=replace(topology.device, **{**PLAIN, **changed}))


def evaluator(step, args, topology):
    problem = problem_of(step, args)
    tables = build_tables(problem, topology.platform)
    return Evaluator(tables, problem.n_classes, topology), Space(problem)


def whole(space):
    """Nothing is split on eight devices."""
    mesh = Mesh(("data",), (8,))
    return space.split_classes(space.point(mesh, [()]))


def product_seconds(rows, summed, columns, topology):
    """Of x @ w: f32[rows, summed] @ f32[summed, columns], on one device."""

    def step(state, batch):
        return {"w": state["w"]}, batch["x"] @ state["w"]

    shapes = {"w": (summed, columns), "x": (rows, summed)}
    w, x = (jax.ShapeDtypeStruct(shapes[name], "float32") for name in ("w", "x"))
    cost, space = evaluator(step, ({"w": w}, {"x": x}), topology)
    seconds = cost.price_point(whole(space)).kernel_seconds
    is_product = [shape.kind == "dot" for shape in cost.tables.kernels.shape]
    (found,) = seconds[is_product]
    return float(found)


@pytest.mark.parametrize("tile", [1, 8, 128])
@pytest.mark.parametrize("sizes", [(64, 256, 128), (64, 250, 128), (64, 256, 9), (7, 1, 130)])
def test_what_is_summed_and_the_columns_are_rounded_up_to_tiles(sizes, tile):
    rows, summed, columns = sizes
    padded = [n if n == 1 else math.ceil(n / tile) * tile for n in (summed, columns)]
    topology = machine("v5e:2x4", matmul_tile=tile, **FAST_MEMORY)
    expected = 2 * rows * math.prod(padded) / FLOPS_PER_S
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
    assert hidden and (costs[128][hidden] > costs[64][hidden] * 1.9).all()


@pytest.mark.parametrize(
    ("efficiency", "share"), [((), 0.5), ((("reduce", 0.25),), 0.25), ((("product", 0.9),), 0.5)]
)
def test_a_class_of_kernels_has_its_own_share_of_the_memory(efficiency, share):
    def step(state, batch):
        return {"w": state["w"]}, jnp.sum(batch["x"], axis=0)

    w, x = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((4,), (1024, 4096)))
    topology = machine("v5e:2x4", memory_efficiency=0.5, class_efficiency=efficiency)
    cost, space = evaluator(step, ({"w": w}, {"x": x}), topology)
    n_bytes = 4 * (1024 * 4096 + 4096)
    longest = cost.price_point(whole(space)).kernel_seconds.max()
    assert longest == pytest.approx(n_bytes / (BYTES_PER_S * share))


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
    found = cost.price_point(space.split_classes(point)).kernel_seconds[scatter]
    assert found == pytest.approx(n_bytes / (BYTES_PER_S * 0.25), rel=0.01)


def test_no_kernel_takes_less_than_its_launch():
    cost, space = evaluator(*mlp(), machine("v5e:2x4", launch_seconds=1.0))
    assert (cost.price_point(whole(space)).kernel_seconds == 1.0).all()


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
    # Up to 1/16 of the chip's memory all stays there, from 1/2 nothing, between them by doublings:
    # 2 of 3.
    for on_chip, leaves in ((16 * near, 0), (4 * near, 2 / 3), (2 * near, 1), (0, 1)):
        topology = machine("v5e:2x4", flops_per_s=(("f32", 1e30),), on_chip_bytes=on_chip)
        cost, space = evaluator(step, args, topology)
        table = cost.tables.kernels
        total = float(cost.price_point(whole(space)).kernel_seconds @ table.count) * BYTES_PER_S
        accesses = float(table.traffic_bytes.sum()) - inputs
        assert accesses >= near
        assert total == pytest.approx(inputs + leaves * accesses, rel=1e-6)


NUMBERS = backend_for("tpu").tile_numbers
LONG = 1.01 * NUMBERS.ring_flops_per_byte


def ringed(flops_per_byte, topology, sizes=(2, 4), written=0.0):
    """Kernels and collectives of a plan with reduce-scattered products, of so many flops for a byte
    of a shard.

    Each writes so many bytes of each of its operands first.
    """
    cost, space = evaluator(*decoder(), topology)
    mesh = Mesh(("data", "model"), sizes)
    (point,) = PRESETS["sequence-parallel"].points(space, mesh)
    priced = cost.price_point(space.split_classes(point))
    table, found = cost.tables.kernels, priced.collectives
    is_scatter = (found.kind == REDUCE_SCATTER) & ~found.on_operand
    entry_of = {int(found.edge[i]): int(i) for i in np.flatnonzero(is_scatter)}
    products = [k for k, edge in enumerate(table.product_edge.tolist()) if edge in entry_of]
    assert 0 < len(products) < len(table.flops)
    entries = [entry_of[int(table.product_edge[k])] for k in products]
    flops = table.flops.copy()
    flops[products] = flops_per_byte * found.n_bytes[entries] / sizes[1]
    flops[products] *= priced.sharding.parts_of_op[table.op_row[products]]
    table = replace(table, flops=flops, written_bytes=np.full_like(table.written_bytes, written))
    alone = Roofline(table, topology).seconds(priced.sharding)
    each = np.zeros(len(found.kind))
    each[entries] = alone[products]
    rings = with_rings(table, topology.device, NUMBERS, alone, priced.sharding, found, each)
    return found, rings, alone, products, entries, each


def test_the_shards_of_a_ring_are_multiplied_once_and_added_as_float32():
    """Two are read and one is written for each element; what it scatters is float32 as well."""
    found, rings, alone, products, entries, _ = ringed(LONG, machine("v5e:2x4"))
    more = 3 * found.n_bytes[entries] / BYTES_PER_S
    assert rings.kernel_seconds[products] == pytest.approx(alone[products] + more)
    others = np.setdiff1d(np.arange(len(alone)), products)
    assert (rings.kernel_seconds[others] == alone[others]).all()


def test_products_whose_sum_is_scattered_go_round_a_ring_each():
    """A gated block: what flows back from gate and up is added and scattered once, but each is a
    ring.
    """

    def loss(params, batch):
        x = jnp.tanh(batch["x"] @ params["first"])
        hidden = jnp.tanh(x @ params["gate"]) * (x @ params["up"])
        return jnp.mean((hidden @ params["down"]) ** 2)

    def step(params, batch):
        return jax.tree.map(jnp.subtract, params, jax.grad(loss)(params, batch))

    rows, width, hidden = 2048, 256, 65536
    array = lambda *shape: jax.ShapeDtypeStruct(shape, "float32")  # noqa: E731
    params = {
        "first": array(8, width),
        "gate": array(width, hidden),
        "up": array(width, hidden),
        "down": array(hidden, width),
    }
    cost, space = evaluator(step, (params, {"x": array(4, rows, 8)}), machine("v5e:2x4"))
    (point,) = PRESETS["sequence-parallel"].points(space, Mesh(("data", "model"), (2, 4)))
    priced = cost.price_point(space.split_classes(point))
    assert np.count_nonzero(priced.collectives.scattered_again.mask) == 1
    more = (priced.kernel_seconds - cost.roofline.seconds(priced.sharding)) * BYTES_PER_S
    # Additions, and float32 weights that are rounded; what the blocks hold is kept as bfloat16.
    each = 3 * 4 * (4 / 2 * rows * width) + 2 * width * hidden / 4
    assert more[more > 0] == pytest.approx([each] * 3, rel=1e-2)
    assert np.count_nonzero(priced.overlapped_seconds) == 2


@pytest.mark.parametrize(("name", "is_ringed"), [("v5e:2x4", True), ("8xh100", False)])
def test_only_tpus_make_rings(name, is_ringed):
    """The gradient of a weight is summed over 8 devices and scattered: 2 K m n / 8 flops, 4 m n / 8
    bytes of a shard.
    """
    for summed, makes_ring in ((8192, False), (8704, is_ringed)):
        step, args = mlp(batch=summed, width=64)
        cost, space = evaluator(step, args, machine(name, **FAST_MEMORY))
        (point,) = PRESETS["zero-3"].points(space, Mesh(("data",), (8,)))
        priced = cost.price_point(space.split_classes(point))
        assert priced.overlapped_seconds.any() == makes_ring


@pytest.mark.parametrize(("share", "makes_ring"), [(1.01, True), (0.99, False)])
def test_no_ring_of_a_product_that_is_short_beside_its_shards(share, makes_ring):
    topology = machine("v5e:2x4")
    _, rings, alone, products, entries, each = ringed(share * NUMBERS.ring_flops_per_byte, topology)
    assert ((rings.kernel_seconds > alone)[products] == makes_ring).all()
    assert rings.overlapped_seconds[entries] == pytest.approx(makes_ring * each[entries])


def test_two_devices_make_no_ring():
    _, rings, alone, _, _, _ = ringed(LONG, machine("v5e:2x4", **FAST_MEMORY), sizes=(4, 2))
    assert (rings.kernel_seconds == alone).all()
    assert not rings.overlapped_seconds.any()


def test_a_ring_launches_three_kernels_in_each_round():
    alone = ringed(LONG, machine("v5e:2x4"))
    launched = ringed(LONG, machine("v5e:2x4", launch_seconds=1e-5))
    products = alone[3]
    assert (launched[2][products] == alone[2][products]).all()
    more = launched[1].kernel_seconds[products] - alone[1].kernel_seconds[products]
    assert more == pytest.approx(3 * 4 / 2 * 1e-5, rel=1e-3)


def test_a_ring_writes_its_operands_first():
    """The sums are over what the model axis splits, so it splits both operands; the batch is in one
    or both.
    """
    _, plain, _, products, _, _ = ringed(LONG, machine("v5e:2x4"))
    _, written, _, _, _, _ = ringed(LONG, machine("v5e:2x4"), written=1e6)
    more = (written.kernel_seconds - plain.kernel_seconds)[products] * BYTES_PER_S
    assert {round(n) for n in more} <= {round(1e6 / 8 + 1e6 / 4), round(2e6 / 8)}


def test_a_ring_turns_the_operand_whose_last_dimension_it_cuts():
    """Gradients of weights that are kept split along a dimension: activations or their gradients,
    1/8 of them on a device.
    """
    rows, width, hidden = 8704, 64, 1024
    seconds = []
    for efficiency in (0.5, 0.25):
        topology = machine("v5e:2x4", class_efficiency=(("turn", efficiency),), **FAST_MEMORY)
        topology = replace(topology, device=replace(topology.device, hbm_bytes_per_s=BYTES_PER_S))
        cost, space = evaluator(*mlp(batch=rows, width=width, hidden=hidden), topology)
        (point,) = PRESETS["zero-3"].points(space, Mesh(("data",), (8,)))
        seconds.append(cost.price_point(space.split_classes(point)).kernel_seconds)
    more = (seconds[1] - seconds[0]) * BYTES_PER_S / (1 / 0.25 - 1 / 0.5)
    # Both are kept split along the hidden dimension, which is the last one of what flows forth and
    # back.
    assert more[more > 0] == pytest.approx([8 * rows * hidden / 8] * 2)


def test_narrow_shards_are_rounded_up_to_tiles_in_pairs():
    wide = ringed(LONG, machine("v5e:2x4", **FAST_MEMORY))
    tiled = ringed(LONG, machine("v5e:2x4", matmul_tile=4096, **FAST_MEMORY))
    for (_, rings, alone, products, _, _), is_tiled in ((wide, False), (tiled, True)):
        ratio = rings.kernel_seconds[products] / alone[products]
        assert (ratio > 1.05).all() == is_tiled


def test_what_every_trip_reads_stays_on_the_chip_longer():
    """A weight that a loop multiplies by, rounded: 1/8 of the chip's memory is no more than 1/32 of
    others.
    """

    def step(state, batch):
        grown = jax.lax.fori_loop(0, 5, lambda i, c: jnp.tanh(c @ state["w"]), batch["x"])
        return state, grown

    width = 512
    w, x = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((width, width), (1, width)))
    weight = 2 * width * width
    moved = {}
    for share in (1 / 8, 16.0):
        topology = machine("v5e:2x4", on_chip_bytes=round(weight / share), launch_seconds=0.0)
        cost, space = evaluator(step, ({"w": w}, {"x": x}), topology)
        seconds = cost.price_point(whole(space)).kernel_seconds
        is_product = [shape.kind == "dot" for shape in cost.tables.kernels.shape]
        moved[share] = float(seconds[is_product].sum()) * BYTES_PER_S
    assert moved[16.0] >= weight
    assert moved[1 / 8] < 0.1 * weight


def test_new_memory_costs_its_first_touch():
    (plain, space), (fresh, _) = (
        evaluator(*decoder(), machine("cpu:8", fresh_seconds_per_byte=rate)) for rate in (0.0, 1e-6)
    )
    unsplit = whole(space)
    memory, before, after = plain.memory(unsplit), plain.evaluate(unsplit), fresh.evaluate(unsplit)
    new_bytes = memory.peak_bytes - sum(memory.input_bytes)
    assert new_bytes > 0
    assert after.step_seconds - before.step_seconds == pytest.approx(new_bytes * 1e-6)
    assert fresh.fresh_seconds(fresh.price_point(unsplit)) == pytest.approx(new_bytes * 1e-6)


@pytest.mark.parametrize(("platform", "is_merged"), [("cpu:8", False), ("8xh100", True)])
def test_small_gathers_are_merged_but_on_a_processor(platform, is_merged):
    cost, space = evaluator(*mlp(), get_topology(platform))
    mesh = Mesh(("data",), (8,))
    (point,) = PRESETS["zero-3"].points(space, mesh)
    priced = cost.price_point(space.split_classes(point))
    found = priced.collectives
    chosen = np.flatnonzero(found.combinable & (found.kind == ALL_GATHER))
    link = collective_cost(CollectiveKind.ALL_GATHER, cost.topology, (8,), [0])
    alone = link.seconds(found.n_bytes[chosen])
    assert len(chosen) and (priced.collective_seconds[chosen] < alone).all() == is_merged
    if not is_merged:
        np.testing.assert_allclose(priced.collective_seconds[chosen], alone)


@pytest.mark.parametrize("depth", [2, 5])
def test_every_trip_of_a_loop_sends_messages_of_its_own(depth):
    shapes = {"w": (depth, 64, 64), "b": (depth, 64), "c": (depth, 64)}
    weights = {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in shapes.items()}

    def step(state, batch):
        def layer(x, p):
            return jnp.tanh(x @ p["w"] + p["b"]) * p["c"], None

        def loss(p):
            return jax.lax.scan(layer, batch, p)[0].sum()

        return jax.tree.map(jnp.subtract, state, jax.grad(loss)(state)), loss(state)

    batch = jax.ShapeDtypeStruct((4096, 64), "float32")
    cost, space = evaluator(step, (weights, batch), get_topology("v5e:2x4"))
    mesh = Mesh(("data",), (8,))
    (point,) = PRESETS["data-parallel"].points(space, mesh)
    found, seconds = (
        (priced := cost.price_point(space.split_classes(point))).collectives,
        priced.collective_seconds,
    )
    chosen = found.combinable & (found.kind == ALL_REDUCE) & (found.n_bytes > 4)
    (line,) = collective_cost(CollectiveKind.ALL_REDUCE, cost.topology, (8,), [0]).lines
    n_bytes = 4 * depth * (64 * 64 + 2 * 64)
    assert float((found.n_bytes * found.count)[chosen].sum()) == n_bytes
    # Per trip one message for the matrix and one for both vectors.
    expected = 2 * depth * line.alpha_seconds + line.beta_seconds_per_byte * n_bytes
    assert float((seconds * found.count)[chosen].sum()) == pytest.approx(expected)
