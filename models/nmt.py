"""NMT: the translation model of the FlexFlow paper (Jia, Zaharia and Aiken 2019, table 3).

An encoder and a decoder of two LSTM layers of 1024 each, 40 unrolled steps, attention on top of the
last decoder layer and a softmax over the vocabulary at every step; batch 64 per device. The decoder
starts from the encoder's last states. The paper leaves out the vocabularies, here 32,000 for each
language, and the embeddings, here as wide as the LSTM and tied to nothing. Departures: the
attention is Luong's with dot-product scores (Luong, Pham and Manning 2015), without feeding its
output to the next step, where the paper cites Bahdanau's; AdamW; no dropout; every sentence has all
the steps, without padding masks. Initialization is Flax's, with 0.02 for the embeddings.
"""

from dataclasses import dataclass, replace

from flax import nnx
import jax
from jax import numpy as jnp

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
class NmtConfig:
    """Sizes of an NMT; `depth` is the number of encoder layers, and again of decoder layers."""

    depth: int
    hidden: int
    vocab: int
    steps: Steps = "unrolled"


NMT = NmtConfig(depth=2, hidden=1024, vocab=32_000)
TINY = NmtConfig(depth=2, hidden=32, vocab=128)


class LuongAttention(nnx.Module):
    """Dot-product attention over the encoder's outputs, then tanh of a linear layer."""

    def __init__(self, hidden: int, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.mix = nnx.Linear(2 * hidden, hidden, use_bias=False, rngs=rngs)

    def __call__(self, x: jax.Array, memory: jax.Array) -> jax.Array:
        """[B, T, hidden] from x [B, T, hidden] and memory [B, S, hidden]."""
        scores = jnp.einsum("bth,bsh->bts", x, memory).astype(jnp.float32)
        weights = jax.nn.softmax(scores).astype(x.dtype)
        context = jnp.einsum("bts,bsh->bth", weights, memory)
        return jnp.tanh(self.mix(jnp.concatenate([context, x], axis=-1)))


class Nmt(nnx.Module):
    """An embedding and LSTM layers for each language, attention, and a linear output layer."""

    def __init__(self, config: NmtConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.encoder_embedding = Embedding(config.vocab, config.hidden, rngs=rngs)
        self.encoder = LstmStack(config.depth, config.hidden, steps=config.steps, rngs=rngs)
        self.decoder_embedding = Embedding(config.vocab, config.hidden, rngs=rngs)
        self.decoder = LstmStack(config.depth, config.hidden, steps=config.steps, rngs=rngs)
        self.attention = LuongAttention(config.hidden, rngs=rngs)
        self.output = nnx.Linear(config.hidden, config.vocab, rngs=rngs)

    def __call__(self, encoder_tokens: jax.Array, decoder_tokens: jax.Array) -> jax.Array:
        """Logits [B, T, vocab] of the token after each of decoder_tokens [B, T]."""
        memory, states = self.encoder(self.encoder_embedding(encoder_tokens))
        x, _ = self.decoder(self.decoder_embedding(decoder_tokens), states)
        return self.output(self.attention(x, memory))


def loss(model: Nmt, batch: Batch) -> jax.Array:
    """Mean cross-entropy of `targets`, which are `decoder_tokens` moved on by one."""
    logits = model(batch["encoder_tokens"], batch["decoder_tokens"])
    return cross_entropy(logits, batch["targets"]).mean()


def nmt_step(config: NmtConfig, *, batch: int, seq: int, dtype: DType = "float32") -> TrainStep:
    """The train step of a configuration on [batch, seq] encoder and [batch, seq] decoder tokens.

    Raises:
        InputError: a size that is not possible, or an unknown `steps` or `dtype`.
    """
    check_size("batch", batch)
    check_size("seq", seq)
    tokens = ((batch, seq), "int32")
    shapes = {"encoder_tokens": tokens, "decoder_tokens": tokens, "targets": tokens}
    return train_step(lambda rngs: Nmt(config, rngs=rngs), loss, shapes, dtype=dtype)


def init(config: NmtConfig, rng: jax.Array) -> State:
    """Concrete parameters and optimizer state."""
    return nmt_step(config, batch=1, seq=1).init(rng)


def nmt(
    batch: int = 64, seq: int = 40, steps: Steps = "unrolled", dtype: DType = "float32"
) -> Target:
    """NMT on WMT English-German, with the batch and the 40 steps of its paper."""
    return nmt_step(replace(NMT, steps=steps), batch=batch, seq=seq, dtype=dtype).target


def nmt_tiny(
    batch: int = 16, seq: int = 8, steps: Steps = "unrolled", dtype: DType = "float32"
) -> Target:
    """Two and two layers and eight steps, everything divisible by 8, for tests."""
    return nmt_step(replace(TINY, steps=steps), batch=batch, seq=seq, dtype=dtype).target
