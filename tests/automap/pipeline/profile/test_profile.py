"""Profiles of small steps whose C, A and W are known."""

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from automap.cost.kernels.roofline import Roofline
from automap.errors import InputError
from automap.pipeline.profile.points import coarsen
from automap.pipeline.profile.profile import pipeline_profile, stage_tables
from automap.pipeline.profile.traffic import segment_bytes
from automap.program.trace import trace_step
from automap.runtime.pipeline.divide import StagePass
from automap.topology import get_topology
from models.bert import bert_tiny
from models.gpt import gpt_tiny
from models.resnet import resnet_tiny
from models.t5 import t5_tiny
from tests.automap.runtime.pipeline.running import Running, record


B, D = 32, 64
TOPOLOGY = get_topology("2x4xv100")


def profiled(step, args, topology=TOPOLOGY):
    problem = trace_step(step, args, platform=topology.platform).problem
    tables = stage_tables(problem, topology.platform)
    return pipeline_profile(problem, tables, Roofline(tables.kernels, topology)), problem, tables


def sgd(loss):
    def step(params, batch):
        found, gradients = jax.value_and_grad(loss)(params, batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), found

    return step


def shape(*dims):
    return jax.ShapeDtypeStruct(dims, jnp.float32)


def chain(params, x):
    for w in params:
        x = jnp.tanh(x @ w)
    return (x**2).mean()


def test_a_chain_of_layers():
    layers = 4
    profile, *_ = profiled(sgd(chain), ([shape(D, D)] * layers, shape(B, D)))
    weight, activation = 4 * D * D, 4 * B * D
    assert profile.batch_size == B
    assert profile.gradients.total_bytes == layers * weight
    # One read of each weight, in order, and a parameter with the sum of its gradients.
    assert np.all(np.diff(profile.gradients.item) > 0)
    assert profile.state.total_bytes == 2 * layers * weight
    for t in profile.gradients.item[1:]:
        # Before a product only what the layer before made is alive.
        assert profile.cut_bytes[t - 1] == activation
    forward, backward = profile.seconds(1)
    assert np.all(forward > 0)
    at = profile.gradients.item
    # Gradients of each weight, and of all inputs but the first, are with their product.
    assert backward[at[0]] >= TOPOLOGY.device.launch_seconds
    assert np.all(backward[at[1:]] >= 2 * TOPOLOGY.device.launch_seconds)


def test_a_skip_connection_is_counted_once_in_every_cut_it_crosses():
    def loss(params, x):
        y = jnp.tanh(x @ params[0])
        z = y
        for w in params[1:]:
            z = jnp.tanh(z @ w)
        return ((y + z) ** 2).mean()

    profile, *_ = profiled(sgd(loss), ([shape(D, D)] * 4, shape(B, D)))
    at = profile.gradients.item
    activation = 4 * B * D
    assert profile.cut_bytes[at[1] - 1] == activation
    assert profile.cut_bytes[at[2] - 1] == 2 * activation
    assert profile.cut_bytes[at[3] - 1] == 2 * activation


def test_a_shared_parameter_is_in_every_stage_that_uses_it():
    def loss(params, x):
        for _ in range(3):
            x = jnp.tanh(x @ params["w"])
        return (x**2).mean()

    profile, *_ = profiled(sgd(loss), ({"w": shape(D, D)}, shape(B, D)))
    weight = 4 * D * D
    at, n = sorted(profile.gradients.item), profile.n_items
    assert len(at) == 3
    table = segment_bytes(profile.gradients, n)
    assert table[0, n] == weight
    assert table[0, at[1]] == table[at[1], n] == weight
    assert profile.gradients.total_bytes == weight


def test_a_frozen_parameter_is_stored_and_has_no_gradient():
    def loss(params, batch):
        frozen, x = batch
        for low, own in zip(params, frozen):
            x = jnp.tanh(x @ own + (x @ low) @ low.T)
        return (x**2).mean()

    layers, rank = 3, 8
    profile, *_ = profiled(
        sgd(loss), ([shape(D, rank)] * layers, ([shape(D, D)] * layers, shape(B, D)))
    )
    trained, frozen = 4 * layers * D * rank, 4 * layers * D * D
    assert profile.parameters.total_bytes == trained + frozen
    assert profile.gradients.total_bytes == trained
    # The last are the transposes, which are made once a step.
    assert profile.state.total_bytes == 2 * trained + frozen + trained


def test_what_is_made_of_parameters_alone_crosses_nothing_and_brings_them_along():
    def loss(params, x):
        scale = jnp.tanh(params["a"] @ params["b"])
        for w in params["w"]:
            x = jnp.tanh(x @ w + scale)
        return (x**2).mean()

    profile, *_ = profiled(
        sgd(loss), ({"a": shape(8, 8), "b": shape(8, D), "w": [shape(D, D)] * 3}, shape(8, D))
    )
    assert set(profile.cut_bytes[:-1]) <= {4 * 8 * D, 0, 4}
    uses = profile.gradients
    assert len(uses.item) == 3 + 2 * 3


def momentum(loss):
    def step(params, moments, batch):
        gradients = jax.grad(loss)(params, batch)
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, gradients)
        return jax.tree.map(lambda p, m: p - 0.1 * m, params, moments), moments

    return step


def test_the_optimizer_of_a_shared_parameter_is_where_it_is_read_first():
    def loss(params, x):
        for _ in range(2):
            x = jnp.tanh(x @ params["w"])
        return (x**2).mean()

    weight = {"w": shape(D, D)}
    profile, *_ = profiled(momentum(loss), (weight, weight, shape(B, D)))
    at, n = sorted(profile.gradients.item), profile.n_items
    table = segment_bytes(profile.state, n)
    # The weight, the sum of its gradients, and in the first stage its moment.
    assert table[0, n] == table[0, at[1]] == 3 * 4 * D * D
    assert table[at[1], n] == 2 * 4 * D * D


@pytest.mark.parametrize(("topology", "moved"), [("2x4xv100", 3), ("v5e:2x4", 1)])
def test_a_microbatch_adds_its_gradients_to_their_sums(topology, moved):
    """Sum read, gradient read, sum written; a product that is fused with the sum reads it only."""
    layers, width = 3, 1024
    machine = get_topology(topology)
    profile, *_ = profiled(sgd(chain), ([shape(width, width)] * layers, shape(B, width)), machine)
    each = moved * 4 * width**2 / machine.device.memory_bytes_per_s("elementwise")
    assert profile.adding_seconds().sum() == pytest.approx(layers * each)
    half = np.full(len(profile.structure.stored.leaf_bytes), 2.0)
    assert profile.adding_seconds(half).sum() == pytest.approx(layers * each / 2)
    # They are the weight pass's, which is a part of the backward pass.
    assert profile.weight_seconds(1).sum() >= layers * each


def test_zeros_that_gradients_of_a_table_are_scattered_into_are_held_all_step():
    def loss(params, batch):
        return (params["table"][batch["tokens"]] @ params["w"]).mean()

    tokens = {"tokens": jax.ShapeDtypeStruct((B,), jnp.int32)}
    params = {"table": shape(128, D), "w": shape(D, D)}
    profile, *_ = profiled(sgd(loss), (params, tokens))
    assert profile.structure.stored.fixed.total_bytes == 4 * 128 * D


CASES = {
    "t5": (t5_tiny, {}),
    "t5 scanned": (t5_tiny, {"layers": "scanned"}),
    "gpt remat": (gpt_tiny, {"remat": "layer"}),
    "gpt scanned remat": (gpt_tiny, {"remat": "layer", "layers": "scanned"}),
    "bert": (bert_tiny, {}),
    "resnet": (resnet_tiny, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_lost(name):
    """Kernels add up to the evaluator's, parameters and optimizer to the step's inputs."""
    target, given = CASES[name]
    profile, problem, tables = profiled(*target(**given))
    forward, backward = profile.seconds(1)
    whole = profile.timing.kernel_seconds(1) @ tables.kernels.count + profile.adding_seconds().sum()
    assert forward.sum() + backward.sum() + profile.update_seconds == pytest.approx(whole)
    by_role = {"parameter": 0.0, "optimizer state": 0.0, "other state": 0.0}
    for value, role in zip(problem.graph.inputs, problem.roles, strict=True):
        if role.value in by_role:
            by_role[role.value] += problem.graph.values[value].n_bytes
    # Running statistics are read by the forward pass like parameters, and added up like gradients.
    read = by_role["parameter"] + by_role["other state"]
    assert profile.gradients.total_bytes == pytest.approx(read, rel=0.02)
    fixed = profile.structure.stored.fixed.total_bytes
    state = 2 * read + by_role["optimizer state"] + fixed
    assert profile.state.total_bytes == pytest.approx(state, rel=0.02)
    assert profile.may_cut.any()
    assert not profile.may_cut[-1]


@pytest.mark.parametrize("target", [gpt_tiny, t5_tiny])
def test_saved_is_what_the_forward_program_leaves_for_the_backward_program(target):
    """Byte for byte what the runtime's programs hand on."""
    microbatches = 4
    step, args = target()
    profile, *_ = profiled(step, args)
    run = Running(step, args, record((1,), [], microbatches))
    (sweep,) = run.assembly.programs.sweeps
    numbers = run.assembly.programs.blueprint.numbers
    left = sweep.loops[StagePass("forward", 0)].program.made
    read = sweep.loops[StagePass("backward", 0)].program.received
    handed_on = sum(numbers.n_bytes(v) for v in set(left) & set(read))
    assert profile.saved.total_bytes / microbatches == handed_on


@pytest.mark.parametrize("name", CASES)
def test_parts_of_the_batch_never_take_longer_and_never_less_in_all(name):
    target, given = CASES[name]
    profile, *_ = profiled(*target(**given))
    before = np.stack(profile.seconds(1))
    for parts in (2, 4):
        now = np.stack(profile.seconds(parts))
        assert np.all(now <= before * (1 + 1e-9))
        assert np.all(2 * now >= before * (1 - 1e-9))
        before = now


def test_a_scan_over_layers_is_cut_between_trips():
    scanned, *_ = profiled(*gpt_tiny(layers="scanned", remat="layer"))
    trips = [name for name in scanned.names if "#" in name]
    assert [name.partition("#")[2] for name in trips] == ["1", "2"]
    at = scanned.names.index(trips[0])
    assert scanned.may_cut[at]
    unrolled, *_ = profiled(*gpt_tiny())
    # Between layers the residual stream crosses, however they are written.
    assert scanned.cut_bytes[at] == 4 * 16 * 16 * 64
    assert scanned.cut_bytes[at] in unrolled.cut_bytes
    assert scanned.gradients.total_bytes == unrolled.gradients.total_bytes


def test_no_cut_within_what_is_made_again():
    plain, *_ = profiled(*gpt_tiny())
    again, *_ = profiled(*gpt_tiny(remat="layer"))
    assert again.may_cut.sum() < plain.may_cut.sum() / 2
    # One layer ends where the next one begins.
    between = again.labels.index("[0]['params']['layers'][1]['attention_norm']['scale']")
    assert again.may_cut[between - 4 : between].any()
    # What is kept is little, what is needed while working on a layer much.
    assert again.saved.total_bytes < 0.3 * plain.saved.total_bytes
    assert again.working_bytes.max() > plain.working_bytes.max()


def test_a_loop_over_time_is_one_item():
    def loss(params, x):
        def cell(h, now):
            return jnp.tanh(now @ params["in"] + h @ params["state"]), None

        h, _ = jax.lax.scan(cell, jnp.zeros((B, D)), jnp.swapaxes(x, 0, 1))
        return ((h @ params["out"]) ** 2).mean()

    args = {"in": shape(D, D), "state": shape(D, D), "out": shape(D, D)}
    profile, *_ = profiled(sgd(loss), (args, shape(B, 6, D)))
    assert not any("#" in name for name in profile.names)
    assert profile.gradients.total_bytes == 3 * 4 * D * D


def test_coarsening():
    profile, *_ = profiled(*t5_tiny())
    for how in ("smallest", "even"):
        points = coarsen(profile, 16, how)
        assert 2 <= points.n_points <= 17
        assert points.first[0] == 0
        assert points.first[-1] == profile.n_items
        assert np.all(np.diff(points.first) > 0)
        assert points.may_cut.all()
        forward, backward = points.seconds(2)
        assert forward[-1] == pytest.approx(profile.seconds(2)[0].sum())
        assert backward[-1] == pytest.approx(profile.seconds(2)[1].sum())
        assert points.gradient_bytes[0, -1] == pytest.approx(profile.gradients.total_bytes)
    small, even = (coarsen(profile, 16, how).cut_bytes[1:-1] for how in ("smallest", "even"))
    assert small.sum() < even.sum()
    full = coarsen(profile, 10_000)
    assert full.n_points == profile.may_cut.sum() + 1


def test_refuses_a_step_without_a_batch():
    with pytest.raises(InputError, match="batch"):
        profiled(lambda x: x * 2.0, (shape(),))
