"""A step in stages computes what it does on one device: small steps, all shapes of pipelines."""

from dataclasses import replace

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from automap.errors import PlanError
from automap.pipeline.schedules import PRICED, Interleaved
from automap.runtime.pipeline.runner import simulated_order
from tests.automap.runtime.pipeline.running import (
    Running,
    assert_same,
    devices_of,
    even_cuts,
    mlp,
    record,
    three_steps,
)


# Sums of a few hundred float32 products in another order.
CLOSE = {"rtol": 1e-5, "atol": 2e-6}


@pytest.mark.parametrize(
    ("devices", "microbatches", "schedule"),
    [
        pytest.param((8,), 1, "gpipe", marks=pytest.mark.slow),
        pytest.param((4, 4), 4, "gpipe", marks=pytest.mark.slow),
        ((2, 1, 4, 1), 4, "1f1b"),
        ((1, 1, 1, 1), 8, "zero-bubble"),
        pytest.param((2, 1, 4, 1), 4, "zero-bubble", marks=pytest.mark.slow),
        pytest.param((1,), 4, "zero-bubble", marks=pytest.mark.slow),
        pytest.param((1,), 4, "1f1b", marks=pytest.mark.slow),
        pytest.param((1, 1, 1, 1), 16, "gpipe", marks=pytest.mark.slow),
    ],
)
def test_an_mlp_on_any_stages(devices, microbatches, schedule):
    step, (state, batch) = mlp()
    cuts = even_cuts(step, (state, batch), len(devices))
    run = Running(step, (state, batch), record(devices, cuts, microbatches, schedule))
    three_steps(run, step, state, [batch] * 3, **CLOSE)


def test_a_stage_has_its_own_state_and_nothing_else():
    step, (state, batch) = mlp()
    run = Running(step, (state, batch), record((2, 1, 4, 1), even_cuts(step, (state, batch), 4)))
    new, results = run(state, batch)
    stages = [{0, 1}, {2}, {3, 4, 5, 6}, {7}]
    for tree in (new["params"], new["momentum"]):
        # The last layer's product is the last stage's; its bias is added there.
        assert [devices_of(layer["w"])[0] for layer in tree] == stages
    held = sum(
        s.data.nbytes
        for x in jax.tree.leaves(new)
        for s in x.addressable_shards
        if s.device.id == 7
    )
    layer = sum(x.nbytes for x in jax.tree.leaves(state["params"][0]))
    assert held <= 2 * layer + 2 * state["params"][0]["b"].nbytes
    # What comes out goes in again without a move.
    again, _ = run(new, batch)
    assert devices_of(again) == devices_of(new)
    assert {float(results["loss"])} != {0.0}


@pytest.mark.parametrize(
    ("devices", "each", "microbatches"),
    [
        ((1, 1), 2, 4),
        pytest.param((2, 4), 2, 4, marks=pytest.mark.slow),
        pytest.param((1, 1, 1, 1), 2, 8, marks=pytest.mark.slow),
        pytest.param((2, 2), 4, 8, marks=pytest.mark.slow),
    ],
)
def test_an_mlp_on_interleaved_stages(devices, each, microbatches):
    """Equal to one device, in the simulated order; every layer on the devices of its stage."""
    groups = len(devices)
    step, (state, batch) = mlp(depth=groups * each, batch=32)
    cuts = even_cuts(step, (state, batch), groups * each)
    plan = record(devices, cuts, microbatches, "interleaved")
    run = Running(step, (state, batch), plan)
    new = three_steps(run, step, state, [batch] * 3, **CLOSE)
    ends = np.cumsum([0, *devices]).tolist()
    own = [set(range(a, b)) for a, b in zip(ends, ends[1:])]
    assert devices_of([layer["w"] for layer in new["params"]]) == own * each
    assert run.jobs == list(simulated_order(plan))
    for group in range(groups):
        mine = [job for job in run.jobs if job.stage % groups == group]
        assert mine == list(Interleaved(each).passes(group, groups, microbatches))


@pytest.mark.slow
def test_the_stages_did_their_passes_in_the_simulated_order():
    step, args = mlp(width=4)
    cuts = even_cuts(step, args, 4)
    for schedule in PRICED:
        seconds = [(1.0, 2.0), (2.0, 3.0), (1.0, 1.0), (0.5, 2.0)]
        plan = record((1, 1, 1, 1), cuts, 8, schedule.name, seconds)
        run = Running(step, args, plan)
        run(*args)
        assert run.jobs == list(simulated_order(plan))
        for stage in range(4):
            mine = [job for job in run.jobs if job.stage == stage]
            assert mine == list(schedule.passes(stage, 4, 8))


def test_tied_weights_have_one_owner_and_one_sum_of_gradients():
    table = jax.random.normal(jax.random.key(0), (10, 8))
    middle = jax.random.normal(jax.random.key(1), (8, 8))
    tokens = jnp.arange(16) % 10

    def step(state, batch):
        def loss(p):
            x = jnp.tanh(p["table"][batch] @ p["middle"])
            scores = jax.nn.log_softmax(x @ p["table"].T)
            return -jnp.take_along_axis(scores, (batch[:, None] + 1) % 10, 1).mean()

        value, gradient = jax.value_and_grad(loss)(state)
        return jax.tree.map(lambda p, g: p - 0.5 * g, state, gradient), value

    state = {"table": table, "middle": middle}
    run = Running(step, (state, tokens), record((2, 2), even_cuts(step, (state, tokens), 2)))
    new = three_steps(run, step, state, [tokens] * 3, **CLOSE)
    assert devices_of(new) == [{0, 1}, {0, 1}]


@pytest.mark.slow
def test_a_skip_connection_over_two_stages_and_outputs_per_sample():
    w = [jax.random.normal(jax.random.key(n), (8, 8)) * 0.5 for n in range(4)]
    x = jax.random.normal(jax.random.key(9), (16, 8))

    def step(w, batch):
        def loss(w):
            first = h = jnp.tanh(batch @ w[0])
            for each in w[1:3]:
                h = jnp.tanh(h @ each)
            out = (h + first) @ w[3]
            return (out**2).mean(), out[:, :3]

        (_, out), gradient = jax.value_and_grad(loss, has_aux=True)(w)
        return jax.tree.map(lambda p, g: p - 0.1 * g, w, gradient), out

    run = Running(step, (w, x), record((2, 2, 2, 2), even_cuts(step, (w, x), 4)))
    three_steps(run, step, w, [x, x + 1, x - 1], **CLOSE)


def test_masked_mean_and_dropout():
    w = [jax.random.normal(jax.random.key(n), (8, 8)) * 0.5 for n in range(2)]
    x = jax.random.normal(jax.random.key(9), (16, 8))

    def step(w, batch):
        def loss(w):
            h = jnp.tanh(batch["x"] @ w[0])
            h = jnp.where(jax.random.bernoulli(batch["key"], 0.5, h.shape), h * 2, 0)
            each = ((h @ w[1]) ** 2).sum(1)
            return (each * batch["mask"]).sum() / batch["mask"].sum()

        value, gradient = jax.value_and_grad(loss)(w)
        return jax.tree.map(lambda p, g: p - 0.1 * g, w, gradient), value

    batch = {"x": x, "mask": (jnp.arange(16) % 3 > 0).astype(jnp.float32), "key": jax.random.key(3)}
    run = Running(step, (w, batch), record((2, 4), even_cuts(step, (w, batch), 2), 2))
    three_steps(run, step, w, [batch] * 3, **CLOSE)


def test_what_stays_on_a_stage_lies_as_its_compiler_likes():
    w = [jax.random.normal(jax.random.key(n), (8, 8)) * 0.5 for n in range(2)]
    x = jax.random.normal(jax.random.key(9), (16, 8))

    def step(w, batch):
        def loss(w):
            # The gradient of the sine reads a transposed array, which need not be written so.
            h = jnp.sin(jnp.swapaxes(jnp.tanh(batch @ w[0]), 0, 1))
            return ((jnp.swapaxes(h, 0, 1) @ w[1]) ** 2).mean()

        value, gradient = jax.value_and_grad(loss)(w)
        return jax.tree.map(lambda p, g: p - 0.1 * g, w, gradient), value

    run = Running(step, (w, x), record((1, 2), even_cuts(step, (w, x), 2)))
    orders = {}
    for loop in run.assembly.programs.sweeps[0].loops.values():
        for value in loop.program.made:
            orders[value] = []
            assert (value in loop.program.stays) == (
                [stage for stage, _ in loop.routes[value]] == [loop.program.stage_pass.stage]
            )

    def noted(loop):
        def noting(*args):
            totals, made = loop.run(*args)
            for value, x in zip(loop.program.made, made, strict=True):
                orders[value].append((value in loop.program.stays, x.format.layout))
            return totals, made

        return replace(loop, run=noting)

    sweep = run.assembly.programs.sweeps[0]
    noting = replace(sweep, loops={p: noted(loop) for p, loop in sweep.loops.items()})
    programs = replace(run.assembly.programs, sweeps=[noting])
    run.assembly = replace(run.assembly, programs=programs)
    three_steps(run, step, w, [x] * 3, **CLOSE)
    seen = {
        (stays, layout.major_to_minor == tuple(range(len(layout.major_to_minor))))
        for each in orders.values()
        for stays, layout in each
    }
    # What is sent to another stage lies as arrays do, what stays also otherwise.
    assert seen == {(True, True), (True, False), (False, True)}


@pytest.mark.slow
def test_arrays_of_the_host_and_of_other_devices_are_taken():
    step, (state, batch) = mlp()
    run = Running(step, (state, batch), record((4, 4), even_cuts(step, (state, batch), 2)))
    want = jax.jit(step)(state, batch)
    on_host = jax.tree.map(np.asarray, (state, batch))
    elsewhere = jax.device_put((state, batch), jax.devices()[5])
    for args in (on_host, elsewhere):
        assert_same(run(*args), want, **CLOSE)


def test_cuts_that_the_step_does_not_have():
    step, args = mlp()
    for cuts, text in ((["9999"], "ascending sites of the step"), (["x"], "a site as 12")):
        with pytest.raises(PlanError, match=text):
            Running(step, args, record((4, 4), cuts))
