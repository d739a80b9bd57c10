"""Where the kernels and collectives of a real plan are put."""

from dataclasses import replace

import numpy as np

from automap.cost.evaluate import Evaluator
from automap.cost.schedule.order import SPARE
from automap.cost.schedule.work import device_work
from automap.cost.tables import build_tables
from automap.program.trace import trace_step
from automap.space.presets import PRESETS
from automap.space.space import Space
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from models import gpt


def test_in_a_loop_products_come_before_their_sums_and_what_stacks_these_after():
    step, args = gpt.gpt(replace(gpt.TINY, depth=4, layers="scanned"), batch=16, seq=16).target
    problem = trace_step(step, args, platform="cuda").problem
    evaluator = Evaluator(build_tables(problem, "cuda"), problem.n_classes, get_topology("8xh100"))
    space = Space(problem)
    (point,) = PRESETS["data-parallel"].points(space, Mesh(("data",), (8,)))
    priced = evaluator.price_point(space.split_classes(point))
    order, collectives = evaluator.tables.order, priced.collectives
    seconds = np.where(order.row >= 0, priced.kernel_seconds[order.row], 0.0) * order.trips
    # A message each, so that every sum stays where it is ready.
    work = device_work(
        order,
        seconds,
        collectives,
        priced.collective_seconds * collectives.count,
        messages=np.ones(len(collectives.kind)),
    )
    opcodes = np.array([problem.graph.ops[op].opcode for op in order.op])
    summed = np.flatnonzero(work.sum_at >= 0)
    assert set(opcodes[summed]) == {"dot"}
    in_loop = summed[order.loop[summed] >= 0]
    # Queries, keys, values, and the three other weights of a layer.
    assert len(in_loop) == 6
    assert work.sum_at[in_loop].tolist() == (in_loop + 1).tolist()
    assert (work.backlog[in_loop + 1] > 0).all()
    # What reads one of these stacks its sum: nothing else of the loop waits for it.
    stacks = np.isin(order.data_at, in_loop + 1) & (order.kind == SPARE)
    assert stacks.any()
    assert (work.data_at[stacks] == len(order.kind) + 1).all()
