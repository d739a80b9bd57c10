"""What the evaluator adds to kernels and links: first touches and merged messages."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap.backends import backend_for
from automap.cost.collectives import CollectiveKind, collective_cost
from automap.cost.tables import build_tables
from automap.cost.traffic.flows import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from automap.program import trace_step
from automap.space.presets import PRESETS
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from scripts.compare_measured import predicted_alone
from tests.automap.cost.kernels.plain import evaluator, machine, whole
from tests.steps import decoder, mlp


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


@pytest.mark.parametrize("platform", ["cpu:8", "8xh100", "v5e:2x4"])
def test_what_nothing_splits_costs_the_same_on_every_mesh(platform):
    cost, space = evaluator(*decoder(), get_topology(platform))
    meshes = [Mesh(("data",), (8,)), Mesh(("data", "model"), (2, 4))]
    empty = [space.split_classes(space.point(mesh, [()] * len(mesh.sizes))) for mesh in meshes]
    priced = [cost.estimate(cost.price_point(each)) for each in empty]
    assert [cost.evaluate(each) for each in empty] == priced


@pytest.mark.parametrize(("platform", "is_merged"), [("cpu:8", False), ("8xh100", True)])
def test_small_gathers_are_merged_on_gpus(platform, is_merged):
    cost, space = evaluator(*mlp(), get_topology(platform))
    mesh = Mesh(("data",), (8,))
    (point,) = PRESETS["zero-3"].points(space, mesh)
    priced = cost.price_point(space.split_classes(point))
    collectives = priced.collectives
    chosen = np.flatnonzero(collectives.combinable & (collectives.kind == ALL_GATHER))
    link = collective_cost(CollectiveKind.ALL_GATHER, cost.topology, (8,), [0])
    alone = link.seconds(collectives.n_bytes[chosen])
    assert len(chosen) and (priced.collective_seconds[chosen] < alone).all() == is_merged
    if not is_merged:
        np.testing.assert_allclose(priced.collective_seconds[chosen], alone)


@pytest.mark.parametrize("depth", [2, 5])
def test_every_trip_of_a_loop_sends_messages_of_its_own(depth):
    matrices = dict.fromkeys(("v", "w"), (depth, 64, 64))
    shapes = matrices | dict.fromkeys(("b", "c"), (depth, 64))
    weights = {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in shapes.items()}

    def step(state, batch):
        def layer(x, p):
            return jnp.tanh(x @ p["v"] @ p["w"] + p["b"]) * p["c"], None

        def loss(p):
            return jax.lax.scan(layer, batch, p)[0].sum()

        return jax.tree.map(jnp.subtract, state, jax.grad(loss)(state)), loss(state)

    batch = jax.ShapeDtypeStruct((4096, 64), "float32")
    cost, space = evaluator(step, (weights, batch), get_topology("v5e:2x4"))
    mesh = Mesh(("data",), (8,))
    (point,) = PRESETS["data-parallel"].points(space, mesh)
    collectives, seconds = (
        (priced := cost.price_point(space.split_classes(point))).collectives,
        priced.collective_seconds,
    )
    chosen = collectives.combinable & (collectives.kind == ALL_REDUCE) & (collectives.n_bytes > 4)
    (line,) = collective_cost(CollectiveKind.ALL_REDUCE, cost.topology, (8,), [0]).lines
    n_bytes = 4 * depth * (2 * 64 * 64 + 2 * 64)
    assert float((collectives.n_bytes * collectives.count)[chosen].sum()) == n_bytes
    # Per trip one message for both matrices and one for both vectors.
    expected = 2 * depth * line.alpha_seconds + line.beta_seconds_per_byte * n_bytes
    assert float((seconds * collectives.count)[chosen].sum()) == pytest.approx(expected)


@pytest.mark.parametrize(("platform", "is_merged"), [("v5e:2x4", False), ("8xh100", True)])
def test_tpus_gather_each_array_by_itself(platform, is_merged):
    cost, space = evaluator(*mlp(), get_topology(platform))
    (point,) = PRESETS["zero-3"].points(space, Mesh(("data",), (8,)))
    collectives = cost.collectives(space.split_classes(point))
    gathers = collectives.combinable & (collectives.kind == ALL_GATHER)
    parts = cost.collective_prices.merged_parts(collectives, (8,))[gathers]
    assert len(parts) and (parts < 1.0).all() == is_merged and (parts == 1.0).all() != is_merged


def test_sums_that_are_scattered_fill_a_message_sooner_on_tpus():
    cost, space = evaluator(*mlp(), get_topology("v5e:2x4"))
    (point,) = PRESETS["zero-1"].points(space, Mesh(("data",), (8,)))
    collectives = cost.collectives(space.split_classes(point))
    parts = cost.collective_prices.parts(collectives, (8,))
    scattered, summed = (collectives.kind == kind for kind in (REDUCE_SCATTER, ALL_REDUCE))
    assert scattered.any() and summed.any()
    np.testing.assert_allclose(parts[scattered] * 2**23, collectives.n_bytes[scattered])
    np.testing.assert_allclose(parts[summed] * 120 * 2**20, collectives.n_bytes[summed])


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("change", ["scatter", "slice"])
def test_an_input_that_the_caller_keeps_is_copied_before_a_part_of_it_is_changed(platform, change):
    def step(table, place, part):
        if change == "scatter":
            return table.at[place].add(part)
        return jax.lax.dynamic_update_slice(table, part, (place[0], 0))

    shapes = (((1 << 16, 128), "float32"), ((64,), "int32"), ((64, 128), "float32"))
    args = [jax.ShapeDtypeStruct(dims, dtype) for dims, dtype in shapes]
    moved = []
    for donated in ((), (0,)):
        workload = trace_step(jax.jit(step, donate_argnums=donated), args, platform=platform)
        kernels = build_tables(workload.problem, platform).kernels
        moved.append(np.bincount(kernels.traffic_kernel, weights=kernels.traffic_bytes).sum())
    kept, given = moved
    # The table is read and written whole.
    assert kept - given == 2 * 4 * 128 * (1 << 16)


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_a_step_of_scalars_takes_what_it_takes_to_begin_a_program(platform):
    topology = get_topology({"tpu": "v5e:1x1", "cuda": "1xh100"}[platform])
    scalar = jax.ShapeDtypeStruct((), "float32")
    estimate = predicted_alone(lambda x, y: (x - 0.1 * y, y * y), (scalar, scalar), topology)
    assert estimate.step_seconds >= backend_for(platform).launch_gap_seconds > 0
