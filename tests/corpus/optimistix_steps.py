"""Steps of Optimistix and Lineax: an equilibrium solved in the forward pass, and Gauss and Newton's
step.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import optax
import optimistix as optx


class _Equilibrium(eqx.Module):
    inject: eqx.nn.Linear
    weight: jax.Array
    out: eqx.nn.Linear

    def __init__(self, *, key):
        first, second, third = jax.random.split(key, 3)
        self.inject = eqx.nn.Linear(8, 16, key=first)
        self.weight = 0.05 * jax.random.normal(second, (16, 16))
        self.out = eqx.nn.Linear(16, 2, key=third)

    def __call__(self, x):
        injected = self.inject(x)

        def cell(z, args):
            weight, injected = args
            return jnp.tanh(weight @ z + injected)

        solver = optx.FixedPointIteration(rtol=1e-5, atol=1e-5)
        found = optx.fixed_point(
            cell,
            solver,
            jnp.zeros(16),
            args=(self.weight, injected),
            max_steps=64,
            adjoint=optx.ImplicitAdjoint(),
        )
        return self.out(found.value)


def deep_equilibrium():
    """A fixed point for each example in a loop, differentiated implicitly with Lineax."""
    model = _Equilibrium(key=jax.random.key(0))
    optim = optax.adam(1e-3)
    x = jax.random.normal(jax.random.key(1), (16, 8))

    @eqx.filter_jit
    def step(model, opt_state, x, y):
        @eqx.filter_value_and_grad
        def loss(model):
            logits = jax.vmap(model)(x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

        value, grads = loss(model)
        updates, opt_state = optim.update(grads, opt_state)
        return eqx.apply_updates(model, updates), opt_state, value

    opt_state = optim.init(eqx.filter(model, eqx.is_inexact_array))
    return step, (model, opt_state, x, jnp.arange(16) % 2)


def levenberg_marquardt():
    """Curves fitted to many series at once by damped least squares, each its own; as a step of
    alternating fits.
    """
    t = jnp.linspace(0.0, 1.0, 16)
    rates = jnp.linspace(0.5, 2.0, 16)
    series = jnp.exp(-rates[:, None] * t) + 0.01 * jnp.sin(20 * t)

    def residual(y, args):
        scale, rate = y
        t, series = args
        return scale * jnp.exp(-rate * t) - series

    solver = optx.LevenbergMarquardt(rtol=1e-4, atol=1e-4, linear_solver=lx.QR())

    @jax.jit
    def step(estimates, mean, t, series):
        def one(y0, series):
            y0 = jnp.array([y0[0], 0.9 * y0[1] + 0.1 * mean])
            return optx.least_squares(
                residual, solver, (y0[0], y0[1]), args=(t, series), max_steps=16, throw=False
            ).value

        scale, rate = jax.vmap(one)(estimates, series)
        estimates = jnp.stack([scale, rate], -1)
        return estimates, rate.mean()

    return step, (jnp.ones((16, 2)), jnp.ones(()), t, series)
