"""Steps of Dynamax: expectation maximization as steps, and gradients through a filter."""

from functools import partial

from dynamax.hidden_markov_model import GaussianHMM
from dynamax.linear_gaussian_ssm import LinearGaussianSSM
from dynamax.parameters import from_unconstrained, to_unconstrained
import jax
import jax.numpy as jnp
import optax


def expectation_maximization():
    """One step of EM of a hidden Markov model on a batch of sequences, by the model's own two
    halves.
    """
    model = GaussianHMM(num_states=4, emission_dim=2)
    params, props = model.initialize(jax.random.key(0), method="prior")
    _, emissions = model.sample(params, jax.random.key(1), num_timesteps=16)
    emissions = emissions + 0.1 * jax.random.normal(jax.random.key(2), (16, *emissions.shape))

    @jax.jit
    def em_step(params, m_step_state, emissions):
        stats, lls = jax.vmap(partial(model.e_step, params))(emissions)
        log_prob = model.log_prior(params) + lls.sum()
        params, m_step_state = model.m_step(params, props, stats, m_step_state)
        return params, m_step_state, log_prob

    return em_step, (params, model.initialize_m_step_state(params, props), emissions)


def kalman_gradient():
    """The likelihood of a Kalman filter, maximized over unconstrained parameters."""
    model = LinearGaussianSSM(state_dim=4, emission_dim=2)
    params, props = model.initialize(jax.random.key(0))
    emissions = jnp.cumsum(jax.random.normal(jax.random.key(1), (16, 16, 2)), 1)
    optimizer = optax.adam(1e-3)

    @jax.jit
    def step(unconstrained, opt_state, emissions):
        def loss(unconstrained):
            params = from_unconstrained(unconstrained, props)
            lls = jax.vmap(partial(model.marginal_log_prob, params))(emissions)
            return -lls.sum() / emissions.size

        value, grads = jax.value_and_grad(loss)(unconstrained)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(unconstrained, updates), opt_state, value

    unconstrained = to_unconstrained(params, props)
    return step, (unconstrained, optimizer.init(unconstrained), emissions)
