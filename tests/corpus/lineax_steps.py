"""A step of Lineax: a linear system solved by conjugate gradients inside of the loss, and
differentiated.
"""

import jax
import jax.numpy as jnp
import lineax as lx
import optax


def conjugate_gradients():
    """Kernel regression whose length scales are learned through the solve."""
    x = jax.random.normal(jax.random.key(0), (64, 4))
    y = jnp.sin(x).sum(-1)
    optimizer = optax.adam(1e-2)

    def kernel(params, a, b):
        scaled = (a[:, None] - b[None]) / jnp.exp(params["log_scale"])
        return jnp.exp(-0.5 * jnp.sum(scaled**2, -1))

    def loss_fn(params, x, y):
        matrix = kernel(params, x[:32], x[:32]) + jnp.exp(params["log_noise"]) * jnp.eye(32)
        operator = lx.MatrixLinearOperator(matrix, lx.positive_semidefinite_tag)
        solver = lx.CG(rtol=1e-5, atol=1e-5, max_steps=64)
        weights = lx.linear_solve(operator, y[:32], solver, throw=False).value
        return jnp.mean((kernel(params, x[32:], x[:32]) @ weights - y[32:]) ** 2)

    @jax.jit
    def step(params, opt_state, x, y):
        loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    params = {"log_scale": jnp.zeros(4), "log_noise": jnp.full((), -1.0)}
    return step, (params, optimizer.init(params), x, y)
