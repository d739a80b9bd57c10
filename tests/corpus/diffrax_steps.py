"""Steps of Diffrax: differential equations whose vector fields are learned, by three ways of
differentiating.
"""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import lineax
import optax


class _Field(eqx.Module):
    mlp: eqx.nn.MLP

    def __call__(self, t, y, args):
        return self.mlp(y)


class _NeuralODE(eqx.Module):
    func: _Field

    def __call__(self, ts, y0):
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(self.func),
            diffrax.Tsit5(),
            t0=ts[0],
            t1=ts[-1],
            dt0=ts[1] - ts[0],
            y0=y0,
            stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-6),
            saveat=diffrax.SaveAt(ts=ts),
        )
        return solution.ys


def neural_ode():
    """Trajectories fitted through an adaptive solver, its steps checkpointed."""
    key = jax.random.key(0)
    model = _NeuralODE(_Field(eqx.nn.MLP(2, 2, 32, 2, jax.nn.softplus, key=key)))
    optim = optax.adabelief(3e-3)
    ts = jnp.linspace(0.0, 1.0, 16)
    starts = jax.random.uniform(key, (16, 2), minval=-0.6, maxval=1.0)
    turned = jnp.stack([jnp.cos(ts), jnp.sin(ts)], -1)
    ys = starts[:, None] * turned[None]

    @eqx.filter_value_and_grad
    def grad_loss(model, ti, yi):
        return jnp.mean((yi - jax.vmap(model, in_axes=(None, 0))(ti, yi[:, 0])) ** 2)

    @eqx.filter_jit
    def make_step(model, opt_state, ti, yi):
        loss, grads = grad_loss(model, ti, yi)
        updates, opt_state = optim.update(grads, opt_state)
        return eqx.apply_updates(model, updates), opt_state, loss

    return make_step, (model, optim.init(eqx.filter(model, eqx.is_inexact_array)), ts, ys)


class _CDEField(eqx.Module):
    mlp: eqx.nn.MLP
    data_size: int
    hidden_size: int

    def __call__(self, t, y, args):
        return self.mlp(y).reshape(self.hidden_size, self.data_size)


class _NeuralCDE(eqx.Module):
    initial: eqx.nn.MLP
    func: _CDEField
    linear: eqx.nn.Linear

    def __init__(self, data_size, hidden_size, width, *, key):
        first, second, third = jax.random.split(key, 3)
        self.initial = eqx.nn.MLP(data_size, hidden_size, width, 1, key=first)
        field = eqx.nn.MLP(
            hidden_size,
            hidden_size * data_size,
            width,
            1,
            activation=jax.nn.softplus,
            final_activation=jax.nn.tanh,
            key=second,
        )
        self.func = _CDEField(field, data_size, hidden_size)
        self.linear = eqx.nn.Linear(hidden_size, 1, key=third)

    def __call__(self, ts, coeffs):
        control = diffrax.CubicInterpolation(ts, coeffs)
        solution = diffrax.diffeqsolve(
            diffrax.ControlTerm(self.func, control).to_ode(),
            diffrax.Tsit5(),
            ts[0],
            ts[-1],
            dt0=None,
            y0=self.initial(control.evaluate(ts[0])),
            stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-6),
        )
        return jax.nn.sigmoid(self.linear(solution.ys[-1]))[0]


def neural_cde():
    """Time series sorted in two classes by a controlled equation along their splines."""
    key = jax.random.key(1)
    model = _NeuralCDE(3, 8, 16, key=key)
    optim = optax.adam(1e-2)
    ts = jnp.broadcast_to(jnp.linspace(0.0, 4.0, 12), (16, 12))
    series = jnp.cumsum(0.3 * jax.random.normal(key, (16, 12, 2)), axis=1)
    xs = jnp.concatenate([ts[..., None], series], -1)
    coeffs = jax.vmap(diffrax.backward_hermite_coefficients)(ts, xs)
    labels = (jnp.arange(16) % 2).astype(jnp.float32)

    @eqx.filter_value_and_grad(has_aux=True)
    def loss(model, ti, coeff_i, label_i):
        pred = jax.vmap(model)(ti, coeff_i)
        entropy = label_i * jnp.log(pred) + (1 - label_i) * jnp.log(1 - pred)
        return -jnp.mean(entropy), jnp.mean((pred > 0.5) == (label_i == 1))

    @eqx.filter_jit
    def make_step(model, opt_state, ti, coeff_i, label_i):
        (value, accuracy), grads = loss(model, ti, coeff_i, label_i)
        updates, opt_state = optim.update(grads, opt_state)
        return eqx.apply_updates(model, updates), opt_state, value, accuracy

    opt_state = optim.init(eqx.filter(model, eqx.is_inexact_array))
    return make_step, (model, opt_state, ts, coeffs, labels)


class _SDE(eqx.Module):
    drift: eqx.nn.MLP
    log_scale: jax.Array

    def __call__(self, ts, y0, key):
        motion = diffrax.VirtualBrownianTree(ts[0], ts[-1], tol=1e-2, shape=(2,), key=key)
        terms = diffrax.MultiTerm(
            diffrax.ODETerm(lambda t, y, args: self.drift(y)),
            diffrax.ControlTerm(lambda t, y, args: _diagonal(jnp.exp(self.log_scale)), motion),
        )
        return diffrax.diffeqsolve(
            terms,
            diffrax.Euler(),
            ts[0],
            ts[-1],
            dt0=1 / 16,
            y0=y0,
            saveat=diffrax.SaveAt(ts=ts),
            adjoint=diffrax.RecursiveCheckpointAdjoint(),
        ).ys


def _diagonal(scale):
    """A diffusion that acts on each component alone."""
    return lineax.DiagonalLinearOperator(scale)


def neural_sde():
    """A stochastic equation whose moments are fitted; each path has a key of its own."""
    key = jax.random.key(2)
    model = _SDE(eqx.nn.MLP(2, 2, 16, 1, key=key), jnp.zeros(2))
    optim = optax.rmsprop(1e-2)
    ts = jnp.linspace(0.0, 1.0, 8)
    starts = jax.random.normal(key, (16, 2))
    means, spreads = jnp.linspace(0, 1, 16).reshape(8, 2), jnp.full((8, 2), 0.5)

    @eqx.filter_value_and_grad
    def loss(model, ts, starts, key):
        keys = jax.random.split(key, len(starts))
        ys = jax.vmap(model, in_axes=(None, 0, 0))(ts, starts, keys)
        return jnp.mean((ys.mean(0) - means) ** 2 + (ys.std(0) - spreads) ** 2)

    @eqx.filter_jit
    def make_step(model, opt_state, ts, starts, key):
        value, grads = loss(model, ts, starts, key)
        updates, opt_state = optim.update(grads, opt_state)
        return eqx.apply_updates(model, updates), opt_state, value

    opt_state = optim.init(eqx.filter(model, eqx.is_inexact_array))
    return make_step, (model, opt_state, ts, starts, key)
