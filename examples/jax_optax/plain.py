"""A small transformer in plain JAX, trained by Optax.

On one device: python -m examples.jax_optax.plain
Under a plan:  python -m examples.jax_optax.planned
"""

from collections.abc import Sequence
import math

import jax
from jax import numpy as jnp
import optax

from examples.parts.checkpoints import Checkpoints
from examples.parts.options import log_progress, read_options
from examples.parts.text import VOCABULARY, Text


WIDTH, HEADS, LAYERS, LENGTH = 128, 4, 2, 64
RATE = optax.warmup_cosine_decay_schedule(0.0, 3e-3, 10, 200)
OPTIMIZER = optax.adamw(RATE, weight_decay=0.01)


def init(key):
    """Parameters, optimizer state and the number of the step."""
    keys = iter(jax.random.split(key, 2 + 4 * LAYERS))

    def normal(*shape):
        return jax.random.normal(next(keys), shape) / math.sqrt(shape[0])

    params = {"embed": normal(VOCABULARY, WIDTH), "place": normal(LENGTH, WIDTH), "layers": []}
    for _ in range(LAYERS):
        layer = {"qkv": normal(WIDTH, 3, HEADS, WIDTH // HEADS), "out": normal(WIDTH, WIDTH)}
        layer |= {"up": normal(WIDTH, 4 * WIDTH), "down": normal(4 * WIDTH, WIDTH)}
        params["layers"].append(layer)
    return {"params": params, "optimizer": OPTIMIZER.init(params), "step": jnp.zeros((), int)}


def _normed(x):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def loss_of(params, batch):
    """Nats per byte."""
    x = params["embed"][batch["bytes"]] + params["place"]
    for layer in params["layers"]:
        q, k, v = jnp.einsum("btd,dshe->sbthe", _normed(x), layer["qkv"])
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x += mixed.reshape(x.shape) @ layer["out"]
        x += jax.nn.gelu(_normed(x) @ layer["up"]) @ layer["down"]
    logits = _normed(x) @ params["embed"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["next"]).mean()


@jax.jit
def train_step(state, batch):
    """The state after a step, and its loss."""
    loss, grads = jax.value_and_grad(loss_of)(state["params"], batch)
    updates, optimizer = OPTIMIZER.update(grads, state["optimizer"], state["params"])
    params = optax.apply_updates(state["params"], updates)
    return {"params": params, "optimizer": optimizer, "step": state["step"] + 1}, loss


evaluate = jax.jit(loss_of)


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
