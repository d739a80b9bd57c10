"""A small transformer of Flax Linen with a TrainState.

On one device: python -m examples.flax_linen.plain
Under a plan:  python -m examples.flax_linen.planned
"""

from collections.abc import Sequence

from flax import linen as nn
from flax.training.train_state import TrainState
import jax
from jax import numpy as jnp
import optax

import automap
from examples.parts.checkpoints import Checkpoints
from examples.parts.options import log_progress, read_options
from examples.parts.text import VOCABULARY, Text


WIDTH, HEADS, LAYERS, LENGTH = 128, 4, 2, 64
RATE = optax.warmup_cosine_decay_schedule(0.0, 3e-3, 10, 200)


class Model(nn.Module):
    """Bytes to the scores of those that come next."""

    @nn.compact
    def __call__(self, given):
        """Scores of each place."""
        embed = nn.Embed(VOCABULARY, WIDTH)
        x = embed(given) + nn.Embed(LENGTH, WIDTH)(jnp.arange(LENGTH))
        mask = nn.make_causal_mask(given)
        for _ in range(LAYERS):
            x += nn.MultiHeadDotProductAttention(HEADS)(nn.LayerNorm()(x), mask=mask)
            x += nn.Dense(WIDTH)(nn.gelu(nn.Dense(4 * WIDTH)(nn.LayerNorm()(x))))
        return embed.attend(nn.LayerNorm()(x))


def init(key):
    """Parameters and optimizer state."""
    model = Model()
    params = model.init(key, jnp.zeros((1, LENGTH), int))["params"]
    return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adamw(RATE))


def loss_of(state, params, batch):
    """Nats per byte."""
    logits = state.apply_fn({"params": params}, batch["bytes"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["next"]).mean()


@automap.parallelize
def train_step(state, batch):
    """The state after a step, and its loss."""
    loss, grads = jax.value_and_grad(loss_of, argnums=1)(state, state.params, batch)
    return state.apply_gradients(grads=grads), loss


@jax.jit
def evaluate(state, batch):
    """Nats per byte of text that is not learned."""
    return loss_of(state, state.params, batch)


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Train, and return the losses."""
    options, text = read_options(arguments), Text(length=LENGTH)
    checkpoints, losses = Checkpoints(options.checkpoint), []
    state = train_step.init(init, jax.random.key(0))
    start, state = checkpoints.restore(state)
    for number in range(start, options.steps):
        state, loss = train_step(state, text.batch(number))
        losses.append(float(loss))
        if (number + 1) % options.every == 0:
            held_out = [float(evaluate(state, batch)) for batch in text.held_out()]
            log_progress(number + 1, losses[-1], sum(held_out) / len(held_out), RATE(number))
            checkpoints.save(number + 1, state)
    checkpoints.close()
    return losses


if __name__ == "__main__":
    main()
