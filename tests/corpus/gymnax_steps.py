"""A step of PPO in an environment of Gymnax: the whole update, rollout and epochs, is one jitted
function.
"""

import distrax
import flax.linen as nn
from flax.training.train_state import TrainState
import gymnax
import jax
import jax.numpy as jnp
import optax


_ENVS, _LENGTH, _EPOCHS, _MINIBATCHES = 16, 8, 2, 2


class _ActorCritic(nn.Module):
    actions: int

    @nn.compact
    def __call__(self, x):
        hidden = nn.tanh(nn.Dense(32, kernel_init=nn.initializers.orthogonal(1.4))(x))
        logits = nn.Dense(self.actions, kernel_init=nn.initializers.orthogonal(0.01))(hidden)
        value = nn.Dense(1)(nn.tanh(nn.Dense(32)(x)))
        return distrax.Categorical(logits=logits), value[..., 0]


def _losses(params, apply_fn, part):
    obs, action, old_log_prob, old_value, advantage, target = part
    policy, value = apply_fn(params, obs)
    clipped = old_value + jnp.clip(value - old_value, -0.2, 0.2)
    value_loss = 0.5 * jnp.maximum((value - target) ** 2, (clipped - target) ** 2).mean()
    ratio = jnp.exp(policy.log_prob(action) - old_log_prob)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage).mean()
    return 0.5 * value_loss - gain - 0.01 * policy.entropy().mean()


def _advantages(values, last_value, rewards, dones):
    def one(carry, now):
        advantage, next_value = carry
        value, reward, done = now
        delta = reward + 0.99 * next_value * (1 - done) - value
        advantage = delta + 0.99 * 0.95 * (1 - done) * advantage
        return (advantage, value), advantage

    start = (jnp.zeros_like(last_value), last_value)
    return jax.lax.scan(one, start, (values, rewards, dones), reverse=True)[1]


def ppo():
    """CartPole in sixteen environments: a scan of steps, a reversed scan of advantages, scans of
    epochs.
    """
    env, env_params = gymnax.make("CartPole-v1")
    network = _ActorCritic(env.action_space(env_params).n)
    key = jax.random.key(0)
    reset, act = jax.vmap(env.reset, (0, None)), jax.vmap(env.step, (0, 0, 0, None))
    obs, env_state = reset(jax.random.split(key, _ENVS), env_params)
    tx = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(2.5e-4, eps=1e-5))
    train_state = TrainState.create(apply_fn=network.apply, params=network.init(key, obs), tx=tx)

    @jax.jit
    def update(runner):
        train_state, env_state, obs, key = runner
        key, key_roll, key_order = jax.random.split(key, 3)

        def env_step(carry, key):
            env_state, obs = carry
            key_action, key_step = jax.random.split(key)
            policy, value = train_state.apply_fn(train_state.params, obs)
            action = policy.sample(seed=key_action)
            keys = jax.random.split(key_step, _ENVS)
            after, env_state, reward, done, *_ = act(keys, env_state, action, env_params)
            seen = (obs, action, policy.log_prob(action), value, reward, done)
            return (env_state, after), seen

        (env_state, obs), seen = jax.lax.scan(
            env_step, (env_state, obs), jax.random.split(key_roll, _LENGTH)
        )
        seen_obs, action, log_prob, value, reward, done = seen
        _, last_value = train_state.apply_fn(train_state.params, obs)
        advantage = _advantages(value, last_value, reward, done)
        flat = jax.tree.map(
            lambda x: x.reshape(-1, *x.shape[2:]),
            (seen_obs, action, log_prob, value, advantage, advantage + value),
        )

        def epoch(train_state, key):
            order = jax.random.permutation(key, _ENVS * _LENGTH)
            parts = jax.tree.map(lambda x: x[order].reshape(_MINIBATCHES, -1, *x.shape[1:]), flat)

            def minibatch(train_state, part):
                loss, grads = jax.value_and_grad(_losses)(
                    train_state.params, train_state.apply_fn, part
                )
                return train_state.apply_gradients(grads=grads), loss

            return jax.lax.scan(minibatch, train_state, parts)

        train_state, loss = jax.lax.scan(epoch, train_state, jax.random.split(key_order, _EPOCHS))
        return [train_state, env_state, obs, key], loss.mean()

    return update, ([train_state, env_state, obs, key],)
