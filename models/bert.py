"""BERT: a bidirectional encoder trained on masked tokens, 48 layers deep (BERT-48, 640M
parameters).

Post-norm transformer with learned positions (Devlin et al. 2019), at BERT-Large's width and twice
its depth, the size that pipeline-parallel papers measure (DAPPLE, Auto-MAP). The masked-language-
model head has its own dense layer and norm, and decodes with the embedding plus a bias. Departures:
no next-sentence prediction, hence no segment embedding and no pooler; the head runs on all
positions and the loss keeps the masked ones; sequences are packed, without padding masks; no
dropout. Initialization is Flax's, with BERT's 0.02 for the embeddings.
"""

from dataclasses import dataclass, replace

from flax import nnx
import jax
from jax import numpy as jnp

from models.flash import AttentionBy
from models.layers import (
    Attention,
    AttentionConfig,
    Embedding,
    FeedForward,
    Layers,
    Remat,
    apply_layers,
    check_remat,
    make_layers,
)
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
class BertConfig:
    """Sizes of a BERT; `positions` is the longest sequence, d_ff is 4 * d_model."""

    depth: int
    d_model: int
    heads: int
    positions: int
    vocab: int
    layers: Layers = "unrolled"
    remat: Remat = "none"
    attention: AttentionBy = "written"


BERT_48 = BertConfig(depth=48, d_model=1024, heads=16, positions=512, vocab=30_522)
TINY = BertConfig(depth=2, d_model=64, heads=8, positions=16, vocab=128)


class Block(nnx.Module):
    """One post-norm layer."""

    def __init__(self, config: BertConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        d_head = config.d_model // config.heads
        attention = AttentionConfig(
            d_model=config.d_model,
            heads=config.heads,
            d_head=d_head,
            scale=d_head**-0.5,
            use_bias=True,
            by=config.attention,
        )
        self.attention = Attention(attention, rngs=rngs)
        self.attention_norm = nnx.LayerNorm(config.d_model, rngs=rngs)
        self.mlp = FeedForward(
            config.d_model, 4 * config.d_model, activation=jax.nn.gelu, use_bias=True, rngs=rngs
        )
        self.mlp_norm = nnx.LayerNorm(config.d_model, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, S, d_model] -> [B, S, d_model]."""
        x = self.attention_norm(x + self.attention(x, x))
        return self.mlp_norm(x + self.mlp(x))


class MaskedTokenHead(nnx.Module):
    """Dense, gelu, norm, and the embedding as output, with a bias per token."""

    def __init__(self, config: BertConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.dense = nnx.Linear(config.d_model, config.d_model, rngs=rngs)
        self.norm = nnx.LayerNorm(config.d_model, rngs=rngs)
        self.bias = nnx.Param(jnp.zeros(config.vocab))

    def __call__(self, x: jax.Array, tokens: Embedding) -> jax.Array:
        """Logits [B, S, vocab] from x [B, S, d_model]."""
        x = self.norm(jax.nn.gelu(self.dense(x)))
        return tokens.attend(x) + self.bias[...]


class Bert(nnx.Module):
    """Embeddings and their norm, `depth` blocks, and the head."""

    def __init__(self, config: BertConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.tokens = Embedding(config.vocab, config.d_model, rngs=rngs)
        self.positions = Embedding(config.positions, config.d_model, rngs=rngs)
        self.norm = nnx.LayerNorm(config.d_model, rngs=rngs)
        self.remat = config.remat
        self.layers = make_layers(
            lambda rngs: Block(config, rngs=rngs), config.depth, config.layers, rngs
        )
        self.head = MaskedTokenHead(config, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Logits [B, S, vocab] of the true token at each position of tokens [B, S]."""
        x = self.tokens(tokens) + self.positions(jnp.arange(tokens.shape[1]))
        x = apply_layers(self.layers, self.norm(x), remat=self.remat)
        return self.head(x, self.tokens)


def loss(model: Bert, batch: Batch) -> jax.Array:
    """Mean cross-entropy of `targets` over the positions where `masked` is true."""
    losses = cross_entropy(model(batch["tokens"]), batch["targets"])
    masked = batch["masked"].astype(losses.dtype)
    return (losses * masked).sum() / jnp.maximum(masked.sum(), 1.0)


def bert(config: BertConfig, *, batch: int, seq: int, dtype: DType = "float32") -> TrainStep:
    """The train step of a configuration on [batch, seq] tokens.

    Raises:
        InputError: a size that is not possible, or an unknown `layers`, `remat` or `dtype`.
    """
    check_size("batch", batch)
    check_size("seq", seq, at_most=config.positions)
    check_remat(config.remat)
    tokens, masked = ((batch, seq), "int32"), ((batch, seq), "bool")
    shapes = {"tokens": tokens, "targets": tokens, "masked": masked}
    return train_step(lambda rngs: Bert(config, rngs=rngs), loss, shapes, dtype=dtype)


def init(config: BertConfig, rng: jax.Array) -> State:
    """Concrete parameters and optimizer state."""
    return bert(config, batch=1, seq=1).init(rng)


def bert_48(
    batch: int = 256,
    seq: int = 512,
    layers: Layers = "unrolled",
    dtype: DType = "float32",
    remat: Remat = "none",
    attention: AttentionBy = "written",
) -> Target:
    """BERT-48, with the batch of BERT's pretraining."""
    config = replace(BERT_48, layers=layers, remat=remat, attention=attention)
    return bert(config, batch=batch, seq=seq, dtype=dtype).target


def bert_tiny(
    batch: int = 16,
    seq: int = 16,
    layers: Layers = "unrolled",
    dtype: DType = "float32",
    remat: Remat = "none",
    attention: AttentionBy = "written",
) -> Target:
    """Two layers, everything divisible by 8, for tests."""
    config = replace(TINY, layers=layers, remat=remat, attention=attention)
    return bert(config, batch=batch, seq=seq, dtype=dtype).target
