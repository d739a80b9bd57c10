"""Which nodes belong to one operator: a product with its gradients, a time step, a layer."""

from collections import defaultdict
from dataclasses import replace

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from automap.cost.evaluate import Evaluator
from automap.cost.tables import build_tables
from automap.placement.dataflow import NOBODY, step_dataflow
from automap.placement.operators import Operators
from automap.placement.tasks import placement_problem
from automap.program.trace import trace_step
from automap.space.point import SplitClasses
from automap.topology import get_graph, get_topology
from automap.topology.mesh import Mesh
from hlo_tools.analyses.phases import Phase
from hlo_tools.opcodes import CONTRACTIONS
from models import gpt, lenet, mlp, rnnlm
from tests.automap.placement.problems import layers_arguments, layers_step, operators, traced


def _products(made: Operators) -> dict[int, list[Phase]]:
    products: dict[int, list[Phase]] = defaultdict(list)
    flow = made.dataflow
    for node, owner in enumerate(made.operator):
        for op in flow.ops[node]:
            if flow.problem.graph.ops[op].opcode in CONTRACTIONS:
                products[owner].append(made.phase[node])
    return products


def test_a_product_and_its_gradients_are_one_operator() -> None:
    # Without anything between the layers, only the weights say whose gradient a product is.
    made = operators(layers_step, layers_arguments())
    assert made.names == ("[0]['a']", "[0]['b']")
    forward, backward = Phase.FORWARD, Phase.BACKWARD
    # No gradient of the batch is taken: the first layer has that of its weights alone.
    assert _products(made) == {0: [forward, backward], 1: [forward, backward, backward]}


def test_every_time_step_of_a_layer_is_an_operator() -> None:
    steps = 3
    step, args = rnnlm.rnnlm_tiny(batch=4, seq=steps)
    made = operators(step, args)
    # The embedding, two layers of cells, and the output.
    assert len(made.names) == 1 + 2 * steps + 1
    for owner, phases in _products(made).items():
        assert sorted(phases) == [Phase.FORWARD, Phase.BACKWARD, Phase.BACKWARD], made.names[owner]


def test_products_that_are_only_added_are_one_operator() -> None:
    def step(w: dict[str, jax.Array], x: jax.Array, h: jax.Array) -> jax.Array:
        return jnp.tanh(x @ w["x"] + h @ w["h"]) @ w["o"]

    square = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    made = operators(step, (dict.fromkeys("xho", square), square, square))
    assert len(made.names) == 2


@pytest.mark.parametrize(
    "target",
    [mlp.mlp_tiny, lenet.lenet_tiny, gpt.gpt_tiny],
    ids=["mlp", "lenet", "gpt"],
)
def test_arrays_go_to_later_tasks_and_seconds_are_the_evaluators(target) -> None:
    step, args = target()
    workload = trace_step(step, args, platform="cuda")
    flow = step_dataflow(workload)
    problem = traced(step, args, "1xk80")
    task_of_node = {node: t for t, task in enumerate(problem.tasks) for node in task.nodes}
    assert set(task_of_node) == {n for n, varies in enumerate(flow.varies) if varies}
    for node, arrays in enumerate(flow.reads):
        for array in arrays:
            maker = flow.maker[array]
            if maker in task_of_node and node in task_of_node:
                assert task_of_node[maker] <= task_of_node[node]
    topology = get_topology("1xk80")
    tables = build_tables(workload.problem, "cuda")
    evaluator = Evaluator(tables, workload.problem.n_classes, topology)
    estimate = evaluator.evaluate(SplitClasses(Mesh(("one",), (1,)), ((),)))
    assert problem.seconds.sum() == pytest.approx(estimate.compute_seconds, rel=0.02)


def test_operators_of_a_program_file_are_those_of_its_step() -> None:
    step, args = lenet.lenet_tiny()
    workload = trace_step(step, args)
    flow = step_dataflow(workload)
    bare = step_dataflow(replace(workload, reemitter=None))
    assert len(bare.names) >= len(flow.names) // 2
    for node, arrays in enumerate(bare.reads):
        assert all(bare.maker[array] < node for array in arrays)
    assert bare.inputs == workload.problem.graph.inputs


def test_kinds_of_device_differ_in_seconds_and_equal_operators_are_alike() -> None:
    step, args = rnnlm.rnnlm_tiny(batch=4, seq=6)
    graph = get_graph("haswell-2xk80")
    problem = placement_problem(operators(step, args), graph.platform, graph.kinds)
    cpu, gpu = problem.operator_seconds
    assert (cpu > gpu).all()
    # The steps in the middle of a layer are equal, the first and the last are not.
    assert problem.alike[3] == problem.alike[4] != problem.alike[1]
    whole = problem.operators.dataflow.problem
    state = sum(
        whole.graph.values[whole.graph.inputs[position]].n_bytes
        for position in set(whole.state_map.values())
    )
    assert problem.state_bytes.sum() == state
    assert np.all(problem.activation_bytes[1:] > 0)
    assert NOBODY not in {task.operator for task in problem.tasks}
