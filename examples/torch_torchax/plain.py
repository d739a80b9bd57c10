"""A model of PyTorch, trained as a JAX step through torchax.

On one device: python -m examples.torch_torchax.plain
Under a plan:  python -m examples.torch_torchax.planned
"""

from collections.abc import Sequence

import jax
import optax
import torch
import torchax

from examples.parts.checkpoints import Checkpoints
from examples.parts.options import log_progress, read_options
from examples.parts.text import VOCABULARY, Text


WIDTH, HEADS, LAYERS, LENGTH = 128, 4, 2, 64
RATE = optax.warmup_cosine_decay_schedule(0.0, 3e-3, 10, 200)
OPTIMIZER = optax.adamw(RATE)


class Block(torch.nn.Module):
    """Attention, then two products."""

    def __init__(self) -> None:
        """Parameters as PyTorch draws them."""
        super().__init__()
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)
        self.first, self.second = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)

    def forward(self, x):
        """`x` and what the block adds."""
        rows, length, _ = x.shape
        heads = self.qkv(self.first(x)).reshape(rows, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind()
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(torch.nn.functional.gelu(self.up(self.second(x))))


class Model(torch.nn.Module):
    """Bytes to the scores of those that come next."""

    def __init__(self) -> None:
        """Parameters as PyTorch draws them."""
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.place = torch.nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.blocks = torch.nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.scores = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, given):
        """Scores of each place."""
        return self.scores(self.blocks(self.embed(given) + self.place))


def make_training():
    """The first state, the step and the evaluation of a new model."""
    torch.manual_seed(0)
    weights, apply = torchax.extract_jax(Model())

    def init():
        params = jax.tree.map(jax.numpy.copy, weights)
        return {"params": params, "optimizer": OPTIMIZER.init(params)}

    def loss_of(params, batch):
        logits = apply(params, (batch["bytes"],))
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["next"]).mean()

    @jax.jit
    def train_step(state, batch):
        loss, grads = jax.value_and_grad(loss_of)(state["params"], batch)
        updates, optimizer = OPTIMIZER.update(grads, state["optimizer"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "optimizer": optimizer}, loss

    return init, train_step, jax.jit(loss_of)


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Train, and return the losses."""
    options, text = read_options(arguments), Text(length=LENGTH)
    checkpoints, losses = Checkpoints(options.checkpoint), []
    init, train_step, evaluate = make_training()
    state = init()
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
