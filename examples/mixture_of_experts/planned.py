"""Bytes through layers of experts, of which each byte takes the one that its router chooses.

On one device: python -m examples.mixture_of_experts.plain
Under a plan:  python -m examples.mixture_of_experts.planned
"""

from collections.abc import Sequence
import math

import jax
from jax import numpy as jnp
import optax

import automap
from examples.parts.checkpoints import Checkpoints
from examples.parts.options import log_progress, read_options
from examples.parts.text import VOCABULARY, Text


WIDTH, EXPERTS, LAYERS, LENGTH, SEEN = 128, 8, 2, 64, 8
RATE = optax.warmup_cosine_decay_schedule(0.0, 3e-3, 10, 200)
OPTIMIZER = optax.adamw(RATE)


def init(key):
    """Parameters and optimizer state."""
    keys = iter(jax.random.split(key, 3 + 3 * LAYERS))

    def normal(*shape):
        return jax.random.normal(next(keys), shape) / math.sqrt(shape[-2])

    params = {"embed": normal(VOCABULARY, WIDTH), "seen": normal(SEEN * WIDTH, WIDTH), "layers": []}
    for _ in range(LAYERS):
        layer = {"router": normal(WIDTH, EXPERTS), "up": normal(EXPERTS, WIDTH, 2 * WIDTH)}
        params["layers"].append(layer | {"down": normal(EXPERTS, 2 * WIDTH, WIDTH)})
    return {"params": params, "optimizer": OPTIMIZER.init(params)}


def _experts(layer, x):
    """What each byte's expert makes of it, weighted; and how unevenly bytes are shared."""
    share = jax.nn.softmax(x @ layer["router"])
    chosen = jax.nn.one_hot(share.argmax(-1), EXPERTS)
    # Each expert has room for twice its even share of a text; who comes later passes by.
    room = 2 * x.shape[1] // EXPERTS
    turn = (jnp.cumsum(chosen, 1) - 1) * chosen
    sent = chosen[..., None] * jax.nn.one_hot(turn, room) * (turn < room)[..., None]
    given = jnp.einsum("btec,btd->ebcd", sent, x)
    made = jnp.einsum(
        "ebcf,efd->ebcd",
        jax.nn.gelu(jnp.einsum("ebcd,edf->ebcf", given, layer["up"])),
        layer["down"],
    )
    balance = EXPERTS * jnp.sum(chosen.mean((0, 1)) * share.mean((0, 1)))
    return jnp.einsum("btec,ebcd,bte->btd", sent, made, share), balance


def loss_of(params, batch):
    """Nats per byte, and a hundredth of the imbalance."""
    x = params["embed"][batch["bytes"]]
    # A byte and those before it, side by side.
    before = [jnp.pad(x, ((0, 0), (n, 0), (0, 0)))[:, : x.shape[1]] for n in range(SEEN)]
    x, imbalance = jnp.concatenate(before, -1) @ params["seen"], 0.0
    for layer in params["layers"]:
        made, balance = _experts(layer, x)
        x, imbalance = x + made, imbalance + balance
    logits = x @ params["embed"].T
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["next"]).mean()
    return loss + 0.01 * imbalance


@automap.parallelize
def train_step(state, batch):
    """The state after a step, and its loss."""
    loss, grads = jax.value_and_grad(loss_of)(state["params"], batch)
    updates, optimizer = OPTIMIZER.update(grads, state["optimizer"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "optimizer": optimizer}, loss


evaluate = jax.jit(loss_of)


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
            held_out = [float(evaluate(state["params"], batch)) for batch in text.held_out()]
            log_progress(number + 1, losses[-1], sum(held_out) / len(held_out), RATE(number))
            checkpoints.save(number + 1, state)
    checkpoints.close()
    return losses


if __name__ == "__main__":
    main()
