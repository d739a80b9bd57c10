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
TOPOLOGY = "v5e:2x2"
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


def _workload(step, state):
    x = jax.ShapeDtypeStruct((32, WIDTH), "float32")
    return trace_step(jax.jit(step, donate_argnums=0), (state, x), platform="tpu")


def _state():
    leaves = [jax.ShapeDtypeStruct((WIDTH, WIDTH), "float32") for _ in range(LAYERS)]
    count = jax.ShapeDtypeStruct((), "int32")
    return {"params": leaves, "moments": leaves, "count": count}


def test_moments_can_be_there_and_nothing_else():
    problem = _workload(_momentum, _state()).problem
    names = {problem.paths[leaf] for leaf in movable_leaves(problem)}
    assert names == {f"[0]['moments'][{n}]" for n in range(LAYERS)}


def test_what_the_forward_pass_reads_cannot():
    def step(state, x):
        new = _momentum(state, x)
        # The first moment has a part in the loss.
        more = jax.grad(lambda p: _loss(p, x * state["moments"][0].mean()))(state["params"])
        return new | {"params": jax.tree.map(lambda p, g: p - g, new["params"], more)}

    problem = _workload(step, _state()).problem
    names = {problem.paths[leaf] for leaf in movable_leaves(problem)}
    assert "[0]['moments'][0]" not in names
    assert "[0]['moments'][1]" in names


def _evaluators(names):
    """Without, and with those of the moments in host memory whose numbers are given."""
    workload, topology = _workload(_momentum, _state()), get_topology(TOPOLOGY)
    options = read_options(preset="data-parallel", levers="none")
    context = find(workload, topology, options).context
    point = context.space.split_classes(context.best.point)
    hosted = frozenset(
        leaf for leaf in movable_leaves(workload.problem) if workload.problem.paths[leaf] in names
    )
    problem = replace(workload.problem, hosted=hosted)
    changed = Evaluator(build_tables(problem, "tpu"), problem.n_classes, topology)
    return context.evaluator, changed, point


@pytest.mark.parametrize("count", [1, LAYERS])
def test_bytes_and_seconds_in_closed_form(count):
    names = {f"[0]['moments'][{n}]" for n in range(count)}
    before, after, point = _evaluators(names)
    memory = [e.memory(point) for e in (before, after)]
    stored = [m.role_bytes("optimizer state") for m in memory]
    assert stored == [LAYERS * LEAF_BYTES, (LAYERS - count) * LEAF_BYTES]
    # At no time more than five of them take room on the device.
    assert memory[1].peak_bytes <= memory[0].peak_bytes - max(count - 5, 0) * LEAF_BYTES
    if count > 5:
        assert memory[1].peak_bytes < memory[0].peak_bytes
    buffers = after.tables.buffers
    assert buffers.hosted.sum() == count
    assert (buffers.kind[buffers.hosted] == TEMPORARY_KIND).all()
    alive = [
        int(((buffers.birth <= at) & (at <= buffers.death))[buffers.hosted].sum())
        for at in range(buffers.n_positions)
    ]
    assert 0 < max(alive) <= 5
    link = get_topology(TOPOLOGY).device.host_bytes_per_s
    waited = after.evaluate(point).host_seconds
    longest = (count + 1) * LEAF_BYTES / link
    priced = after.price_point(point)
    update = longest - waited
    assert 0 < update < float(priced.kernel_seconds @ after.tables.kernels.count)
    assert before.evaluate(point).host_seconds == 0
    others = [e.evaluate(point) for e in (before, after)]
    assert others[1].step_seconds == pytest.approx(others[0].step_seconds + waited)


def test_the_link_is_waited_for_beyond_the_update():
    leaves = np.array([4.0, 2.0])
    # Six bytes in, and the last four out when none comes in any more.
    assert host_waiting_seconds(leaves, 2.0, 1.5) == 5.0 - 1.5
    assert host_waiting_seconds(leaves, 2.0, 7.0) == 0.0


def test_copies_in_line_are_all_waited_for_in_and_out():
    leaves = np.array([4.0, 2.0])
    assert host_waiting_seconds(leaves, 2.0, None) == 3.0 + 3.0
    assert host_waiting_seconds(np.zeros(0), 2.0, None) == 0.0
