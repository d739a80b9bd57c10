"""RNNLM: the language model of the FlexFlow paper (Jia, Zaharia and Aiken 2019, table 3).

Two LSTM layers of 2048 over 40 unrolled steps of Penn Treebank, followed by a linear softmax layer;
batch 64 per device. The paper leaves out the vocabulary, here Penn Treebank's usual 10,000, and the
embedding, here as wide as the LSTM and not tied to the output. Departures: AdamW where recurrent
language models use SGD with clipping; no dropout; every sequence starts from a zero state rather
than from the last state of the sequence before it. Initialization is Flax's, with 0.02 for the
embedding.
"""

from dataclasses import dataclass, replace

from flax import nnx
import jax

from models.layers import Embedding
from models.lstm import LstmStack, Steps
from models.training import (
    Batch,
    DType,
    State,
    Target,
    TrainStep,
    check_size,
    cross_entropy,
    train_step,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RnnlmConfig:
    """Sizes of an RNNLM; the embedding is as wide as the LSTM layers."""

    depth: int
    hidden: int
    vocab: int
    steps: Steps = "unrolled"


RNNLM = RnnlmConfig(depth=2, hidden=2048, vocab=10_000)
TINY = RnnlmConfig(depth=2, hidden=32, vocab=128)


class Rnnlm(nnx.Module):
    """Embedding, LSTM layers and a linear output layer."""

    def __init__(self, config: RnnlmConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.tokens = Embedding(config.vocab, config.hidden, rngs=rngs)
        self.lstm = LstmStack(config.depth, config.hidden, steps=config.steps, rngs=rngs)
        self.output = nnx.Linear(config.hidden, config.vocab, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Logits [B, T, vocab] of the token that follows each of tokens [B, T]."""
        x, _ = self.lstm(self.tokens(tokens))
        return self.output(x)


def loss(model: Rnnlm, batch: Batch) -> jax.Array:
    """Mean next-token cross-entropy; `targets` are `tokens` moved on by one."""
    return cross_entropy(model(batch["tokens"]), batch["targets"]).mean()


def rnnlm_step(config: RnnlmConfig, *, batch: int, seq: int, dtype: DType = "float32") -> TrainStep:
    """The train step of a configuration on [batch, seq] tokens.

    Raises:
        InputError: a size that is not possible, or an unknown `steps` or `dtype`.
    """
    check_size("batch", batch)
    check_size("seq", seq)
    tokens = ((batch, seq), "int32")
    shapes = {"tokens": tokens, "targets": tokens}
    return train_step(lambda rngs: Rnnlm(config, rngs=rngs), loss, shapes, dtype=dtype)


def init(config: RnnlmConfig, rng: jax.Array) -> State:
    """Concrete parameters and optimizer state."""
    return rnnlm_step(config, batch=1, seq=1).init(rng)


def rnnlm(
    batch: int = 64, seq: int = 40, steps: Steps = "unrolled", dtype: DType = "float32"
) -> Target:
    """RNNLM on Penn Treebank, with the batch and the 40 steps of its paper."""
    return rnnlm_step(replace(RNNLM, steps=steps), batch=batch, seq=seq, dtype=dtype).target


def rnnlm_tiny(
    batch: int = 16, seq: int = 8, steps: Steps = "unrolled", dtype: DType = "float32"
) -> Target:
    """Two layers and eight steps, everything divisible by 8, for tests."""
    return rnnlm_step(replace(TINY, steps=steps), batch=batch, seq=seq, dtype=dtype).target
