"""Ops that several classes of one axis could split: the cheapest by hand, and those that follow a
weight.
"""

import jax
import jax.numpy as jnp
import pytest

from automap.cost.edges import majors
from automap.cost.shardings import shardings
from automap.cost.tables import build_tables
from automap.space.point import SplitClasses
from automap.topology.mesh import Mesh
from hlo_tools.analyses.phases import Phase
from hlo_tools.rules import FactorKind
from tests.steps import problem_of


N = 8
MESH = Mesh(("a",), (N,))


def _f32(*shape):
    return jax.ShapeDtypeStruct(shape, "float32")


def _chosen(problem, order, select):
    """The factor size that each selected op splits, when the axis lists `order`: (path, dim) of
    inputs.
    """
    inputs = dict(zip(problem.paths, problem.graph.inputs, strict=True))
    classes = tuple(problem.compute_classes(inputs[path])[dim] for path, dim in order)
    tables = build_tables(problem, "cpu")
    sharding = shardings(tables, problem.n_classes, SplitClasses(MESH, (classes,)))
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
    (factor_size,) = _chosen(problem, order, lambda p, i, op: op.opcode == "dot")
    # a is split on its rows, b on its columns, the result on the first of the two listed.
    by_rows = depth * columns + (0 if rows_first else rows * columns / N)
    by_columns = rows * depth + (rows * columns / N if rows_first else 0)
    if by_rows == by_columns:
        assert factor_size == (rows if rows_first else columns)
    else:
        assert factor_size == (rows if by_rows < by_columns else columns)


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


@pytest.mark.parametrize(("width", "hidden"), [(16, 1024), (1024, 16)])
@pytest.mark.parametrize("columns_first", [True, False])
def test_of_two_listed_classes_of_a_weight_the_cheaper_one(width, hidden, columns_first):
    batch = 4096
    order = [("[0]['in']", 1), ("[0]['in']", 0)]
    first, *_ = _chosen(
        _train(batch, width, hidden), order if columns_first else order[::-1], _dots(Phase.FORWARD)
    )
    # The features are split on their width, the result on the hidden dimension, the kernel on the
    # first of the two.
    by_columns = batch * width + (0 if columns_first else width * hidden / N)
    by_rows = batch * hidden + (width * hidden / N if columns_first else 0)
    assert first == (hidden if by_columns < by_rows else width)


def test_a_look_ups_gradient_moves_the_smaller_of_updates_and_table():
    """Stored rows: the updates come to the rows if they are fewer, else the whole table is
    summed.
    """

    def problem(rows, tokens):
        def step(table, ids):
            grad = jax.grad(lambda t: jnp.sin(t[ids]).sum())(table)
            return table - grad

        return problem_of(step, (_f32(rows, 16), jax.ShapeDtypeStruct((tokens,), "int32")))

    for rows, tokens in ((1024, 16), (16, 1024)):
        traced = problem(rows, tokens)
        table, ids = traced.graph.inputs
        (scatter,) = (i for i, op in enumerate(traced.graph.ops) if op.opcode == "scatter")
        stored = int(
            traced.storage.factor_groups[scatter][
                majors(traced.linkage.rules[scatter].results[0])[0]
            ]
        )
        row_class = traced.n_compute + int(traced.class_of_storage_group[stored])
        tables = build_tables(traced, "cpu")
        split_classes = SplitClasses(MESH, ((traced.compute_classes(ids)[0], row_class),))
        sharding = shardings(tables, traced.n_classes, split_classes)
        factor = int(sharding.factor_of_axis[tables.row_of_op[scatter], 0])
        split = traced.linkage.rules[scatter].factors[factor].size
        assert split == (rows if tokens < rows else tokens)


def _equal_layers(batch, width):
    """Square kernels between equal layers: both dimensions of each are of one class."""

    def step(w, x):
        def loss(w):
            h = x
            for kernel in w:
                h = jnp.tanh(h @ kernel)
            return h.sum()

        return jax.tree.map(lambda p, g: p - g, w, jax.grad(loss)(w))

    return problem_of(step, ([_f32(width, width) for _ in range(5)], _f32(batch, width)))


def _split_of_equal_layers(problem, platform, last):
    inputs = dict(zip(problem.paths, problem.graph.inputs, strict=True))
    hidden = problem.compute_classes(inputs["[0][2]"])[0]
    assert problem.compute_classes(inputs["[0][2]"]) == (hidden, hidden)
    tables = build_tables(problem, platform)
    split_classes = SplitClasses(MESH, ((hidden,),), frozenset({hidden}) if last else frozenset())
    return hidden, tables, shardings(tables, problem.n_classes, split_classes)


@pytest.mark.parametrize(
    ("platform", "batch", "last", "is_reduced"),
    [
        (
            "cpu",
            256,
            False,
            True,
        ),  # rows are there: 4 b d scattered, against 4 b d + 4 d^2 / 8 gathered
        ("cpu", 256, True, False),  # columns are there: 4 b d gathered
        ("tpu", 256, False, False),  # gathered as bfloat16: 2 b d + 2 d^2 / 8
        ("tpu", 16, False, True),  # the kernel is too large to be exchanged
    ],
)
def test_a_kernel_of_one_class_is_multiplied_the_cheaper_way(platform, batch, last, is_reduced):
    problem = _equal_layers(batch, 512)
    hidden, tables, sharding = _split_of_equal_layers(problem, platform, last)
    kinds = [
        problem.linkage.rules[i].factors[sharding.factor_of_axis[tables.row_of_op[i], 0]].kind
        for i, op in enumerate(problem.graph.ops)
        if op.opcode == "dot"
        and problem.phases[i] is Phase.FORWARD
        and problem.compute_classes(op.inputs[1]) == (hidden, hidden)
    ]
    assert kinds
    assert {kind is FactorKind.REDUCTION for kind in kinds} == {is_reduced}


@pytest.mark.parametrize("last", [False, True])
def test_what_a_kernels_gradient_is_transposed_from_is_split_where_it_is(last):
    problem = _equal_layers(256, 512)
    hidden, tables, sharding = _split_of_equal_layers(problem, "cpu", last)
    transposes = [
        (i, op)
        for i, op in enumerate(problem.graph.ops)
        if op.opcode == "transpose" and problem.compute_classes(op.inputs[0]) == (hidden, hidden)
    ]
    assert transposes
    for index, op in transposes:
        before, after = (
            int(sharding.dim_of_axis[tables.row_of_value[v], 0]) for v in (*op.inputs, *op.outputs)
        )
        assert after == (1 if last else 0)
        assert op.instruction.dimensions[after] == before
        factor = int(sharding.factor_of_axis[tables.row_of_op[index], 0])
        assert majors(problem.linkage.rules[index].results[0])[after] == factor
