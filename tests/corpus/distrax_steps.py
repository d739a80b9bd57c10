"""Steps of Distrax: a flow made of its bijectors, and an autoencoder of its distributions, both
with Haiku.
"""

import distrax
import haiku as hk
import jax
import jax.numpy as jnp
import optax


def _flow():
    def conditioner(size):
        return hk.Sequential(
            [
                hk.Linear(32),
                jax.nn.relu,
                hk.Linear(2 * size, w_init=jnp.zeros, b_init=jnp.zeros),
                hk.Reshape((size, 2)),
            ]
        )

    def bijector(params):
        return distrax.ScalarAffine(shift=params[..., 0], log_scale=jnp.tanh(params[..., 1]))

    layers = []
    for i in range(4):
        mask = jnp.arange(4) % 2 == i % 2
        layers.append(distrax.MaskedCoupling(mask, conditioner(4), bijector))
    base = distrax.MultivariateNormalDiag(jnp.zeros(4), jnp.ones(4))
    return distrax.Transformed(base, distrax.Inverse(distrax.Chain(layers)))


def real_nvp():
    """The log likelihood of a flow of masked couplings, as Distrax' example of flows."""
    log_prob = hk.without_apply_rng(hk.transform(lambda data: _flow().log_prob(data)))
    data = jax.random.normal(jax.random.key(0), (32, 4)) * 0.5 + 1.0
    params = jax.jit(log_prob.init)(jax.random.key(1), data)
    optimizer = optax.adam(1e-3)

    @jax.jit
    def update(params, opt_state, data):
        loss, grads = jax.value_and_grad(lambda p: -jnp.mean(log_prob.apply(p, data)))(params)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    return update, (params, optimizer.init(params), data)


def autoencoder():
    """A variational autoencoder with the bound of Distrax' example; its key is the old kind, two
    words.
    """

    def forward(x):
        stats = hk.nets.MLP([32, 8])(x)
        posterior = distrax.MultivariateNormalDiag(stats[:, :4], jnp.exp(stats[:, 4:]))
        z = posterior.sample(seed=hk.next_rng_key())
        likelihood = distrax.Independent(
            distrax.Bernoulli(logits=hk.nets.MLP([32, 16])(z)), reinterpreted_batch_ndims=1
        )
        prior = distrax.MultivariateNormalDiag(jnp.zeros((4,)), jnp.ones((4,)))
        return likelihood.log_prob(x) - posterior.kl_divergence(prior)

    model = hk.transform(forward)
    x = jax.random.bernoulli(jax.random.key(0), 0.3, (32, 16)).astype(jnp.float32)
    params = jax.jit(model.init)(jax.random.PRNGKey(1), x)
    optimizer = optax.adam(1e-3)

    @jax.jit
    def update(params, opt_state, rng_key, batch):
        loss, grads = jax.value_and_grad(lambda p: -model.apply(p, rng_key, batch).mean())(params)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    return update, (params, optimizer.init(params), jax.random.PRNGKey(2), x)
