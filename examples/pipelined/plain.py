"""A deeper network, cut into stages that lie on devices of their own.

On one device: python -m examples.pipelined.plain
Under a plan:  python -m examples.pipelined.planned
"""

from collections.abc import Sequence
import math

import jax
from jax import numpy as jnp
import optax

from examples.parts.checkpoints import Checkpoints
from examples.parts.options import log_progress, read_options
from examples.parts.text import VOCABULARY, Text


WIDTH, LAYERS, LENGTH, SEEN = 128, 6, 64, 8
RATE = optax.warmup_cosine_decay_schedule(0.0, 3e-3, 10, 200)
OPTIMIZER = optax.adamw(RATE)


def init(key):
    """Parameters and optimizer state."""
    keys = iter(jax.random.split(key, 3 + 2 * LAYERS))

    def normal(*shape):
        return jax.random.normal(next(keys), shape) / math.sqrt(shape[0])

    params = {"embed": normal(VOCABULARY, WIDTH), "seen": normal(SEEN * WIDTH, WIDTH)}
    params["layers"] = [
        {"up": normal(WIDTH, 4 * WIDTH), "down": normal(4 * WIDTH, WIDTH)} for _ in range(LAYERS)
    ]
    params["scores"] = normal(WIDTH, VOCABULARY)
    return {"params": params, "optimizer": OPTIMIZER.init(params)}


def loss_of(params, batch):
    """Nats per byte."""
    x = params["embed"][batch["bytes"]]
    # A byte and those before it, side by side.
    before = [jnp.pad(x, ((0, 0), (n, 0), (0, 0)))[:, : x.shape[1]] for n in range(SEEN)]
    x = jnp.concatenate(before, -1) @ params["seen"]
    for layer in params["layers"]:
        normed = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)
        x += jax.nn.gelu(normed @ layer["up"]) @ layer["down"]
    logits = x @ params["scores"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["next"]).mean()


@jax.jit
def train_step(state, batch):
    """The state after a step, and its loss."""
    loss, grads = jax.value_and_grad(loss_of)(state["params"], batch)
    updates, optimizer = OPTIMIZER.update(grads, state["optimizer"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "optimizer": optimizer}, loss


@jax.jit
def evaluate_on_one_device(params, batch):
    """Nats per byte of text that is not learned."""
    return loss_of(params, batch)


def evaluate(params, batch):
    """The same of parameters wherever they lie: each stage has its own."""
    return evaluate_on_one_device(jax.device_get(params), batch)


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Train, and return the losses."""
    options, text = read_options(arguments), Text(length=LENGTH)
    checkpoints, losses = Checkpoints(options.checkpoint), []
    state = init(jax.random.key(0))
    start, state = checkpoints.restore(state)
    for number in range(start, options.steps):
        state, loss = train_step(state, text.batch(number))
        losses.append(float(loss))
        if (number + 1) % options.every == 0:
            held_out = [float(evaluate(state["params"], batch)) for batch in text.held_out()]
            log_progress(number + 1, losses[-1], sum(held_out) / len(held_out), RATE(number))
            checkpoints.save(number + 1, state)
    checkpoints.close()
    return losses


if __name__ == "__main__":
    main()
