"""Steps of BlackJAX: chains of HMC side by side, and gradients with noise on a minibatch."""

import blackjax
import jax
import jax.numpy as jnp


def _data():
    x = jax.random.normal(jax.random.key(0), (64, 8))
    return x, (x.sum(1) > 0).astype(jnp.float32)


def _log_likelihood(position, x, y):
    logits = x @ position["w"] + position["b"]
    return y * jax.nn.log_sigmoid(logits) + (1 - y) * jax.nn.log_sigmoid(-logits)


def hmc_chains():
    """One step of Hamiltonian Monte Carlo for 16 chains, with a key for each."""
    x, y = _data()

    def logdensity(position):
        prior = -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(position))
        return prior + jnp.sum(_log_likelihood(position, x, y))

    hmc = blackjax.hmc(logdensity, 1e-2, jnp.ones(9), num_integration_steps=5)
    starts = {"w": 0.1 * jax.random.normal(jax.random.key(1), (16, 8)), "b": jnp.zeros(16)}

    @jax.jit
    def step(states, keys):
        states, infos = jax.vmap(hmc.step)(keys, states)
        return states, infos.acceptance_rate

    return step, (jax.vmap(hmc.init)(starts), jax.random.split(jax.random.key(2), 16))


def stochastic_gradient():
    """Stochastic gradient Langevin dynamics on a minibatch."""
    x, y = _data()

    def logprior(position):
        return -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(position))

    def loglikelihood(position, batch):
        x, y = batch
        return _log_likelihood(position, x, y)

    def mean_loglikelihood(position, batch):
        return jnp.mean(jax.vmap(lambda b: loglikelihood(position, b))(batch))

    def grad_fn(position, batch):
        logdensity = lambda p: logprior(p) + 64 * mean_loglikelihood(p, batch)  # noqa: E731
        return jax.grad(logdensity)(position)

    sgld = blackjax.sgld(grad_fn)

    @jax.jit
    def step(position, key, batch):
        return sgld.step(key, position, batch, 1e-3)

    return step, ({"w": jnp.zeros(8), "b": jnp.zeros(())}, jax.random.key(3), (x, y))
