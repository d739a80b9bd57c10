"""Steps of RLax: Q-learning from a replay buffer of Flashbax, and an actor-critic off its policy,
with Haiku.
"""

import flashbax
import haiku as hk
import jax
import jax.numpy as jnp
import optax
import rlax


def double_q():
    """Double Q-learning on a sample of a buffer that the step also adds to; the target network
    follows slowly.
    """
    network = hk.without_apply_rng(hk.transform(lambda obs: hk.nets.MLP([32, 4])(obs)))
    buffer = flashbax.make_flat_buffer(max_length=128, min_length=8, sample_batch_size=16)
    key = jax.random.key(0)

    def seen(key):
        return {
            "obs": jax.random.normal(key, (8,)),
            "action": jax.random.randint(key, (), 0, 4),
            "reward": jax.random.normal(key, ()),
            "discount": jnp.float32(0.99),
        }

    memory = buffer.init(seen(key))
    for i in range(32):
        memory = buffer.add(memory, seen(jax.random.fold_in(key, i)))
    params = network.init(key, jnp.zeros((1, 8)))
    optimizer = optax.adam(1e-3)

    def loss_fn(params, target, first, second):
        q = network.apply(params, first["obs"])
        q_target = network.apply(target, second["obs"])
        selector = network.apply(params, second["obs"])
        errors = jax.vmap(rlax.double_q_learning)(
            q, first["action"], first["reward"], first["discount"], q_target, selector
        )
        return jnp.mean(rlax.l2_loss(errors))

    @jax.jit
    def step(learner, memory, new, key):
        memory = buffer.add(memory, new)
        sample = buffer.sample(memory, key).experience
        params, target, opt_state = learner
        loss, grads = jax.value_and_grad(loss_fn)(params, target, sample.first, sample.second)
        updates, opt_state = optimizer.update(grads, opt_state)
        params = optax.apply_updates(params, updates)
        target = optax.incremental_update(params, target, 0.01)
        return [params, target, opt_state], memory, loss

    learner = [params, params, optimizer.init(params)]
    return step, (learner, memory, seen(key), jax.random.key(1))


def v_trace():
    """V-trace over sequences from an older policy, time first."""

    def forward(obs):
        hidden = jax.nn.relu(hk.Linear(32)(obs))
        return hk.Linear(4)(hidden), hk.Linear(1)(hidden)[..., 0]

    network = hk.without_apply_rng(hk.transform(forward))
    key = jax.random.key(0)
    batch = {
        "obs": jax.random.normal(key, (13, 16, 8)),
        "action": jax.random.randint(key, (12, 16), 0, 4),
        "reward": jax.random.normal(key, (12, 16)),
        "discount": jnp.full((12, 16), 0.99),
        "logits": jnp.zeros((12, 16, 4)),
    }
    params = network.init(key, batch["obs"])
    optimizer = optax.rmsprop(1e-3)
    over_batch = {"in_axes": 1, "out_axes": 1}

    def loss_fn(params, batch):
        logits, values = network.apply(params, batch["obs"])
        rhos = jax.vmap(rlax.categorical_importance_sampling_ratios, **over_batch)(
            logits[:-1], batch["logits"], batch["action"]
        )
        returns = jax.vmap(rlax.vtrace_td_error_and_advantage, **over_batch)(
            values[:-1], values[1:], batch["reward"], batch["discount"], rhos
        )
        weights = jnp.ones(12)
        policy = jax.vmap(rlax.policy_gradient_loss, in_axes=(1, 1, 1, None))(
            logits[:-1], batch["action"], returns.pg_advantage, weights
        )
        entropy = jax.vmap(rlax.entropy_loss, in_axes=(1, None))(logits[:-1], weights)
        return jnp.mean(policy) + 0.01 * jnp.mean(entropy) + 0.5 * jnp.mean(returns.errors**2)

    @jax.jit
    def step(params, opt_state, batch):
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    return step, (params, optimizer.init(params), batch)
