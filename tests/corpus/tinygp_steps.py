"""A step of tinygp: the likelihood of a Gaussian process, through a Cholesky factor."""

import jax
import jax.numpy as jnp
import optax
from tinygp import GaussianProcess, kernels, transforms


def marginal_likelihood():
    """Hyperparameters of a sum of kernels, as tinygp's tutorial."""
    x = jax.random.uniform(jax.random.key(0), (64, 2), maxval=4.0)
    y = jnp.sin(x).sum(1)
    params = {
        "log_amp": jnp.zeros(2),
        "log_scale": jnp.zeros(2),
        "log_diag": jnp.array(-2.0),
        "mean": jnp.zeros(()),
    }
    optimizer = optax.adam(1e-2)

    def loss(params, x, y):
        amplitude = jnp.exp(params["log_amp"])
        smooth = transforms.Linear(jnp.exp(-params["log_scale"]), kernels.ExpSquared())
        kernel = amplitude[0] * smooth + amplitude[1] * kernels.Matern32(
            2.0, distance=kernels.distance.L2Distance()
        )
        gp = GaussianProcess(kernel, x, diag=jnp.exp(params["log_diag"]), mean=params["mean"])
        return -gp.log_probability(y)

    @jax.jit
    def step(params, opt_state, x, y):
        value, grads = jax.value_and_grad(loss)(params, x, y)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, value

    return step, (params, optimizer.init(params), x, y)
