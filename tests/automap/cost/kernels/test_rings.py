"""A product behind a reduce-scatter, in closed form."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap.backends import backend_for
from automap.cost.kernels.rings import with_rings
from automap.cost.kernels.roofline import Roofline
from automap.cost.traffic.flows import REDUCE_SCATTER
from automap.space.presets import PRESETS
from automap.topology.mesh import Mesh
from tests.automap.cost.kernels.plain import (
    BYTES_PER_S,
    FAST_MEMORY,
    evaluator,
    machine,
)
from tests.steps import decoder, mlp


NUMBERS = backend_for("tpu").tile_numbers
LEAST_FLOPS_PER_BYTE = NUMBERS.least_ring_flops_per_byte("v5e")
LONG = 1.01 * LEAST_FLOPS_PER_BYTE


def ringed(flops_per_byte, topology, sizes=(2, 4), written=0.0, passed=1.0):
    """Kernels and collectives of a plan with reduce-scattered products, of so many flops for a byte
    of a shard.

    Each writes so many bytes of each of its operands first. A reduce-scatter takes as long as its
    product, its shards on their way round so many times as long.
    """
    cost, space = evaluator(*decoder(), topology)
    mesh = Mesh(("data", "model"), sizes)
    (point,) = PRESETS["sequence-parallel"].points(space, mesh)
    priced = cost.price_point(space.split_classes(point))
    table, collectives = cost.tables.kernels, priced.collectives
    is_scatter = (collectives.kind == REDUCE_SCATTER) & ~collectives.on_operand
    entry_by_edge = {int(collectives.edge[i]): int(i) for i in np.flatnonzero(is_scatter)}
    products = [k for k, edge in enumerate(table.product_edge.tolist()) if edge in entry_by_edge]
    assert 0 < len(products) < len(table.flops)
    entries = [entry_by_edge[int(table.product_edge[k])] for k in products]
    flops = table.flops.copy()
    flops[products] = flops_per_byte * collectives.n_bytes[entries] / sizes[1]
    flops[products] *= priced.sharding.parts_of_op[table.op_row[products]]
    table = replace(table, flops=flops, written_bytes=np.full_like(table.written_bytes, written))
    alone = Roofline(table, topology).seconds(priced.sharding)
    each = np.zeros(len(collectives.kind))
    each[entries] = alone[products]
    rings = with_rings(
        table,
        topology.device,
        NUMBERS,
        alone,
        priced.sharding,
        collectives,
        each,
        passed * each,
    )
    return collectives, rings, alone, products, entries, each


def test_the_shards_of_a_ring_are_multiplied_once_and_added_as_float32():
    """Two are read and one is written for each element; what it scatters is float32 as well."""
    collectives, rings, alone, products, entries, _ = ringed(LONG, machine("v5e:2x4"))
    more = 3 * collectives.n_bytes[entries] / BYTES_PER_S
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
    # A product that makes its operand itself, of two arrays, writes it before it goes round, and
    # reads it again; what flows back to gate is made of three, and is there.
    made = (2 + 2) * (4 / 2 * rows) * (hidden / 4)
    assert more[more > 0] == pytest.approx([each + made, each + made, each], rel=1e-2)
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
    _, rings, alone, products, entries, each = ringed(share * LEAST_FLOPS_PER_BYTE, topology)
    assert ((rings.kernel_seconds > alone)[products] == makes_ring).all()
    assert rings.overlapped_seconds[entries] == pytest.approx(makes_ring * each[entries])


def test_what_its_shards_take_longer_than_the_product_of_a_ring_is_waited_for():
    """What is added is there once they are."""
    for passed in (0.5, 1.5, 40.0):
        _, rings, alone, products, entries, each = ringed(LONG, machine("v5e:2x4"), passed=passed)
        assert rings.collective_seconds[entries] == pytest.approx(passed * each[entries])
        assert (rings.kernel_seconds[products] > 1.5 * alone[products]).all()
        within = np.minimum(passed * each[entries], alone[products])
        assert rings.overlapped_seconds[entries] == pytest.approx(within)


def test_two_devices_make_no_ring():
    _, rings, alone, _, _, _ = ringed(LONG, machine("v5e:2x4", **FAST_MEMORY), sizes=(4, 2))
    assert (rings.kernel_seconds == alone).all()
    assert not rings.overlapped_seconds.any()


@pytest.mark.parametrize(("slice_name", "makes_ring"), [("4x8", True), ("8x8", False)])
def test_more_than_32_devices_make_no_ring(slice_name, makes_ring):
    """Of 64 devices libtpu makes no ring, whatever the flops."""
    step, args = mlp(batch=16384, width=64)
    topology = machine(f"v5e:{slice_name}", **FAST_MEMORY)
    cost, space = evaluator(step, args, topology)
    mesh = Mesh(("data",), (topology.device_count,))
    (point,) = PRESETS["zero-3"].points(space, mesh)
    priced = cost.price_point(space.split_classes(point))
    assert (priced.collectives.kind == REDUCE_SCATTER).any()
    assert priced.overlapped_seconds.any() == makes_ring


def test_a_faster_device_needs_more_flops_for_a_ring():
    """v6e computes twice as much as v5p while a link carries a byte."""
    assert not ringed(LONG, machine("v6e:2x4"))[1].overlapped_seconds.any()
    long = 1.01 * NUMBERS.least_ring_flops_per_byte("v6e")
    assert ringed(long, machine("v6e:2x4"))[1].overlapped_seconds.any()
    assert NUMBERS.least_ring_flops_per_byte("of no catalogue") >= long / 1.01


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
