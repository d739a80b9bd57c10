"""Steps of Brax: policies trained through its physics, and beside it with PPO's own loss."""

from brax import envs
from brax.training.agents.ppo import losses, networks
from brax.training.types import Transition
import jax
import jax.numpy as jnp
import optax


def analytic_policy_gradient():
    """The return of four physics steps, differentiated through the dynamics."""
    env = envs.training.wrap(
        envs.get_environment("inverted_pendulum", backend="spring"), episode_length=100
    )
    nets = networks.make_ppo_networks(
        env.observation_size,
        env.action_size,
        policy_hidden_layer_sizes=(16, 16),
        value_hidden_layer_sizes=(16,),
    )
    policy = networks.make_inference_fn(nets)
    key = jax.random.PRNGKey(0)
    params = nets.policy_network.init(key)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    env_state = jax.jit(env.reset)(jax.random.split(key, 16))

    def loss(params, env_state, key):
        act = policy((None, params))

        def one(carry, key):
            action, _ = act(carry.obs, key)
            after = env.step(carry, action)
            return after, after.reward

        env_state, rewards = jax.lax.scan(one, env_state, jax.random.split(key, 4))
        return -rewards.mean(), jax.lax.stop_gradient(env_state)

    @jax.jit
    def step(params, opt_state, env_state, key):
        (value, env_state), grads = jax.value_and_grad(loss, has_aux=True)(params, env_state, key)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, env_state, value

    return step, (params, optimizer.init(params), env_state, key)


def ppo():
    """PPO: an unroll in the environment, then two passes over it in minibatches with Brax's own
    loss.
    """
    env = envs.training.wrap(envs.get_environment("fast"), episode_length=50)
    nets = networks.make_ppo_networks(
        env.observation_size,
        env.action_size,
        policy_hidden_layer_sizes=(16, 16),
        value_hidden_layer_sizes=(16,),
    )
    make_policy = networks.make_inference_fn(nets)
    key = jax.random.PRNGKey(1)
    params = losses.PPONetworkParams(
        policy=nets.policy_network.init(key), value=nets.value_network.init(key)
    )
    optimizer = optax.adam(3e-4)
    env_state = jax.jit(env.reset)(jax.random.split(key, 16))

    def unroll(params, env_state, key):
        act = make_policy((None, params.policy))

        def one(env_state, key):
            action, extras = act(env_state.obs, key)
            after = env.step(env_state, action)
            return after, Transition(
                observation=env_state.obs,
                action=action,
                reward=after.reward,
                discount=1 - after.done,
                next_observation=after.obs,
                extras={
                    "policy_extras": extras,
                    "state_extras": {"truncation": after.info["truncation"]},
                },
            )

        return jax.lax.scan(one, env_state, jax.random.split(key, 8))

    def minibatch(carry, part):
        params, opt_state = carry
        data, key = part
        (loss, _), grads = jax.value_and_grad(losses.compute_ppo_loss, has_aux=True)(
            params, None, data, key, nets
        )
        updates, opt_state = optimizer.update(grads, opt_state)
        return (optax.apply_updates(params, updates), opt_state), loss

    @jax.jit
    def step(params, opt_state, env_state, key):
        key_unroll, key_order = jax.random.split(key)
        env_state, data = unroll(params, env_state, key_unroll)
        data = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), data)

        def epoch(carry, key):
            order = jax.random.permutation(key, 16)
            parts = jax.tree.map(lambda x: x[order].reshape(2, 8, *x.shape[1:]), data)
            return jax.lax.scan(minibatch, carry, (parts, jax.random.split(key, 2)))

        keys = jax.random.split(key_order, 2)
        (params, opt_state), loss = jax.lax.scan(epoch, (params, opt_state), keys)
        return params, opt_state, env_state, loss.mean()

    return step, (params, optimizer.init(params), env_state, key)
