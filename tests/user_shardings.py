"""Steps with shardings in their own code, and what tests ask of the programs made of them."""

from collections.abc import Callable
from functools import partial
from typing import Any

from click.testing import CliRunner
import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P
import numpy as np


# No other tensor of the steps below has rows or columns of these sizes, whole or split.
BATCH, WIDTH, HIDDEN = 16, 24, 72
Sharding = Callable[..., NamedSharding]


def on(**axes: int) -> Sharding:
    """Specs -> shardings on an abstract mesh."""
    names = tuple(axes)
    mesh = AbstractMesh(tuple(axes.values()), names, axis_types=(AxisType.Auto,) * len(names))
    return lambda *spec: NamedSharding(mesh, P(*spec))


FOUR_BY_TWO = on(data=4, model=2)


def free(x: Any, sharding: Any) -> Any:
    """In the place of `lax.with_sharding_constraint`: the same step without its constraints."""
    return x


def update(loss: Callable[..., Any], params: Any, batch: Any) -> Any:
    """One step of gradient descent."""
    value, grads = jax.value_and_grad(loss)(params, batch)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def hidden(constrain: Any, sharding: NamedSharding, params: Any, batch: Any) -> Any:
    """A constraint on the hidden layer of a perceptron."""

    def loss(p: Any, x: Any) -> Any:
        h = constrain(jnp.tanh(x @ p["up"][0]), sharding)
        return jnp.mean((h @ p["down"][0]) ** 2)

    return update(loss, params, batch)


def scanned(constrain: Any, sharding: NamedSharding, params: Any, batch: Any, wrap: Any) -> Any:
    """A constraint on the hidden layer inside a loop over layers."""

    @wrap
    def block(x: Any, layer: Any) -> Any:
        h = constrain(jnp.tanh(x @ layer["up"]), sharding)
        return x + h @ layer["down"], None

    def loss(p: Any, x: Any) -> Any:
        return jnp.mean(lax.scan(block, x, p)[0] ** 2)

    return update(loss, params, batch)


def called(constrain: Any, sharding: NamedSharding, params: Any, batch: Any) -> Any:
    """The same by the shardings of a jitted function."""
    options = {} if constrain is free else {"out_shardings": sharding}
    layer = jax.jit(lambda x, w: jnp.tanh(x @ w), **options)

    def loss(p: Any, x: Any) -> Any:
        return jnp.mean((layer(x, p["up"][0]) @ p["down"][0]) ** 2)

    return update(loss, params, batch)


PROGRAMS = {
    "plain": hidden,
    "in a scan": partial(scanned, wrap=lambda f: f),
    "in a rematerialized scan": partial(scanned, wrap=jax.checkpoint),
    "of a jitted function": called,
}


def arguments(layers: int = 2) -> Any:
    """Parameters and batch."""
    keys = jax.random.split(jax.random.key(0), 3)
    up = 0.1 * jax.random.normal(keys[0], (layers, WIDTH, HIDDEN))
    down = 0.1 * jax.random.normal(keys[1], (layers, HIDDEN, WIDTH))
    return {"up": up, "down": down}, jax.random.normal(keys[2], (BATCH, WIDTH))


def target(program: str = "plain", own: str = "constraint") -> Any:
    """(step, arguments) for the command: `own` is "constraint" or "in_shardings"."""
    if own == "constraint":
        return partial(
            PROGRAMS[program], lax.with_sharding_constraint, FOUR_BY_TWO("data", "model")
        ), arguments()
    plain = partial(PROGRAMS[program], free, None)
    weights = {"up": FOUR_BY_TWO(None, None, "model"), "down": FOUR_BY_TWO(None, "model", None)}
    return jax.jit(plain, in_shardings=(weights, FOUR_BY_TWO("data"))), arguments()


def largest_difference(one: Any, other: Any) -> float:
    """Largest absolute difference of two trees of arrays."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)


def command(*arguments: str) -> Any:
    """What the command does."""
    from automap.cli import main

    return CliRunner().invoke(main, list(arguments))
