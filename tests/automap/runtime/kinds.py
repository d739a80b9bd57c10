"""Steps of every kind, with their state and how they are called."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
from flax import linen, nnx
from flax.training.train_state import TrainState
import jax
import jax.numpy as jnp
import numpy as np
import optax


BATCH = {
    "x": jnp.linspace(-1, 1, 16 * 8).reshape(16, 8),
    "y": jnp.linspace(0, 1, 16 * 4).reshape(16, 4),
}
# Adam divides gradients by their own size, so that rounding errors of small ones become large.
TX = optax.sgd(0.05, momentum=0.9)


def params():
    keys = jax.random.split(jax.random.key(0), 2)
    return {"w1": jax.random.normal(keys[0], (8, 16)), "w2": jax.random.normal(keys[1], (16, 4))}


def loss_of(params, batch, activation=jnp.tanh, scale=1.0):
    return jnp.mean(
        (activation(batch["x"] @ params["w1"]) @ params["w2"] * scale - batch["y"]) ** 2
    )


def update(state, batch, **options):
    params, opt = state
    loss, grads = jax.value_and_grad(partial(loss_of, **options))(params, batch)
    updates, opt = TX.update(grads, opt, params)
    return (optax.apply_updates(params, updates), opt), loss


def state():
    return params(), TX.init(params())


@dataclass
class Kind:
    """A step, its state at first, and how it is called: (step, state) -> (new state, loss).

    `reference` is what is run beside it, by default the step itself.
    """

    step: Callable[..., Any]
    state: Any
    call: Callable[[Any, Any], Any] = lambda step, state: step(state, BATCH)
    reference: Callable[..., Any] | None = None


def arrays(tree):
    """The arrays of a tree, random keys as numbers."""
    return [
        jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        for x in jax.tree.leaves(tree)
        if isinstance(x, jax.Array)
    ]


def equal(ours, theirs):
    """Assert that two trees have the same arrays, of which there is one."""
    assert arrays(ours)
    # Sums over devices associate differently: a few float32 roundings of values of order one.
    for a, b in zip(arrays(ours), arrays(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=5e-4, atol=5e-5)


# Methods.


class Opaque:
    """An object that JAX knows nothing of."""

    def __init__(self, scale=1.0):
        self.scale = scale

    def step(self, state, batch):
        return update(state, batch, scale=self.scale)

    @partial(jax.jit, static_argnums=0)
    def jitted(self, state, batch):
        return update(state, batch, scale=self.scale)

    def __call__(self, state, batch):
        return self.step(state, batch)


@jax.tree_util.register_dataclass
@dataclass
class Tree:
    """An object that is a tree: its arrays are an argument of the step."""

    scale: jax.Array

    def step(self, state, batch):
        return update(state, batch, scale=self.scale)

    def __call__(self, state, batch):
        return self.step(state, batch)


# Equinox.


class Mlp(eqx.Module):
    """Two layers, and a function among its leaves."""

    layers: list[eqx.nn.Linear]
    activation: Callable[..., Any]

    def __init__(self):
        keys = jax.random.split(jax.random.key(0), 2)
        self.activation = jnp.tanh
        self.layers = [eqx.nn.Linear(8, 16, key=keys[0]), eqx.nn.Linear(16, 4, key=keys[1])]

    def __call__(self, x):
        return self.layers[1](self.activation(self.layers[0](x)))

    def loss(self, batch):
        return jnp.mean((jax.vmap(self)(batch["x"]) - batch["y"]) ** 2)


def eqx_step(model, opt, batch, power):
    loss, grads = eqx.filter_value_and_grad(lambda m: m.loss(batch) ** power)(model)
    updates, opt = TX.update(grads, opt, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), opt, loss, "trained"


def eqx_plain(state, batch):
    model, opt, loss, _ = eqx_step(*state, batch, 1)
    return (model, opt), loss


def eqx_state():
    return Mlp(), TX.init(eqx.filter(Mlp(), eqx.is_array))


def eqx_call(step, state):
    model, opt, loss, word = step(*state, BATCH, 2)
    assert word == "trained"
    return (model, opt), loss


class EqxTrainer(eqx.Module):
    """A module whose method is the step: the module itself is new after it."""

    model: Mlp
    opt: Any

    @eqx.filter_jit
    def step(self, batch):
        model, opt, loss, _ = eqx_step(self.model, self.opt, batch, 1)
        return EqxTrainer(model, opt), loss


# Flax.


class Net(nnx.Module):
    """Batch norm, dropout and a switch between training and not."""

    def __init__(self, rngs=None):
        rngs = rngs or nnx.Rngs(0)
        self.first, self.norm = (
            nnx.Linear(8, 16, use_bias=False, rngs=rngs),
            nnx.BatchNorm(16, rngs=rngs),
        )
        self.dropout, self.last = nnx.Dropout(0.5, rngs=rngs), nnx.Linear(16, 4, rngs=rngs)

    def __call__(self, x):
        return self.last(self.dropout(jnp.tanh(self.norm(self.first(x)))))


def nnx_step(model, optimizer, batch):
    model.train()
    loss, grads = nnx.value_and_grad(lambda m: jnp.mean((m(batch["x"]) - batch["y"]) ** 2))(model)
    optimizer.update(model, grads)
    return loss


def nnx_state():
    model = Net()
    model.eval()
    return model, nnx.Optimizer(model, TX, wrt=nnx.Param)


def nnx_call(step, state):
    return state, step(*state, BATCH)


class NnxTrainer(nnx.Module):
    """Model and optimizer in one object, whose method is the step."""

    def __init__(self):
        self.model, self.optimizer = nnx_state()

    def step(self, batch):
        return nnx_step(self.model, self.optimizer, batch)


def nnx_functional(graphdef, state, batch):
    model, optimizer = nnx.merge(graphdef, state)
    loss = nnx_step(model, optimizer, batch)
    return nnx.split((model, optimizer))[1], loss


def nnx_returned(model, optimizer, batch):
    loss = nnx_step(model, optimizer, batch)
    return model, optimizer, loss


def train_state():
    class Linen(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.Dense(4)(jnp.tanh(linen.Dense(16)(x)))

    model = Linen()
    return TrainState.create(
        apply_fn=model.apply, params=model.init(jax.random.key(0), BATCH["x"]), tx=TX
    )


def linen_step(state, batch):
    def loss_of(params):
        return jnp.mean((state.apply_fn(params, batch["x"]) - batch["y"]) ** 2)

    loss, grads = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=grads), loss


def keywords(state, /, *, batch, scale, mode):
    assert mode == "training"
    return update(state, batch, scale=scale)


def static(state, batch, mode):
    assert mode == "training"
    return update(state, batch)


def with_keywords(step, state):
    return step(state, batch=BATCH, scale=2.0, mode="training")


def with_mode(step, state):
    return step(state, BATCH, "training")


NNX_GRAPH, _ = nnx.split(nnx_state())
KINDS = {
    "function": lambda: Kind(update, state()),
    "jitted": lambda: Kind(jax.jit(update, donate_argnums=0), state(), reference=update),
    "method": lambda: Kind(Opaque(0.5).step, state()),
    "jitted method": lambda: Kind(Opaque(0.5).jitted, state()),
    "method of a tree": lambda: Kind(Tree(jnp.array(0.5)).step, state()),
    "callable object": lambda: Kind(Opaque(0.5), state()),
    "callable tree": lambda: Kind(Tree(jnp.array(0.5)), state()),
    "partial": lambda: Kind(partial(update, scale=0.5), state()),
    "partial with arrays": lambda: Kind(partial(update, scale=jnp.array(0.5)), state()),
    "static by number": lambda: Kind(jax.jit(static, static_argnums=-1), state(), with_mode),
    "static by name": lambda: Kind(
        jax.jit(keywords, static_argnames="mode"), state(), with_keywords
    ),
    "TrainState": lambda: Kind(linen_step, train_state(), reference=jax.jit(linen_step)),
    "eqx.filter_jit": lambda: Kind(eqx.filter_jit(eqx_step), eqx_state(), eqx_call),
    "eqx donated": lambda: Kind(
        eqx.filter_jit(eqx_step, donate="all"), eqx_state(), eqx_call, eqx.filter_jit(eqx_step)
    ),
    "eqx module to a function": lambda: Kind(
        eqx_plain, eqx_state(), reference=eqx.filter_jit(eqx_plain)
    ),
    "eqx method": lambda: Kind(
        EqxTrainer.step, EqxTrainer(*eqx_state()), lambda step, state: step(state, BATCH)
    ),
    "nnx.jit": lambda: Kind(nnx.jit(nnx_step), nnx_state(), nnx_call),
    "nnx in place": lambda: Kind(nnx_step, nnx_state(), nnx_call),
    "nnx donated": lambda: Kind(
        nnx.jit(nnx_step, donate_argnums=(0, 1)), nnx_state(), nnx_call, nnx.jit(nnx_step)
    ),
    "nnx functional": lambda: Kind(
        nnx_functional,
        nnx.split(nnx_state())[1],
        lambda step, state: step(NNX_GRAPH, state, BATCH),
        jax.jit(nnx_functional),
    ),
    "nnx returned": lambda: Kind(
        nnx_returned, nnx_state(), lambda step, state: ((out := step(*state, BATCH))[:2], out[2])
    ),
}
