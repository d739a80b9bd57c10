"""Simulated steps against the evaluator: the same sum where things run in line, near its waits
where they do not.
"""

from dataclasses import replace
from functools import cache

import pytest

from automap.cost.evaluate import Evaluator
from automap.cost.schedule.overlap import exposed_seconds
from automap.cost.schedule.work import step_work
from automap.cost.tables import build_tables
from automap.program.trace import trace_step
from automap.simulate.region import NodeKind
from automap.simulate.spmd import simulate_spmd
from automap.simulate.spmd_program import device_program
from automap.space.presets import PRESETS
from automap.space.space import Space
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from models import bert, gpt, mlp as mlp_model, moe, rnnlm
from tests.automap.simulate.regions import total_seconds
from tests.steps import decoder, images, mlp


def scanned():
    config = replace(gpt.TINY, depth=4, layers="scanned", remat="layer")
    return gpt.gpt(config, batch=16, seq=16).target


TARGETS = {
    "mlp": mlp,
    "decoder": decoder,
    "images": images,
    "scanned gpt": scanned,
    "bert": lambda: bert.bert(bert.TINY, batch=16, seq=16).target,
    "experts": lambda: moe.moe(moe.TINY, batch=16, seq=16).target,
    "lstm": lambda: rnnlm.rnnlm_step(rnnlm.TINY, batch=16, seq=16).target,
    "wide mlp": lambda: (
        mlp_model.mlp_step(replace(mlp_model.TINY, depth=4, width=2048), batch=1024).target
    ),
}
# One all-reduce between hosts, however small; a step of the smallest of these models takes not much
# longer.
ONE_MESSAGE_SECONDS = 60e-6
MESHES = {8: [(8,), (2, 4)], 16: [(16,), (2, 8)]}


@cache
def analysed(name, platform):
    step, args = TARGETS[name]()
    return trace_step(step, args, platform=platform).problem


@cache
def cases(name, topology):
    """(preset, split_classes, evaluator) of every preset on every mesh."""
    machine = get_topology(topology)
    problem = analysed(name, machine.platform)
    space = Space(problem)
    evaluator = Evaluator(build_tables(problem, machine.platform), problem.n_classes, machine)
    points = [
        (preset, point)
        for shape in MESHES[machine.device_count]
        for preset, it in PRESETS.items()
        for point in it.points(space, Mesh(("data", "model")[: len(shape)], shape))
        if space.is_valid(point)
    ]
    assert len(points) >= 4
    return [(preset, space.split_classes(point), evaluator) for preset, point in points]


@pytest.mark.parametrize("topology", ["cpu:8", "v5e:2x4"])
@pytest.mark.parametrize("name", TARGETS)
def test_in_line_the_simulated_step_is_the_predicted_one(name, topology):
    for preset, split_classes, evaluator in cases(name, topology):
        program = device_program(evaluator.tables, evaluator.price_point(split_classes))
        simulated = simulate_spmd(program, evaluator.topology.platform)
        expected = evaluator.evaluate(split_classes).step_seconds
        assert simulated.timeline.makespan_seconds == pytest.approx(expected, rel=1e-9), preset
        assert set(simulated.tasks.resource.tolist()) == {0}


@pytest.mark.parametrize("topology", ["8xh100", "2x8xv100"])
@pytest.mark.parametrize("name", TARGETS)
def test_beside_kernels_the_simulated_step_is_near_the_predicted_one(name, topology):
    for preset, split_classes, evaluator in cases(name, topology):
        priced = evaluator.price_point(split_classes)
        estimate = evaluator.estimate(priced)
        busy = estimate.collective_seconds + estimate.hidden_seconds
        program = device_program(evaluator.tables, priced)
        compute = total_seconds(program, NodeKind.KERNEL, NodeKind.SPARE)
        assert compute == pytest.approx(estimate.compute_seconds)
        assert total_seconds(program, NodeKind.COLLECTIVE) == pytest.approx(busy)
        step = simulate_spmd(program, "cuda").timeline.makespan_seconds
        assert max(compute, busy) * (1 - 1e-9) <= step <= (compute + busy) * (1 + 1e-9)
        # The simulator sends each tensor by itself, as the walk does where nothing goes together.
        work, _ = step_work(
            evaluator.tables.order,
            priced.kernel_seconds,
            priced.collectives,
            priced.collective_seconds,
        )
        waiting = exposed_seconds(work)
        assert step == pytest.approx(compute + waiting, rel=0.2, abs=ONE_MESSAGE_SECONDS)


def test_kernels_wait_for_the_collectives_of_what_they_read():
    _, split_classes, evaluator = next(c for c in cases("mlp", "8xh100") if c[0] == "megatron")
    priced = evaluator.price_point(split_classes)
    program = device_program(evaluator.tables, priced)
    graph = evaluator.tables.program.problem.graph
    (summed,) = [  # of the second product's partial sums
        n
        for n, it in enumerate(program.nodes)
        if it.is_urgent
        and graph.ops[it.edge_op].opcode == "dot"
        and "transpose" not in graph.ops[it.edge_op].op_name
    ]
    (product,) = program.nodes[summed].after
    assert program.nodes[product].number == program.nodes[summed].edge_op
    readers = [it for it in program.nodes if summed in it.after]
    assert readers and all(it.kind is not NodeKind.COLLECTIVE for it in readers)
