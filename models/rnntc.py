"""RNNTC: the text classifier of the FlexFlow paper (Jia, Zaharia and Aiken 2019, table 3).

Four LSTM layers of 1024 over 40 unrolled steps of movie reviews, followed by a linear softmax layer
that reads the last step; batch 64 per device. The paper leaves out the vocabulary, here 20,000, and
the embedding, here as wide as the LSTM. Departures: 16 classes, so that the output can be sharded,
where movie reviews have two; AdamW; no dropout; every text has all the steps, without padding
masks. Initialization is Flax's, with 0.02 for the embedding.
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
class RnntcConfig:
    """Sizes of an RNNTC; the embedding is as wide as the LSTM layers."""

    depth: int
    hidden: int
    vocab: int
    classes: int
    steps: Steps = "unrolled"


RNNTC = RnntcConfig(depth=4, hidden=1024, vocab=20_000, classes=16)
TINY = RnntcConfig(depth=2, hidden=32, vocab=128, classes=16)


class Rnntc(nnx.Module):
    """Embedding, LSTM layers and a classifier of the last step."""

    def __init__(self, config: RnntcConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.tokens = Embedding(config.vocab, config.hidden, rngs=rngs)
        self.lstm = LstmStack(config.depth, config.hidden, steps=config.steps, rngs=rngs)
        self.classifier = nnx.Linear(config.hidden, config.classes, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Logits [B, classes] of texts, tokens [B, T]."""
        x, _ = self.lstm(self.tokens(tokens))
        return self.classifier(x[:, -1])


def loss(model: Rnntc, batch: Batch) -> jax.Array:
    """Mean cross-entropy of the labels."""
    return cross_entropy(model(batch["tokens"]), batch["labels"]).mean()


def rnntc_step(config: RnntcConfig, *, batch: int, seq: int, dtype: DType = "float32") -> TrainStep:
    """The train step of a configuration on `batch` texts of `seq` tokens.

    Raises:
        InputError: a size that is not possible, or an unknown `steps` or `dtype`.
    """
    check_size("batch", batch)
    check_size("seq", seq)
    shapes = {"tokens": ((batch, seq), "int32"), "labels": ((batch,), "int32")}
    return train_step(lambda rngs: Rnntc(config, rngs=rngs), loss, shapes, dtype=dtype)


def init(config: RnntcConfig, rng: jax.Array) -> State:
    """Concrete parameters and optimizer state."""
    return rnntc_step(config, batch=1, seq=1).init(rng)


def rnntc(
    batch: int = 64, seq: int = 40, steps: Steps = "unrolled", dtype: DType = "float32"
) -> Target:
    """RNNTC on movie reviews, with the batch and the 40 steps of its paper."""
    return rnntc_step(replace(RNNTC, steps=steps), batch=batch, seq=seq, dtype=dtype).target


def rnntc_tiny(
    batch: int = 16, seq: int = 8, steps: Steps = "unrolled", dtype: DType = "float32"
) -> Target:
    """Two layers and eight steps, everything divisible by 8, for tests."""
    return rnntc_step(replace(TINY, steps=steps), batch=batch, seq=seq, dtype=dtype).target
