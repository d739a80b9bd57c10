"""The order of several axes on one dimension, and what each device runs on its own part."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap.api.plan import Plan
from automap.api.planning import plan
from automap.config import Options
from automap.cost.tables import build_tables
from automap.planner.records import Outcome, build_plan, make_sharded_graph
from automap.planner.sharding import find
from automap.program import trace_step
from automap.search.context import Candidate
from automap.space.point import Point, StorageLevel
from automap.space.space import Space
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from models import moe


TOPOLOGY = get_topology("cpu:8")


def _product(weight, x):
    """Rows and columns are of the product alone: `tanh` has the samples and features."""
    return weight, jnp.tanh(jnp.tanh(x) @ weight)


def _plan(columns_axis: str, mesh: Mesh) -> Plan:
    """Samples on both axes, but columns of the product on one of them where there are some."""
    args = (jnp.ones((16, 32)), jnp.linspace(-1.0, 1.0, 32 * 16).reshape(32, 16))
    workload = trace_step(_product, args)
    context = find(workload, TOPOLOGY, Options(mesh=mesh, preset="data-parallel")).context
    problem = context.space.problem
    weight, x = (problem.compute_classes(value) for value in problem.graph.inputs)
    columns, samples = weight[1], x[0]
    classes = tuple((columns, samples) if a == columns_axis else (samples,) for a in mesh.names)
    levels = ((StorageLevel.REPLICATED,) * len(context.space.leaves),) * len(mesh.names)
    point = Point(mesh, classes, levels)
    outcome = Outcome(
        workload=workload,
        topology=TOPOLOGY,
        context=context,
        strategy="a test",
        seconds=0.0,
        best=Candidate(
            point, context.evaluator.evaluate(context.space.split_classes(point)), "a test"
        ),
    )
    return Plan.from_record(build_plan(outcome))


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
@pytest.mark.parametrize("columns_axis", ["a", "b"])
def test_the_axis_that_stays_is_major(names, columns_axis):
    """Samples are gathered along the axis of the columns: no device changes places for it, whatever
    the mesh's own order.
    """
    mesh = Mesh(names, (2, 4))
    planned = _plan(columns_axis, mesh)
    stays = next(a for a in names if a != columns_axis)
    assert planned.inputs[1].spec == ((stays, columns_axis), None)
    weight, x = jnp.ones((16, 32)), jnp.linspace(-1.0, 1.0, 32 * 16).reshape(32, 16)
    run = planned.jit(_product)
    text = run.lower(weight, x).compile().as_text()
    assert "all-gather" in text
    assert "collective-permute" not in text
    np.testing.assert_allclose(run(weight, x)[1], jax.jit(_product)(weight, x)[1], rtol=1e-6)


def test_a_planned_fourier_transform_is_run_by_each_device():
    """As predicted: the partitioner alone gathers the samples."""

    def filtered(weight, x):
        """A long convolution of each sample, with its transforms of real numbers."""
        spectrum = jnp.fft.rfft(x @ weight, axis=1)
        return weight, jnp.fft.irfft(spectrum * jnp.fft.rfft(weight, axis=0)[1], axis=1)

    args = (jnp.ones((32, 32)), jnp.linspace(-1.0, 1.0, 16 * 8 * 32).reshape(16, 8, 32))
    record = plan(filtered, args, topology="cpu:8", preset="data-parallel")
    assert not record.predicted.collectives
    run = record.jit(filtered)
    assert "all-gather" not in run.lower(*args).compile().as_text()
    np.testing.assert_allclose(run(*args)[1], jax.jit(filtered)(*args)[1], atol=1e-4)


def test_axes_that_move_together_stand_in_one_order():
    """Both axes are moved from features to hidden features at once: no device changes places
    besides if they stand in one order on both.
    """
    step, args = moe.moe(replace(moe.TINY, layers="scanned"), batch=8, seq=16).target
    problem = trace_step(step, args, platform="cuda").problem
    space, tables = Space(problem), build_tables(problem, "cuda")
    values, inputs = problem.graph.values, problem.graph.inputs

    def classes(dims):
        return next(problem.compute_classes(v) for v in inputs if values[v].dims == dims)

    (_, experts, _, _), (_, features, hidden) = classes((2, 8, 256, 64)), classes((2, 64, 256))
    point = space.point(Mesh(("a", "b"), (2, 4)), [[experts, features, hidden], [hidden, features]])
    sharded = make_sharded_graph(space, tables, space.split_classes(point))
    orders = {
        (number, axes)
        for value in range(len(values))
        for number, axes in zip(problem.compute_classes(value), sharded.value_axes(value))
        if len(axes) > 1
    }
    assert {number for number, _ in orders} == {features, hidden}
    assert len({axes for _, axes in orders}) == 1


@pytest.mark.parametrize("columns_axis", ["a", "b"])
def test_a_sum_over_rows_is_scattered_in_the_order_of_the_rows(columns_axis):
    """Rows are gathered along the axis of the columns, which so stands behind the other one."""

    def step(state, x):
        def loss(state):
            return jnp.tanh(jnp.tanh(jnp.tanh(x + state["bias"]) @ state["weight"])).sum()

        return jax.tree.map(lambda w, g: w - g, state, jax.grad(loss)(state))

    state = {"bias": jnp.ones(64), "weight": jnp.ones((64, 32))}
    problem = trace_step(step, (state, jnp.ones((128, 64))), platform="cuda").problem
    space, tables = Space(problem), build_tables(problem, "cuda")
    columns = problem.compute_classes(problem.graph.inputs[1])[1]
    mesh, samples = Mesh(("a", "b"), (2, 4)), problem.batch_class
    classes = tuple((columns, samples) if a == columns_axis else (samples,) for a in mesh.names)
    levels = tuple(
        StorageLevel.FULL if leaf.dims == (64,) else StorageLevel.REPLICATED
        for leaf in space.leaves
    )
    split_classes = space.split_classes(Point(mesh, classes, (levels, levels)))
    sharded = make_sharded_graph(space, tables, split_classes)
    bias, _, x = problem.graph.inputs
    rows = "ba" if columns_axis == "a" else "ab"
    assert sharded.value_axes(x)[0] == sharded.value_axes(bias)[0] == tuple(rows)
