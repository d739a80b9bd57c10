"""Small tensors of a split class left whole: the same numbers, and fewer collectives, all as
predicted.
"""

from collections import Counter
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap.api.plan import Plan
from automap.backends import backend_for
from automap.config import Options
from automap.planner.records import build_plan
from automap.planner.sharding import find
from automap.program import trace_step
from automap.search.context import Candidate
from automap.search.moves import SmallPartsChange, moves
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from models.moe import TINY, init, moe_tiny
from models.training import random_batch
from scripts.transfers import compiled_transfers, predicted_transfers


EXPERTS = "[0]['params']['layers'][*]['experts']['down'][0]"


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["megatron", "sequence-parallel"])
def test_a_router_left_whole(preset):
    step, args = moe_tiny()
    workload, topology = trace_step(step, args), get_topology("cpu:8")
    mesh = Mesh(("data", "model"), (4, 2))
    split = find(workload, topology, Options(mesh=mesh, preset=preset))
    space = split.context.space
    (experts,) = [c for c in space.small_part_classes if space.label(c) == EXPERTS]
    point = replace(split.best.point, small_whole_classes=frozenset({experts}))
    estimate = split.context.evaluator.evaluate(space.split_classes(point))
    assert estimate.collective_seconds < split.best.estimate.collective_seconds
    outcome = replace(split, best=Candidate(point, estimate, "test"))
    plan = Plan.from_record(build_plan(outcome))
    routers = [leaf for leaf in plan.inputs if "['gate']" in leaf.path and leaf.role == "parameter"]
    assert routers and all(set(leaf.spec) == {None} for leaf in routers)
    (why,) = [row for row in plan.decisions if row.group == f"small tensors of {EXPERTS}"]
    assert not why.axes and {leaf.path for leaf in routers} <= set(why.covers)

    state, batch = init(TINY, jax.random.key(0)), random_batch(args[1], 0)
    planned = plan.jit(step)
    text = planned.lower(state, batch).compile().as_text()
    compiled_bytes = compiled_transfers(text, mesh)
    assert compiled_bytes == predicted_transfers(outcome, backend_for("cpu"))
    assert compiled_bytes.total() < Counter(predicted_transfers(split, backend_for("cpu"))).total()
    # The step gives up its state.
    got = jax.device_get(planned(jax.tree.map(jnp.copy, state), batch)[1])
    want = jax.device_get(step(state, batch)[1])
    np.testing.assert_allclose(got["loss"], want["loss"], rtol=1e-6)


def test_search_has_the_move_that_leaves_a_router_whole_and_it_helps():
    workload = trace_step(*moe_tiny(), platform="tpu")
    options = Options(mesh=Mesh(("data", "model"), (2, 4)), preset="megatron")
    outcome = find(workload, get_topology("v5e:2x4"), options)
    context, best = outcome.context, outcome.best
    (whole,) = [
        move
        for move in moves(context.space, best.point)
        if isinstance(move, SmallPartsChange) and context.space.label(move.group_class) == EXPERTS
    ]
    candidate = context.consider(whole.apply(context.space, best.point), "test")
    assert candidate is not None
    assert candidate.estimate.step_seconds < best.estimate.step_seconds
