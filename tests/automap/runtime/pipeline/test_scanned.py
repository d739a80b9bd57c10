"""Pipelines whose stages end inside a loop over layers: numbers, and how the stacked parameters
lie.
"""

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from automap.jaxpr.flatten import flatten
from tests.automap.runtime.pipeline.running import Running, devices_of, record, three_steps
from tests.automap.runtime.pipeline.test_loops import layers


def scanned(length=4, width=8):
    keys = jax.random.split(jax.random.key(0), 3)
    w = {
        "kernel": jax.random.normal(keys[0], (length, width, width)) * 0.3,
        "bias": jax.random.normal(keys[1], (length, width)),
    }

    def step(state, batch):
        def loss(w):
            y, sums = layers(batch, w)
            return (y**2).mean()

        value, gradient = jax.value_and_grad(loss)(state["w"])
        m = jax.tree.map(lambda m, g: 0.9 * m + g, state["m"], gradient)
        return {"w": jax.tree.map(lambda w, m: w - 0.1 * m, state["w"], m), "m": m}, value

    state = {"w": w, "m": jax.tree.map(jnp.zeros_like, w)}
    return jax.jit(step, donate_argnums=0), state, jax.random.normal(keys[2], (16, width))


def running(step, args, trips, devices):
    call = flatten(jax.make_jaxpr(step)(*args), {})
    site = next(e.path for e in call.equations if e.eqn.primitive.name == "scan")
    return Running(step, args, record(devices, [f"{site}#{t}" for t in trips], 2))


def test_equal_pieces_are_one_array_over_the_stages_that_does_not_move():
    step, state, x = scanned()
    run = running(step, (state, x), (2,), (2, 2))
    new = three_steps(run, step, state, [x, x + 1, x - 1], rtol=1e-5, atol=1e-6)
    for leaf in jax.tree.leaves(new):
        assert devices_of([leaf]) == [{0, 1, 2, 3}]
        rows = {
            s.device.id: (s.index[0].start or 0, s.data.shape[0]) for s in leaf.addressable_shards
        }
        assert rows == {0: (0, 2), 1: (0, 2), 2: (2, 2), 3: (2, 2)}
    before = [s.data.unsafe_buffer_pointer() for s in new["w"]["kernel"].addressable_shards]
    stored = next(s for s in run.assembly.inputs if len(s.numbers) == 2)
    kernel = new["w"]["kernel"]
    pieces = stored.split(kernel)
    assert [x.shape[0] for x in pieces] == [2, 2]
    assert [s.data.unsafe_buffer_pointer() for x in pieces for s in x.addressable_shards] == before
    np.testing.assert_array_equal(np.asarray(stored.join(pieces)), np.asarray(kernel))


@pytest.mark.parametrize(
    ("trips", "devices"), [pytest.param((1,), (2, 2), marks=pytest.mark.slow), ((2, 3), (1, 4, 2))]
)
def test_unequal_pieces_are_split_evenly_between_steps(trips, devices):
    step, state, x = scanned()
    run = running(step, (state, x), trips, devices)
    new = three_steps(run, step, state, [x, x + 1, x - 1], rtol=1e-5, atol=1e-6)
    kernel = new["w"]["kernel"]
    # Four of seven devices: layers cannot be divided by more.
    (places,) = devices_of([kernel])
    assert len(places) == 4
    assert places <= set(range(sum(devices)))
    assert kernel.addressable_shards[0].data.size * 4 == kernel.size
