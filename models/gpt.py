"""GPT: a decoder-only language model, with the GPT-2 and GPT-3 configurations.

Pre-norm transformer with learned positions, tied embeddings and biases everywhere (Radford et al.
2019; Brown et al. 2020, table 2.1). Departures: the vocabulary of 50,257 is padded to 50,304, the
next multiple of 128, because 50,257 cannot be sharded; GPT-3 XL has 16 heads of 128 (the paper's 24
heads of 128 do not fit its d_model of 2048); attention is dense in every layer; dropout is
off unless asked for, and is applied to the embeddings and to the output of each attention and each
feed-forward, not to the attention weights. Initialization is Flax's, with GPT-2's 0.02 for the
embeddings.
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
    causal_bias,
    check_remat,
    dropout,
    make_layers,
    split_key,
)
from models.training import (
    Batch,
    DType,
    State,
    Target,
    TrainStep,
    check_rate,
    check_size,
    cross_entropy,
    train_step,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GptConfig:
    """Sizes of a GPT; `positions` is the longest sequence, d_ff is 4 * d_model."""

    depth: int
    d_model: int
    heads: int
    positions: int
    vocab: int = 50_304
    layers: Layers = "unrolled"
    remat: Remat = "none"
    dropout: float = 0.0
    attention: AttentionBy = "written"


GPT_124M = GptConfig(depth=12, d_model=768, heads=12, positions=1024)
GPT_1_3B = GptConfig(depth=24, d_model=2048, heads=16, positions=2048)
GPT_6_7B = GptConfig(depth=32, d_model=4096, heads=32, positions=2048)
TINY = GptConfig(depth=2, d_model=64, heads=8, positions=16, vocab=128)


class Block(nnx.Module):
    """One pre-norm layer."""

    def __init__(self, config: GptConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        d_head = config.d_model // config.heads
        attention = AttentionConfig(
            d_model=config.d_model,
            heads=config.heads,
            d_head=d_head,
            scale=d_head**-0.5,
            use_bias=True,
            by=config.attention,
            is_causal=True,
        )
        self.dropout = config.dropout
        self.attention_norm = nnx.LayerNorm(config.d_model, rngs=rngs)
        self.attention = Attention(attention, rngs=rngs)
        self.mlp_norm = nnx.LayerNorm(config.d_model, rngs=rngs)
        self.mlp = FeedForward(
            config.d_model, 4 * config.d_model, activation=jax.nn.gelu, use_bias=True, rngs=rngs
        )

    def __call__(self, x: jax.Array, bias: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """[B, S, d_model] -> [B, S, d_model]; bias [S, S] hides the future, `key` draws dropout."""
        attention_key, mlp_key = split_key(key, 2)
        y = self.attention_norm(x)
        x = x + dropout(self.attention(y, y, bias), attention_key, self.dropout)
        return x + dropout(self.mlp(self.mlp_norm(x)), mlp_key, self.dropout)


class Gpt(nnx.Module):
    """Embeddings, `depth` blocks, a final norm, and the embedding again as output."""

    def __init__(self, config: GptConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.remat, self.dropout = config.remat, config.dropout
        self.tokens = Embedding(config.vocab, config.d_model, rngs=rngs)
        self.positions = Embedding(config.positions, config.d_model, rngs=rngs)
        self.layers = make_layers(
            lambda rngs: Block(config, rngs=rngs), config.depth, config.layers, rngs
        )
        self.norm = nnx.LayerNorm(config.d_model, rngs=rngs)

    def __call__(self, tokens: jax.Array, key: jax.Array | None) -> jax.Array:
        """Logits [B, S, vocab] of the token after each of tokens [B, S]; `key` draws dropout."""
        tokens_key, layers_key = split_key(key, 2)
        length = tokens.shape[1]
        x = self.tokens(tokens) + self.positions(jnp.arange(length))
        x = dropout(x, tokens_key, self.dropout)
        x = apply_layers(self.layers, x, causal_bias(length), key=layers_key, remat=self.remat)
        return self.tokens.attend(self.norm(x))


def loss(model: Gpt, batch: Batch) -> jax.Array:
    """Mean next-token cross-entropy; `targets` are `tokens` moved on by one."""
    return cross_entropy(model(batch["tokens"], batch.get("rng")), batch["targets"]).mean()


def gpt(config: GptConfig, *, batch: int, seq: int, dtype: DType = "float32") -> TrainStep:
    """The train step of a configuration on [batch, seq] tokens; with dropout it takes a key.

    Raises:
        InputError: a size that is not possible, or an unknown `layers`, `remat` or `dtype`.
    """
    check_size("batch", batch)
    check_size("seq", seq, at_most=config.positions)
    check_remat(config.remat)
    check_rate("dropout", config.dropout)
    tokens = ((batch, seq), "int32")
    shapes = {"tokens": tokens, "targets": tokens}
    if config.dropout:
        shapes["rng"] = ((), "key")
    return train_step(lambda rngs: Gpt(config, rngs=rngs), loss, shapes, dtype=dtype)


def init(config: GptConfig, rng: jax.Array) -> State:
    """Concrete parameters and optimizer state."""
    return gpt(config, batch=1, seq=1).init(rng)


def gpt_124m(
    batch: int = 512,
    seq: int = 1024,
    layers: Layers = "unrolled",
    dtype: DType = "float32",
    remat: Remat = "none",
    dropout: float = 0.0,
    attention: AttentionBy = "written",
) -> Target:
    """GPT-2 small, with the batch of its paper."""
    config = replace(GPT_124M, layers=layers, remat=remat, dropout=dropout, attention=attention)
    return gpt(config, batch=batch, seq=seq, dtype=dtype).target


def gpt_1_3b(
    batch: int = 512,
    seq: int = 2048,
    layers: Layers = "unrolled",
    dtype: DType = "float32",
    remat: Remat = "none",
    dropout: float = 0.0,
    attention: AttentionBy = "written",
) -> Target:
    """GPT-3 XL, with the 1M tokens per batch of its paper."""
    config = replace(GPT_1_3B, layers=layers, remat=remat, dropout=dropout, attention=attention)
    return gpt(config, batch=batch, seq=seq, dtype=dtype).target


def gpt_6_7b(
    batch: int = 1024,
    seq: int = 2048,
    layers: Layers = "unrolled",
    dtype: DType = "float32",
    remat: Remat = "none",
    dropout: float = 0.0,
    attention: AttentionBy = "written",
) -> Target:
    """GPT-3 6.7B, with the 2M tokens per batch of its paper."""
    config = replace(GPT_6_7B, layers=layers, remat=remat, dropout=dropout, attention=attention)
    return gpt(config, batch=batch, seq=seq, dtype=dtype).target


def gpt_tiny(
    batch: int = 16,
    seq: int = 16,
    layers: Layers = "unrolled",
    dtype: DType = "float32",
    remat: Remat = "none",
    dropout: float = 0.0,
    attention: AttentionBy = "written",
) -> Target:
    """Two layers, everything divisible by 8, for tests."""
    config = replace(TINY, layers=layers, remat=remat, dropout=dropout, attention=attention)
    return gpt(config, batch=batch, seq=seq, dtype=dtype).target
