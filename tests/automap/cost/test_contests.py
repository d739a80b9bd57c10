"""Ops that several classes of one axis could split: the cheapest by hand, and those that follow a weight."""

import jax
import jax.numpy as jnp
import pytest

from automap.cost.edges import majors
from automap.cost.shardings import shardings
from automap.cost.tables import build_tables
from automap.space.point import Lanes, Mesh
from hlo_tools.phases import Phase
from tests.steps import problem_of


N = 8
MESH = Mesh(("a",), (N,))


def _f32(*shape):
    return jax.ShapeDtypeStruct(shape, "float32")


def _chosen(problem, order, select):
    """The factor size each selected op splits, when the axis lists `order`: (path, dim) of inputs."""
    inputs = dict(zip(problem.paths, problem.graph.inputs, strict=True))
    classes = tuple(problem.classes_of(inputs[path])[dim] for path, dim in order)
    tables = build_tables(problem, "cpu")
    sharding = shardings(tables, problem.n_classes, Lanes(MESH, (classes,)))
    result = []
    for index, op in enumerate(problem.graph.ops):
        if select(problem, index, op):
            factor = int(sharding.factor_of_axis[tables.row_of_op[index], 0])
            result.append(
                problem.linkage.rules[index].factors[factor].size if factor >= 0 else None
            )
    return result


def _dots(phase):
    return lambda problem, index, op: op.opcode == "dot" and problem.phases[index] is phase


def _two_inputs(rows, columns, depth):
    """A product of two batch tensors: no weight, so bytes decide."""

    def step(_, a, b):
        return jnp.einsum("mk,kn->mn", jnp.sin(a), jnp.sin(b)) * 2

    return problem_of(step, ((), _f32(rows, depth), _f32(depth, columns)))


@pytest.mark.parametrize(
    ("rows", "columns", "depth"), [(64, 8, 16), (8, 64, 16), (16, 16, 8), (1024, 16, 512)]
)
@pytest.mark.parametrize("rows_first", [True, False])
def test_the_cheapest_factor_wins(rows, columns, depth, rows_first):
    problem = _two_inputs(rows, columns, depth)
    order = [("[1]", 0), ("[2]", 1)]
    order = order if rows_first else order[::-1]
    (found,) = _chosen(problem, order, lambda p, i, op: op.opcode == "dot")
    # a is split on its rows, b on its columns, the result on the first of the two listed.
    by_rows = depth * columns + (0 if rows_first else rows * columns / N)
    by_columns = rows * depth + (rows * columns / N if rows_first else 0)
    if by_rows == by_columns:
        assert found == (rows if rows_first else columns)
    else:
        assert found == (rows if by_rows < by_columns else columns)


def _train(batch, width, hidden):
    def step(w, x):
        grad = jax.grad(lambda w: (jnp.tanh(x @ w["in"]) @ w["out"]).sum())(w)
        return jax.tree.map(lambda p, g: p - g, w, grad)

    return problem_of(
        step, ({"in": _f32(width, hidden), "out": _f32(hidden, width)}, _f32(batch, width))
    )


@pytest.mark.parametrize("batch", [8, 4096])
def test_an_op_on_a_weight_follows_the_weight_whatever_it_costs(batch):
    problem = _train(batch, 16, 64)
    order = [("[0]['in']", 1), ("[1]", 0)]
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        assert set(_chosen(problem, order, _dots(phase))) == {64}


def test_a_look_ups_gradient_moves_the_smaller_of_updates_and_table():
    """Stored rows: the updates come to the rows if they are fewer, else the whole table is summed."""

    def problem(rows, tokens):
        def step(table, ids):
            grad = jax.grad(lambda t: jnp.sin(t[ids]).sum())(table)
            return table - grad

        return problem_of(step, (_f32(rows, 16), jax.ShapeDtypeStruct((tokens,), "int32")))

    for rows, tokens in ((1024, 16), (16, 1024)):
        found = problem(rows, tokens)
        table, ids = found.graph.inputs
        (scatter,) = (i for i, op in enumerate(found.graph.ops) if op.opcode == "scatter")
        stored = int(
            found.storage.factor_groups[scatter][majors(found.linkage.rules[scatter].results[0])[0]]
        )
        of_rows = found.n_compute + int(found.class_of_storage_group[stored])
        tables = build_tables(found, "cpu")
        lanes = Lanes(MESH, ((found.classes_of(ids)[0], of_rows),))
        sharding = shardings(tables, found.n_classes, lanes)
        factor = int(sharding.factor_of_axis[tables.row_of_op[scatter], 0])
        split = found.linkage.rules[scatter].factors[factor].size
        assert split == (rows if tokens < rows else tokens)
