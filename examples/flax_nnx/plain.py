"""A small transformer of Flax NNX, whose modules and optimizer are changed in place.

On one device: python -m examples.flax_nnx.plain
Under a plan:  python -m examples.flax_nnx.planned
"""

from collections.abc import Sequence

from flax import nnx
import jax
import optax

from examples.parts.checkpoints import Checkpoints
from examples.parts.options import log_progress, read_options
from examples.parts.text import VOCABULARY, Text


WIDTH, HEADS, LAYERS, LENGTH = 128, 4, 2, 64
RATE = optax.warmup_cosine_decay_schedule(0.0, 3e-3, 10, 200)


class Block(nnx.Module):
    """Attention, then two products."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        """Parameters from `rngs`."""
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)
        self.norms = nnx.List([nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(2)])

    def __call__(self, x, mask):
        """`x` and what the block adds."""
        x += self.attention(self.norms[0](x), mask=mask)
        return x + self.down(nnx.gelu(self.up(self.norms[1](x))))


class Model(nnx.Module):
    """Bytes to the scores of those that come next."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        """Parameters from `rngs`."""
        self.embed = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.place = nnx.Embed(LENGTH, WIDTH, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(LAYERS)])

    def __call__(self, given):
        """Scores of each place."""
        x = self.embed(given) + self.place(jax.numpy.arange(LENGTH))
        mask = nnx.make_causal_mask(given)
        for block in self.blocks:
            x = block(x, mask)
        return self.embed.attend(x)


def init(seed: int) -> tuple[Model, nnx.Optimizer]:
    """A model and its optimizer."""
    model = Model(nnx.Rngs(seed))
    return model, nnx.Optimizer(model, optax.adamw(RATE), wrt=nnx.Param)


def loss_of(model, batch):
    """Nats per byte."""
    logits = model(batch["bytes"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["next"]).mean()


@nnx.jit
def train_step(model, optimizer, batch):
    """The loss; the model and the optimizer are changed."""
    loss, grads = nnx.value_and_grad(loss_of)(model, batch)
    optimizer.update(model, grads)
    return loss


evaluate = nnx.jit(loss_of)


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Train, and return the losses."""
    options, text = read_options(arguments), Text(length=LENGTH)
    checkpoints, losses = Checkpoints(options.checkpoint), []
    model, optimizer = init(0)
    start, state = checkpoints.restore(nnx.state((model, optimizer)))
    nnx.update((model, optimizer), state)
    for number in range(start, options.steps):
        loss = train_step(model, optimizer, text.batch(number))
        losses.append(float(loss))
        if (number + 1) % options.every == 0:
            held_out = [float(evaluate(model, batch)) for batch in text.held_out()]
            log_progress(number + 1, losses[-1], sum(held_out) / len(held_out), RATE(number))
            checkpoints.save(number + 1, nnx.state((model, optimizer)))
    checkpoints.close()
    return losses


if __name__ == "__main__":
    main()
