"""Learning of `scripts.unseen_steps` that is no plain descent: by rewards, and of how to learn."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from scripts.memory_targets import Target, array, trained
from scripts.unseen_targets import (
    convolution,
    indices,
    mean_square,
    optimized,
    random_key,
    standardized,
)


def learned_start() -> Target:
    """MAML: the gradient through two steps of descent on each of 64 tasks."""
    tasks, points, d, hidden = 64, 32, 128, 512

    def error(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return mean_square(jnp.tanh(jnp.tanh(x @ params["a"]) @ params["b"]) @ params["c"], y)

    def adapted_error(params: Any, x: Any, y: Any, asked: Any, answer: Any) -> jax.Array:
        for _ in range(2):
            gradients = jax.grad(error)(params, x, y)
            params = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)
        return error(params, asked, answer)

    def loss(params: Any, *batch: jax.Array) -> jax.Array:
        return jax.vmap(adapted_error, (None, 0, 0, 0, 0))(params, *batch).mean()

    params = {"a": array(d, hidden), "b": array(hidden, hidden), "c": array(hidden, 16)}
    x, y = array(tasks, points, d), array(tasks, points, 16)
    return trained(loss, params, x, y, x, y)


def shuffled_ppo() -> Target:
    """PPO: advantages by a scan backwards, then four epochs of shuffled minibatches."""
    envs, length, observed, actions, d = 1024, 64, 64, 8, 512
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(3e-4))

    def network(params: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jnp.tanh(jnp.tanh(x @ params["a"]) @ params["b"])
        return h @ params["policy"], (h @ params["value"])[..., 0]

    def loss(params: Any, x: Any, action: Any, old: Any, advantage: Any, goal: Any) -> jax.Array:
        logits, value = network(params, x)
        log_p = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], 1)[:, 0]
        ratio = jnp.exp(log_p - old)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage)
        return -gain.mean() + 0.5 * mean_square(value, goal)

    def advantages(value: jax.Array, reward: jax.Array, done: jax.Array) -> jax.Array:
        def earlier(carry: Any, x: Any) -> tuple[Any, jax.Array]:
            (advantage, after), (reward, done, value) = carry, x
            delta = reward + 0.99 * after * (1 - done) - value
            advantage = delta + 0.99 * 0.95 * (1 - done) * advantage
            return (advantage, value), advantage

        start = (jnp.zeros(envs), value[-1])
        return jax.lax.scan(earlier, start, (reward, done, value), reverse=True)[1]

    def step(
        params: Any, state: Any, x: Any, action: Any, reward: Any, done: Any, old: Any, key: Any
    ):
        _, value = network(params, x)
        advantage = advantages(value, reward, done)
        data = jax.tree.map(
            lambda z: z.reshape(length * envs, *z.shape[2:]),
            (x, action, old, advantage, advantage + value),
        )

        def minibatch(carry: Any, batch: Any) -> tuple[Any, jax.Array]:
            params, state = carry
            value, gradients = jax.value_and_grad(loss)(params, *batch)
            updates, state = optimizer.update(gradients, state, params)
            return (optax.apply_updates(params, updates), state), value

        def epoch(carry: Any, key: jax.Array) -> tuple[Any, jax.Array]:
            order = jax.random.permutation(key, length * envs)
            batches = jax.tree.map(lambda z: z[order].reshape(8, -1, *z.shape[1:]), data)
            return jax.lax.scan(minibatch, carry, batches)

        (params, state), values = jax.lax.scan(epoch, (params, state), jax.random.split(key, 4))
        return params, state, values.mean()

    params = {
        "a": array(observed, d),
        "b": array(d, d),
        "policy": array(d, actions),
        "value": array(d, 1),
    }
    each = array(length, envs)
    state = jax.eval_shape(optimizer.init, params)
    batch = (array(length, envs, observed), indices(length, envs), each, each, each)
    return step, (params, state, *batch, random_key())


def soft_actor_critic() -> Target:
    """SAC: two critics at once, an actor and a temperature, each with an optimizer."""
    batch, observed, actions, d = 32768, 376, 17, 1024
    optimizer = optax.adam(3e-4)

    def dense(layers: Any, x: jax.Array) -> jax.Array:
        for w in layers[:-1]:
            x = jax.nn.relu(x @ w)
        return x @ layers[-1]

    def acted(actor: Any, x: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        mean, log_scale = jnp.split(dense(actor, x), 2, -1)
        log_scale = jnp.clip(log_scale, -5.0, 2.0)
        noise = jax.random.normal(key, mean.shape)
        raw = mean + jnp.exp(log_scale) * noise
        log_p = -0.5 * noise**2 - log_scale - 2 * (jnp.log(2.0) - raw - jax.nn.softplus(-2 * raw))
        return jnp.tanh(raw), log_p.sum(-1)

    def values(critics: Any, x: jax.Array, action: jax.Array) -> jax.Array:
        both = jnp.concatenate([x, action], -1)
        return jax.vmap(dense, (0, None))(critics, both)[..., 0]

    def critic_loss(critics: Any, x: jax.Array, action: jax.Array, goal: jax.Array) -> jax.Array:
        return mean_square(values(critics, x, action), goal)

    def actor_loss(actor: Any, critics: Any, heat: jax.Array, x: jax.Array, key: jax.Array) -> Any:
        action, log_p = acted(actor, x, key)
        return (jnp.exp(heat) * log_p - values(critics, x, action).min(0)).mean(), log_p.mean()

    def step(params: Any, states: Any, slow: Any, batch: Any, key: jax.Array) -> Any:
        x, action, reward, after, done = batch
        keys, (actor, critics, heat) = jax.random.split(key), params
        next_action, log_p = acted(actor, after, keys[0])
        value = values(slow, after, next_action).min(0) - jnp.exp(heat) * log_p
        goal = reward + 0.99 * (1 - done) * value
        critic_slope = jax.grad(critic_loss)(critics, x, action, goal)
        actor_slope, log_p = jax.grad(actor_loss, has_aux=True)(actor, critics, heat, x, keys[1])
        gradients = (actor_slope, critic_slope, -jnp.exp(heat) * (log_p - actions))
        updates, states = zip(*map(optimizer.update, gradients, states))
        params = optax.apply_updates(params, updates)
        slow = jax.tree.map(lambda s, p: 0.995 * s + 0.005 * p, slow, params[1])
        return params, states, slow

    actor = [array(observed, d), array(d, d), array(d, 2 * actions)]
    critics = [array(2, observed + actions, d), array(2, d, d), array(2, d, 1)]
    params = (actor, critics, array())
    states = tuple(jax.eval_shape(optimizer.init, each) for each in params)
    rows, number = array(batch, observed), array(batch)
    data = (rows, array(batch, actions), number, rows, number)
    return step, (params, states, critics, data, random_key())


def _world_params(d: int, latent: int, actions: int) -> Any:
    return {
        "down": [array(4, 4, i, o) for i, o in ((3, 48), (48, 96), (96, 192), (192, 384))],
        "up": [array(4, 4, i, o) for i, o in ((384, 192), (192, 96), (96, 48), (48, 3))],
        "expand": array(d + latent, 4 * 4 * 384),
        "in": array(latent + actions, d),
        "cell": array(2 * d, 3 * d),
        "prior": [array(d, d), array(d, latent)],
        "posterior": [array(d + 4 * 4 * 384, d), array(d, latent)],
        "reward": [array(d + latent, d), array(d, 1)],
    }


def world_model() -> Target:
    """Dreamer: a recurrent state with drawn categories, images and rewards made from it."""
    batch, length, d, categories, actions = 32, 32, 768, 32, 6
    latent = categories * categories

    def dense(layers: Any, x: jax.Array) -> jax.Array:
        return jax.nn.silu(standardized(x @ layers[0])) @ layers[1]

    def drawn(logits: jax.Array, key: jax.Array) -> jax.Array:
        """One of each 32 categories, with the gradient of their probabilities."""
        share = jax.nn.softmax(logits)
        one_hot = jax.nn.one_hot(jax.random.categorical(key, logits), categories)
        one_hot = one_hot + share - jax.lax.stop_gradient(share)
        return one_hot.reshape(*logits.shape[:-2], latent)

    def divergence(p: jax.Array, q: jax.Array) -> jax.Array:
        p, q = jax.nn.log_softmax(p), jax.nn.log_softmax(q)
        return jnp.maximum((jnp.exp(p) * (p - q)).sum((-2, -1)), 1.0).mean()

    def loss(params: Any, images: Any, action: Any, reward: Any, key: jax.Array) -> jax.Array:
        x = images.reshape(length * batch, 64, 64, 3)
        for w in params["down"]:
            x = jax.nn.silu(standardized(convolution(x, w, 2)))
        seen = x.reshape(length, batch, -1)

        def advanced(carry: Any, each: Any) -> tuple[Any, Any]:
            (h, z), (action, seen, key) = carry, each
            entered = jax.nn.silu(jnp.concatenate([z, action], -1) @ params["in"])
            gates = standardized(jnp.concatenate([h, entered], -1) @ params["cell"])
            reset, new, update = jnp.split(gates, 3, -1)
            update = jax.nn.sigmoid(update - 1)
            h = update * jnp.tanh(jax.nn.sigmoid(reset) * new) + (1 - update) * h
            posterior = dense(params["posterior"], jnp.concatenate([h, seen], -1))
            posterior = posterior.reshape(batch, categories, categories)
            z = drawn(posterior, key)
            return (h, z), (h, z, posterior)

        start = (jnp.zeros((batch, d)), jnp.zeros((batch, latent)))
        keys = jax.random.split(key, length)
        _, (h, z, posterior) = jax.lax.scan(advanced, start, (action, seen, keys))
        prior = dense(params["prior"], h).reshape(posterior.shape)
        state = jnp.concatenate([h, z], -1)
        x = (state @ params["expand"]).reshape(length * batch, 4, 4, 384)
        for w in params["up"]:
            x = jax.lax.conv_transpose(jax.nn.silu(x), w, (2, 2), "SAME")
        fixed = jax.lax.stop_gradient
        divergences = divergence(fixed(posterior), prior) + 0.1 * divergence(
            posterior, fixed(prior)
        )
        rewards = mean_square(dense(params["reward"], state)[..., 0], reward)
        return mean_square(x.reshape(images.shape), images) + rewards + divergences

    params = _world_params(d, latent, actions)
    optimizer = optax.chain(optax.clip_by_global_norm(1000.0), optax.adam(1e-4))
    times = (length, batch)
    images = array(*times, 64, 64, 3)
    batches = (images, array(*times, actions), array(*times), random_key())
    return optimized(loss, optimizer, params, *batches)
