"""A small transformer of Equinox, whose model is a tree with functions in it.

On one device: python -m examples.equinox_filter.plain
Under a plan:  python -m examples.equinox_filter.planned
"""

from collections.abc import Sequence

import equinox as eqx
import jax
from jax import numpy as jnp
import optax

import automap
from examples.parts.checkpoints import Checkpoints
from examples.parts.options import log_progress, read_options
from examples.parts.text import VOCABULARY, Text


WIDTH, HEADS, LAYERS, LENGTH = 128, 4, 2, 64
RATE = optax.warmup_cosine_decay_schedule(0.0, 3e-3, 10, 200)
OPTIMIZER = optax.adamw(RATE)


class Block(eqx.Module):
    """Attention, then two products."""

    attention: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP
    norms: list[eqx.nn.LayerNorm]

    def __init__(self, key) -> None:
        """Parameters from `key`."""
        first, second = jax.random.split(key)
        self.attention = eqx.nn.MultiheadAttention(HEADS, WIDTH, key=first)
        self.mlp = eqx.nn.MLP(WIDTH, WIDTH, 4 * WIDTH, 1, activation=jax.nn.gelu, key=second)
        self.norms = [eqx.nn.LayerNorm(WIDTH) for _ in range(2)]

    def __call__(self, x):
        """`x` of one text, and what the block adds."""
        mask = jnp.tril(jnp.ones((len(x), len(x)), bool))
        normed = jax.vmap(self.norms[0])(x)
        x += self.attention(normed, normed, normed, mask=mask)
        return x + jax.vmap(self.mlp)(jax.vmap(self.norms[1])(x))


class Model(eqx.Module):
    """Bytes to the scores of those that come next."""

    embed: jax.Array
    place: jax.Array
    blocks: list[Block]

    def __init__(self, key) -> None:
        """Parameters from `key`."""
        first, second, *rest = jax.random.split(key, 2 + LAYERS)
        self.embed = jax.random.normal(first, (VOCABULARY, WIDTH)) / 16
        self.place = jax.random.normal(second, (LENGTH, WIDTH)) / 16
        self.blocks = [Block(key) for key in rest]

    def __call__(self, given):
        """Scores of each place of one text."""
        x = self.embed[given] + self.place
        for block in self.blocks:
            x = block(x)
        return x @ self.embed.T


def init(key):
    """A model and its optimizer's state."""
    model = Model(key)
    return model, OPTIMIZER.init(eqx.filter(model, eqx.is_inexact_array))


def loss_of(model, batch):
    """Nats per byte."""
    logits = jax.vmap(model)(batch["bytes"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["next"]).mean()


@automap.parallelize
def train_step(model, state, batch):
    """The model and the optimizer's state after a step, and its loss."""
    loss, grads = eqx.filter_value_and_grad(loss_of)(model, batch)
    updates, state = OPTIMIZER.update(grads, state, eqx.filter(model, eqx.is_inexact_array))
    return eqx.apply_updates(model, updates), state, loss


evaluate = eqx.filter_jit(loss_of)


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Train, and return the losses."""
    options, text = read_options(arguments), Text(length=LENGTH)
    checkpoints, losses = Checkpoints(options.checkpoint), []
    model, state = train_step.init(init, jax.random.key(0))
    arrays, functions = eqx.partition(model, eqx.is_array)
    start, (arrays, state) = checkpoints.restore((arrays, state))
    model = eqx.combine(arrays, functions)
    for number in range(start, options.steps):
        model, state, loss = train_step(model, state, text.batch(number))
        losses.append(float(loss))
        if (number + 1) % options.every == 0:
            held_out = [float(evaluate(model, batch)) for batch in text.held_out()]
            log_progress(number + 1, losses[-1], sum(held_out) / len(held_out), RATE(number))
            checkpoints.save(number + 1, (eqx.filter(model, eqx.is_array), state))
    checkpoints.close()
    return losses


if __name__ == "__main__":
    main()
