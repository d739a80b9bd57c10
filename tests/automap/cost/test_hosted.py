"""State in host memory: which leaves may be there, and closed forms of its bytes and seconds."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap.config import read_options
from automap.cost.evaluate import Evaluator
from automap.cost.hosted import host_waiting_seconds, movable_leaves
from automap.cost.memory import TEMPORARY_KIND
from automap.cost.tables import build_tables
from automap.planner.sharding import find
from automap.program.trace import trace_step
from automap.topology import get_topology


LAYERS, WIDTH = 12, 128
LEAF_BYTES = 4 * WIDTH * WIDTH


def _loss(params, x):
    for w in params:
        x = jnp.tanh(x @ w)
    return (x**2).mean()


def _momentum(state, x):
    gradients = jax.grad(_loss)(state["params"], x)
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, state["moments"], gradients)
    params = jax.tree.map(lambda p, m: p - 0.1 * m, state["params"], moments)
    return {"params": params, "moments": moments, "count": state["count"] + 1}


def _workload(step, state, platform="tpu"):
    x = jax.ShapeDtypeStruct((32, WIDTH), "float32")
    return trace_step(jax.jit(step, donate_argnums=0), (state, x), platform=platform)


def _state():
    leaves = [jax.ShapeDtypeStruct((WIDTH, WIDTH), "float32") for _ in range(LAYERS)]
    count = jax.ShapeDtypeStruct((), "int32")
    return {"params": leaves, "moments": leaves, "count": count}


def test_moments_can_be_there_and_nothing_else():
    problem = _workload(_momentum, _state()).problem
    names = {problem.paths[leaf] for leaf in movable_leaves(problem, "in parts")}
    assert names == {f"[0]['moments'][{n}]" for n in range(LAYERS)}


def test_what_the_forward_pass_reads_cannot():
    def step(state, x):
        new = _momentum(state, x)
        # The first moment has a part in the loss.
        more = jax.grad(lambda p: _loss(p, x * state["moments"][0].mean()))(state["params"])
        return new | {"params": jax.tree.map(lambda p, g: p - g, new["params"], more)}

    problem = _workload(step, _state()).problem
    names = {problem.paths[leaf] for leaf in movable_leaves(problem, "in parts")}
    assert "[0]['moments'][0]" not in names
    assert "[0]['moments'][1]" in names


def test_leaves_in_parts_are_updated_element_by_element():
    def step(state, x):
        new = _momentum(state, x)
        scaled = jax.tree.map(
            lambda p, m: p - m / (1e-3 + jnp.abs(m).max()), state["params"], new["moments"]
        )
        return new | {"params": [scaled[0], *new["params"][1:]]}

    problem = _workload(step, _state()).problem
    whole, parts = (
        {problem.paths[leaf] for leaf in movable_leaves(problem, how)}
        for how in ("whole leaves", "in parts")
    )
    assert whole - parts == {"[0]['moments'][0]"}


def _evaluators(names, machine):
    """Without, and with those of the moments in host memory whose numbers are given."""
    topology = get_topology(machine)
    workload = _workload(_momentum, _state(), topology.platform)
    options = read_options(preset="data-parallel", levers="none")
    context = find(workload, topology, options).context
    point = context.space.split_classes(context.best.point)
    paths = workload.problem.paths
    leaves = movable_leaves(workload.problem, context.evaluator.backend.host_state)
    hosted = frozenset(leaf for leaf in leaves if paths[leaf] in names)
    problem = replace(workload.problem, hosted=hosted)
    changed = Evaluator(build_tables(problem, topology.platform), problem.n_classes, topology)
    return context.evaluator, changed, point


@pytest.mark.parametrize("count", [1, LAYERS])
@pytest.mark.parametrize(("machine", "leaves", "part"), [("v5e:2x2", 1, 16), ("4xh100", 5, 1)])
def test_bytes_and_seconds_in_closed_form(machine, leaves, part, count):
    names = {f"[0]['moments'][{n}]" for n in range(count)}
    before, after, point = _evaluators(names, machine)
    memory = [e.memory(point) for e in (before, after)]
    stored = [m.role_bytes("optimizer state") for m in memory]
    assert stored == [LAYERS * LEAF_BYTES, (LAYERS - count) * LEAF_BYTES]
    # At no time more than so many of them, or a part of one, take room on the device.
    most = min(leaves, count) * LEAF_BYTES / part
    assert memory[1].peak_bytes <= memory[0].peak_bytes - count * LEAF_BYTES + most
    buffers = after.tables.buffers
    is_hosted = buffers.hosted_bytes > 0
    assert buffers.hosted_bytes[is_hosted].tolist() == [LEAF_BYTES] * count
    assert buffers.n_bytes[is_hosted].tolist() == [LEAF_BYTES / part] * count
    assert (buffers.kind[is_hosted] == TEMPORARY_KIND).all()
    alive = [
        int(((buffers.birth <= at) & (at <= buffers.death))[is_hosted].sum())
        for at in range(buffers.n_positions)
    ]
    assert 0 < max(alive) <= leaves
    waited = after.evaluate(point).host_seconds
    link = get_topology(machine).device.host_bytes_per_s
    assert waited == pytest.approx(2 * count * LEAF_BYTES / link)
    assert before.evaluate(point).host_seconds == 0
    others = [e.evaluate(point) for e in (before, after)]
    assert others[1].step_seconds == pytest.approx(others[0].step_seconds + waited)


def test_all_copies_are_waited_for_in_and_out():
    assert host_waiting_seconds(np.array([4.0, 2.0]), 2.0) == 3.0 + 3.0
    assert host_waiting_seconds(np.zeros(0), 2.0) == 0.0
