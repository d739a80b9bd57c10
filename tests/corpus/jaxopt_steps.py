"""Steps of JAXopt: its solvers' `update`, and a training loss with a problem solved inside."""

import jax
import jax.numpy as jnp
import jaxopt
import optax


def solver_update():
    """The bound method `update` of JAXopt's wrapper of Optax, jitted, its data by keyword."""
    x = jax.random.normal(jax.random.key(0), (64, 16))
    y = (x.sum(1) > 0).astype(jnp.int32)
    params = (0.1 * jax.random.normal(jax.random.key(1), (16, 2)), jnp.zeros(2))

    def loss(params, l2reg, data):
        x, y = data
        w, b = params
        losses = optax.softmax_cross_entropy_with_integer_labels(x @ w + b, y)
        return losses.mean() + 0.5 * l2reg * jnp.sum(w**2)

    solver = jaxopt.OptaxSolver(fun=loss, opt=optax.adam(1e-2), maxiter=10)
    state = solver.init_state(params, l2reg=1e-3, data=(x, y))
    return jax.jit(solver.update), (params, state), {"l2reg": 1e-3, "data": (x, y)}


def implicit_ridge():
    """Regularization tuned by the gradient of a validation loss through L-BFGS, by the implicit
    function theorem.
    """
    x = jax.random.normal(jax.random.key(0), (64, 8))
    y = x @ jnp.arange(8.0) / 8 + jax.random.normal(jax.random.key(1), (64,))
    train, valid = (x[:32], y[:32]), (x[32:], y[32:])

    def inner(w, log_l2, data):
        x, y = data
        return jnp.mean((x @ w - y) ** 2) + jnp.sum(jnp.exp(log_l2) * w**2)

    solver = jaxopt.LBFGS(fun=inner, maxiter=20, linesearch="zoom", implicit_diff=True)
    optimizer = optax.adam(1e-1)

    def outer(log_l2, w, train, valid):
        w = solver.run(w, log_l2=log_l2, data=train).params
        x, y = valid
        return jnp.mean((x @ w - y) ** 2), w

    @jax.jit
    def step(log_l2, carry, train, valid):
        w, opt_state = carry
        (loss, w), grad = jax.value_and_grad(outer, has_aux=True)(log_l2, w, train, valid)
        updates, opt_state = optimizer.update(grad, opt_state)
        return optax.apply_updates(log_l2, updates), [w, opt_state], loss

    log_l2 = jnp.full(8, -2.0)
    return step, (log_l2, [jnp.zeros(8), optimizer.init(log_l2)], train, valid)
