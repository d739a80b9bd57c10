"""A step of MuZero with mctx: a search over a learned model makes the policy's targets, in the
training step.
"""

import haiku as hk
import jax
import jax.numpy as jnp
import mctx
import optax


_ACTIONS, _EMBEDDING = 4, 16


def _represent(observation):
    return hk.nets.MLP([32, _EMBEDDING], name="represent")(observation)


def _predict(embedding):
    hidden = jax.nn.relu(hk.Linear(32, name="predict")(embedding))
    return hk.Linear(_ACTIONS, name="policy")(hidden), hk.Linear(1, name="value")(hidden)[..., 0]


def _dynamics(embedding, action):
    inputs = jnp.concatenate([embedding, jax.nn.one_hot(action, _ACTIONS)], -1)
    hidden = jax.nn.relu(hk.Linear(32, name="dynamics")(inputs))
    return hk.Linear(_EMBEDDING, name="next")(hidden), hk.Linear(1, name="reward")(hidden)[..., 0]


def gumbel_muzero():
    """Gumbel MuZero with eight simulations, its policy and value fitted to what the search says."""
    represent = hk.without_apply_rng(hk.transform(_represent))
    predict = hk.without_apply_rng(hk.transform(_predict))
    dynamics = hk.without_apply_rng(hk.transform(_dynamics))
    optimizer = optax.adam(1e-3)
    key = jax.random.key(0)
    observation = jax.random.normal(key, (16, 8))
    embedding = jnp.zeros((16, _EMBEDDING))
    params = {
        "represent": represent.init(key, observation),
        "predict": predict.init(key, embedding),
        "dynamics": dynamics.init(key, embedding, jnp.zeros(16, jnp.int32)),
    }

    def recurrent_fn(params, rng_key, action, embedding):
        next_embedding, reward = dynamics.apply(params["dynamics"], embedding, action)
        logits, value = predict.apply(params["predict"], next_embedding)
        output = mctx.RecurrentFnOutput(
            reward=reward, discount=jnp.full_like(reward, 0.99), prior_logits=logits, value=value
        )
        return output, next_embedding

    def loss_fn(params, batch, rng_key):
        embedding = represent.apply(params["represent"], batch["observation"])
        logits, value = predict.apply(params["predict"], embedding)
        root = mctx.RootFnOutput(prior_logits=logits, value=value, embedding=embedding)
        found = mctx.gumbel_muzero_policy(
            jax.lax.stop_gradient(params),
            rng_key,
            jax.lax.stop_gradient(root),
            recurrent_fn,
            num_simulations=8,
            max_num_considered_actions=_ACTIONS,
        )
        targets = jax.lax.stop_gradient(found.action_weights)
        next_embedding, reward = dynamics.apply(params["dynamics"], embedding, batch["action"])
        _, next_value = predict.apply(params["predict"], next_embedding)
        loss = (
            optax.softmax_cross_entropy(logits, targets)
            + optax.l2_loss(value, batch["return"])
            + optax.l2_loss(reward, batch["reward"])
            + optax.l2_loss(next_value, batch["next_return"])
        )
        return loss.mean(), found.action

    @jax.jit
    def train_step(params, opt_state, batch, rng_key):
        grads, action = jax.grad(loss_fn, has_aux=True)(params, batch, rng_key)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, action

    batch = {
        "observation": observation,
        "action": jnp.arange(16) % _ACTIONS,
        "reward": jax.random.normal(key, (16,)),
        "return": jnp.linspace(-1.0, 1.0, 16),
        "next_return": jnp.linspace(1.0, -1.0, 16),
    }
    return train_step, (params, optimizer.init(params), batch, key)
