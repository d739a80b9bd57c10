"""Predicted all-reduces against those of the compiled program, tensor by tensor."""

from collections import Counter
import re

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
import numpy as np
import pytest

from automap.apply.constraints import ShardedGraph
from automap.cost.collectives import CollectiveKind
from automap.cost.shardings import shardings
from automap.cost.tables import build_tables
from automap.cost.traffic import KINDS, collectives
from automap.space.point import Mesh
from automap.space.presets import PRESETS
from automap.space.space import Space
from tests.steps import decoder, mlp, problem_of


_ALL_REDUCE = re.compile(r"= (\(.*?\)|\S+) all-reduce(?:-start)?\(")
_SHAPE = re.compile(r"(f32|s32|pred)\[([0-9,]*)\]")


def _compiled(step, args, sharded, mesh):
    """Bytes of every all-reduced tensor in the compiled step."""
    devices = jax.make_mesh(mesh.sizes, mesh.names, axis_types=(AxisType.Auto,) * len(mesh.sizes))

    def of(values):
        specs = [PartitionSpec(*(axes or None for axes in sharded.of_value(v))) for v in values]
        return [NamedSharding(devices, spec) for spec in specs]

    graph = sharded.problem.graph
    n_state = len(sharded.problem.state_map)
    leaves, tree = jax.tree.flatten(args)
    inputs = jax.tree.unflatten(tree, of(graph.inputs))
    outputs = (jax.tree.unflatten(jax.tree.structure(args[0]), of(graph.outputs[:n_state])), None)
    text = (
        jax.jit(step, in_shardings=inputs, out_shardings=outputs).lower(*args).compile().as_text()
    )
    found = Counter()
    for line in text.splitlines():
        if match := _ALL_REDUCE.search(line):
            for _, dims in _SHAPE.findall(match[1]):
                found[4 * int(np.prod([int(d) for d in dims.split(",") if d], initial=1))] += 1
    return found


@pytest.mark.parametrize("model", [mlp, decoder])
@pytest.mark.parametrize(
    ("preset", "sizes"),
    [("data-parallel", (8,)), ("megatron", (8,)), ("megatron", (2, 4)), ("megatron", (2, 2, 2))],
)
def test_all_reduces_are_those_of_the_compiled_program(model, preset, sizes):
    step, args = model()
    problem = problem_of(step, args)
    space, tables = Space(problem), build_tables(problem)
    mesh = Mesh(("x", "y", "z")[: len(sizes)], sizes)
    (point,) = PRESETS[preset].points(space, mesh)
    lanes = space.lanes(point)
    sharding = shardings(tables, problem.n_classes, lanes)
    found = collectives(tables, sharding, sizes)
    predicted = Counter()
    for kind, n_bytes, count in zip(found.kind, found.n_bytes, found.count):
        assert KINDS[kind] is CollectiveKind.ALL_REDUCE
        predicted[int(n_bytes)] += int(count)
    assert predicted == _compiled(step, args, ShardedGraph(problem, tables, lanes, sharding), mesh)


def test_zero_3_gathers_each_parameter_once_and_scatters_each_gradient():
    problem = problem_of(*mlp())
    space, tables = Space(problem), build_tables(problem)
    mesh = Mesh(("data",), (8,))
    (point,) = PRESETS["zero-3"].points(space, mesh)
    found = collectives(tables, shardings(tables, problem.n_classes, space.lanes(point)), (8,))
    weight_bytes = 4 * 32 * 64
    counts = Counter()
    for kind, n_bytes, count in zip(found.kind, found.n_bytes, found.count):
        counts[KINDS[kind].value, int(n_bytes)] += int(count)
    assert counts == {
        ("all-gather", weight_bytes): 2,
        ("reduce-scatter", weight_bytes): 2,
        ("all-reduce", 4): 1,
    }
