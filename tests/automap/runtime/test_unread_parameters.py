"""Parameters that the loss does not read are stored split with their moments, as others are."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import automap
from automap.errors import InfeasiblePlanError


_OPTIMIZERS = {
    "adam": optax.adam(1e-3),
    "momentum": optax.sgd(0.1, momentum=0.9),
    "decay alone": optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.1)),
    "sgd": optax.sgd(0.1),
}


def _unread(optimizer):
    """A step and its arguments: three of five weights reach no loss."""
    keys = jax.random.split(jax.random.key(0), 7)
    params = {
        "in": jax.random.normal(keys[0], (64, 256)) * 0.1,
        "out": jax.random.normal(keys[1], (256, 16)) * 0.1,
        "unread": [jax.random.normal(key, (256, 256)) for key in keys[2:5]],
    }

    def loss(params, x, y):
        logits = jax.nn.relu(x @ params["in"]) @ params["out"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(state, x, y):
        params, moments = state
        value, gradients = jax.value_and_grad(loss)(params, x, y)
        changes, moments = optimizer.update(gradients, moments, params)
        return (optax.apply_updates(params, changes), moments), value

    x = jax.random.normal(keys[5], (256, 64))
    y = jax.random.randint(keys[6], (256,), 0, 16)
    return step, ((params, optimizer.init(params)), x, y)


@pytest.mark.parametrize("optimizer", _OPTIMIZERS)
@pytest.mark.parametrize("preset", ["zero-1", "zero-3", None])
def test_they_are_split_and_the_steps_equal_those_of_one_device(preset, optimizer):
    step, (state, x, y) = _unread(_OPTIMIZERS[optimizer])
    given = {"preset": preset} if preset else {"memory_limit": 0.8 / 1024}
    plan = automap.plan(step, (state, x, y), topology="cpu:8", levers="none", **given)
    # In whole the three weights alone, of 256 KiB each, are almost as much.
    assert plan.predicted.peak_bytes < 0.9 * 2**20
    planned, alone = plan.jit(step), jax.jit(step)
    mine = jax.tree.map(jnp.copy, state)
    for _ in range(2):
        mine, my_loss = planned(mine, x, y)
        state, loss = alone(state, x, y)
    for leaf in mine[0]["unread"]:
        assert {shard.data.size for shard in leaf.addressable_shards} == {256 * 256 // 8}
    for a, b in zip(jax.tree.leaves((state, loss)), jax.tree.leaves((mine, my_loss)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def test_what_does_not_fit_even_so_is_still_refused():
    step, args = _unread(_OPTIMIZERS["adam"])
    with pytest.raises(InfeasiblePlanError):
        automap.plan(step, args, topology="cpu:8", levers="none", memory_limit=2e-4)
