"""Seconds of kernels in closed form: one product, one reduction, a product behind a reduce-scatter."""

from dataclasses import replace
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap.cost.compute import Roofline
from automap.cost.evaluate import Evaluator
from automap.cost.flows import REDUCE_SCATTER
from automap.cost.tables import build_tables
from automap.space.point import Mesh
from automap.space.presets import PRESETS
from automap.space.space import Space
from automap.topology import get_topology
from tests.steps import decoder, mlp, problem_of


FLOPS_PER_S, BYTES_PER_S = 1e12, 1e9
# Nothing is rounded up, kept on the chip or launched for free: the roofline alone.
PLAIN = {
    "hbm_bytes_per_s": BYTES_PER_S, "flops_per_s": (("f32", FLOPS_PER_S), ("bf16", FLOPS_PER_S)),
    "matmul_efficiency": 1.0, "memory_efficiency": 1.0, "class_efficiency": (),
    "launch_seconds": 1e-12, "on_chip_bytes": 0, "matmul_tile": 1,
}  # fmt: skip
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
    return space.lanes(space.point(mesh, [()]))


def product_seconds(rows, summed, columns, topology):
    """Of x @ w: f32[rows, summed] @ f32[summed, columns], on one device."""

    def step(state, batch):
        return {"w": state["w"]}, batch["x"] @ state["w"]

    shapes = {"w": (summed, columns), "x": (rows, summed)}
    w, x = (jax.ShapeDtypeStruct(shapes[name], "float32") for name in ("w", "x"))
    cost, space = evaluator(step, ({"w": w}, {"x": x}), topology)
    seconds = cost.priced(whole(space)).of_kernel
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
        costs[tile] = cost.priced(space.lanes(point)).of_kernel
    # The hidden dimension is 64 on each device: a whole tile of 64, half of one of 128.
    tables = cost.tables.kernels
    hidden = [
        n for n, shape in enumerate(tables.shape)
        if shape.kind == "dot" and tables.side_sizes[:, n].max() == 512
    ]  # fmt: skip
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
    longest = cost.priced(whole(space)).of_kernel.max()
    assert longest == pytest.approx(n_bytes / (BYTES_PER_S * share))


def test_no_kernel_takes_less_than_its_launch():
    cost, space = evaluator(*mlp(), machine("v5e:2x4", launch_seconds=1.0))
    assert (cost.priced(whole(space)).of_kernel == 1.0).all()


def test_near_values_that_fit_on_the_chip_move_no_bytes():
    """x -> tanh(x w) w': what the first product makes is read at once; inputs and results are not near."""

    def step(state, batch):
        hidden = jnp.tanh(batch["x"] @ state["up"])
        return state, hidden @ state["down"]

    array = lambda *shape: jax.ShapeDtypeStruct(shape, "float32")  # noqa: E731
    rows, width, hidden = 32, 16, 256
    args = ({"up": array(width, hidden), "down": array(hidden, width)}, {"x": array(rows, width)})
    near = 4 * rows * hidden
    inputs = 4 * (2 * width * hidden + 2 * rows * width)
    # A quarter of the chip's memory is what a value may take.
    for on_chip, moved in ((4 * near, inputs), (4 * near - 4, None)):
        topology = machine("v5e:2x4", flops_per_s=(("f32", 1e30),), on_chip_bytes=on_chip)
        cost, space = evaluator(step, args, topology)
        table = cost.tables.kernels
        total = float(cost.priced(whole(space)).of_kernel @ table.count) * BYTES_PER_S
        if moved is None:
            moved = float(table.traffic_bytes.sum())
            assert moved >= inputs + 2 * near
        assert total == pytest.approx(moved, rel=1e-6)


def ringed(link_seconds, topology):
    """Kernel seconds of a plan with reduce-scattered products; every collective takes `link_seconds`."""
    cost, space = evaluator(*decoder(), topology)
    mesh = Mesh(("data", "model"), (2, 4))
    (point,) = PRESETS["sequence-parallel"].points(space, mesh)
    priced = cost.priced(space.lanes(point))
    table, found = cost.tables.kernels, priced.found
    each = np.full(len(found.kind), link_seconds)
    seconds = Roofline(table, topology).seconds(priced.sharding, found, each)
    is_scatter = (found.kind == REDUCE_SCATTER) & ~found.on_operand
    edges = set(found.edge[is_scatter].tolist()) - {-1}
    is_ring = np.array([edge in edges for edge in table.product_edge.tolist()])
    assert 0 < is_ring.sum() < len(is_ring)
    local = table.flops / priced.sharding.parts_of_op[table.op_row]
    return seconds, is_ring, np.where(table.product_edge >= 0, local, 0.0) / FLOPS_PER_S


@pytest.mark.parametrize(("name", "factor"), [("v5e:2x4", 2.0), ("8xh100", 1.0)])
def test_a_product_that_is_scattered_takes_twice_its_flops_on_a_tpu(name, factor):
    seconds, is_ring, plain = ringed(0.0, machine(name, **FAST_MEMORY))
    products = plain > 0
    assert seconds[is_ring] == pytest.approx(factor * plain[is_ring])
    assert seconds[~is_ring & products] == pytest.approx(plain[~is_ring & products])


@pytest.mark.parametrize(("times", "factor"), [(3.9, 2.0), (4.1, 1.0)])
def test_no_ring_where_the_scatter_takes_over_four_times_as_long(times, factor):
    topology = machine("v5e:2x4", **FAST_MEMORY)
    _, is_ring, plain = ringed(0.0, topology)
    for product in np.flatnonzero(is_ring):
        seconds, *_ = ringed(times * plain[product], topology)
        assert seconds[product] == pytest.approx(factor * plain[product])


def test_a_ring_moves_what_it_scatters_eight_times():
    free = (("f32", 1e30), ("bf16", 1e30))
    seconds, is_ring, _ = ringed(0.0, machine("v5e:2x4", flops_per_s=free))
    plain, _, _ = ringed(1.0, machine("v5e:2x4", flops_per_s=free))
    cost, space = evaluator(*decoder(), machine("v5e:2x4"))
    (point,) = PRESETS["sequence-parallel"].points(space, Mesh(("data", "model"), (2, 4)))
    found = cost.priced(space.lanes(point)).found
    scattered = dict(zip(found.edge[~found.on_operand & (found.kind == REDUCE_SCATTER)].tolist(),
                         found.n_bytes[~found.on_operand & (found.kind == REDUCE_SCATTER)]))  # fmt: skip
    edges = cost.tables.kernels.product_edge
    for product in np.flatnonzero(is_ring):
        more = 8 * scattered[int(edges[product])] / BYTES_PER_S
        assert seconds[product] - plain[product] == pytest.approx(more)
