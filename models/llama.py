"""Llama: a decoder-only language model (Touvron et al. 2023), in the Llama 3 configurations.

Pre-norm transformer with RMS norm, rotary positions, grouped-query attention (several query heads
share one key and value head), SwiGLU feed-forward and no biases (Grattafiori et al. 2024). Llama 3
8B has its own output kernel, Llama 3.2 1B uses the embedding. Departures: no scaling of the rotary
frequencies, which Llama 3.2 has; a rotation pairs feature i with i + d_head / 2, as in the Hugging
Face port, where Meta's code pairs neighbours; sequences are packed without masks between documents;
dropout is off unless asked for, which the original does not have: on the embeddings and the output
of each attention and each feed-forward. Initialization is Flax's, with 0.02 for the embedding.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

from flax import nnx
import jax
from jax import numpy as jnp

from models.flash import AttentionBy, flash_attention
from models.layers import (
    Embedding,
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
    check_choice,
    check_rate,
    check_size,
    cross_entropy,
    train_step,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """Sizes of a Llama; `key_heads` divides `heads`, `theta` is the base of the rotary frequencies.

    With `tied` the embedding is also the output kernel.
    """

    depth: int
    d_model: int
    heads: int
    key_heads: int
    d_ff: int
    vocab: int = 128_256
    theta: float = 500_000.0
    tied: bool = False
    layers: Layers = "unrolled"
    remat: Remat = "none"
    dropout: float = 0.0
    attention: AttentionBy = "written"


LLAMA_8B = LlamaConfig(depth=32, d_model=4096, heads=32, key_heads=8, d_ff=14_336)
LLAMA_70B = LlamaConfig(depth=80, d_model=8192, heads=64, key_heads=8, d_ff=28_672)
LLAMA_1B = LlamaConfig(depth=16, d_model=2048, heads=32, key_heads=8, d_ff=8192, tied=True)
TINY = LlamaConfig(depth=2, d_model=128, heads=16, key_heads=8, d_ff=256, vocab=128)


class GroupedAttention(nnx.Module):
    """Attention with rotary positions; every key head serves heads / key_heads query heads."""

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.d_head = config.d_model // config.heads
        check_choice("attention", config.attention, get_args(AttentionBy))
        self.by = config.attention
        inner = config.key_heads * self.d_head
        self.q = nnx.Linear(config.d_model, config.d_model, use_bias=False, rngs=rngs)
        self.k = nnx.Linear(config.d_model, inner, use_bias=False, rngs=rngs)
        self.v = nnx.Linear(config.d_model, inner, use_bias=False, rngs=rngs)
        self.o = nnx.Linear(config.d_model, config.d_model, use_bias=False, rngs=rngs)

    def __call__(self, x: jax.Array, bias: jax.Array, angles: jax.Array) -> jax.Array:
        """[B, S, d_model] -> [B, S, d_model]; bias [S, S], angles [S, d_head / 2]."""
        q, k, v = (self._heads(y) for y in (self.q(x), self.k(x), self.v(x)))
        q, k = rotate(q * self.d_head**-0.5, angles), rotate(k, angles)
        batch, length, key_heads, _ = k.shape
        if self.by == "flash":
            return self.o(flash_attention(q, k, v, is_causal=True).reshape(x.shape))
        q = q.reshape(batch, length, key_heads, -1, self.d_head)
        scores = jnp.einsum("btkgd,bskd->bkgts", q, k).astype(jnp.float32) + bias
        weights = jax.nn.softmax(scores).astype(x.dtype)
        mixed = jnp.einsum("bkgts,bskd->btkgd", weights, v)
        return self.o(mixed.reshape(x.shape))

    def _heads(self, y: jax.Array) -> jax.Array:
        return y.reshape(*y.shape[:2], -1, self.d_head)


class SwiGlu(nnx.Module):
    """A feed-forward whose inner features are gated: down(silu(gate x) * up x)."""

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.gate = nnx.Linear(config.d_model, config.d_ff, use_bias=False, rngs=rngs)
        self.up = nnx.Linear(config.d_model, config.d_ff, use_bias=False, rngs=rngs)
        self.down = nnx.Linear(config.d_ff, config.d_model, use_bias=False, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, S, d_model] -> [B, S, d_model]."""
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))


class Block(nnx.Module):
    """One pre-norm layer."""

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.dropout = config.dropout
        self.attention_norm = nnx.RMSNorm(config.d_model, epsilon=1e-5, rngs=rngs)
        self.attention = GroupedAttention(config, rngs=rngs)
        self.mlp_norm = nnx.RMSNorm(config.d_model, epsilon=1e-5, rngs=rngs)
        self.mlp = SwiGlu(config, rngs=rngs)

    def __call__(
        self, x: jax.Array, bias: jax.Array, angles: jax.Array, key: jax.Array | None = None
    ) -> jax.Array:
        """[B, S, d_model] -> [B, S, d_model]; bias [S, S] hides the future, `key` draws dropout."""
        attention_key, mlp_key = split_key(key, 2)
        y = self.attention(self.attention_norm(x), bias, angles)
        x = x + dropout(y, attention_key, self.dropout)
        return x + dropout(self.mlp(self.mlp_norm(x)), mlp_key, self.dropout)


class Llama(nnx.Module):
    """Embedding, `depth` blocks, a final norm, and an output kernel or the embedding again."""

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.config = config
        self.tokens = Embedding(config.vocab, config.d_model, rngs=rngs)
        self.layers = make_layers(
            lambda rngs: Block(config, rngs=rngs), config.depth, config.layers, rngs
        )
        self.norm = nnx.RMSNorm(config.d_model, epsilon=1e-5, rngs=rngs)
        output = partial(nnx.Linear, config.d_model, config.vocab, use_bias=False, rngs=rngs)
        self.output = None if config.tied else output()

    def __call__(self, tokens: jax.Array, key: jax.Array | None) -> jax.Array:
        """Logits [B, S, vocab] of the token after each of tokens [B, S]; `key` draws dropout."""
        config, length = self.config, tokens.shape[1]
        tokens_key, layers_key = split_key(key, 2)
        angles = rotary_angles(length, config.d_model // config.heads, config.theta)
        x = dropout(self.tokens(tokens), tokens_key, config.dropout)
        bias = causal_bias(length)
        x = apply_layers(self.layers, x, bias, angles, key=layers_key, remat=config.remat)
        x = self.norm(x)
        return self.tokens.attend(x) if self.output is None else self.output(x)


def rotary_angles(length: int, d_head: int, theta: float) -> jax.Array:
    """[length, d_head / 2] float32: position times a frequency, from 1 down to about 1 / theta."""
    half = d_head // 2
    return jnp.arange(length)[:, None] * theta ** (-jnp.arange(half) / half)


def rotate(x: jax.Array, angles: jax.Array) -> jax.Array:
    """x [B, S, heads, d_head], features i and i + d_head / 2 turned by angles [S, d_head / 2]."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    turned = (first * cos - second * sin, second * cos + first * sin)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def loss(model: Llama, batch: Batch) -> jax.Array:
    """Mean next-token cross-entropy; `targets` are `tokens` moved on by one."""
    return cross_entropy(model(batch["tokens"], batch.get("rng")), batch["targets"]).mean()


def llama(config: LlamaConfig, *, batch: int, seq: int, dtype: DType = "float32") -> TrainStep:
    """The train step of a configuration on [batch, seq] tokens; with dropout it takes a key.

    Raises:
        InputError: a size that is not possible, or an unknown `layers`, `remat` or `dtype`.
    """
    check_size("batch", batch)
    check_size("seq", seq)
    check_remat(config.remat)
    check_rate("dropout", config.dropout)
    tokens = ((batch, seq), "int32")
    shapes = {"tokens": tokens, "targets": tokens}
    if config.dropout:
        shapes["rng"] = ((), "key")
    return train_step(lambda rngs: Llama(config, rngs=rngs), loss, shapes, dtype=dtype)


def init(config: LlamaConfig, rng: jax.Array) -> State:
    """Concrete parameters and optimizer state."""
    return llama(config, batch=1, seq=1).init(rng)


def llama_8b(
    batch: int = 512,
    seq: int = 8192,
    layers: Layers = "unrolled",
    dtype: DType = "float32",
    remat: Remat = "none",
    dropout: float = 0.0,
    attention: AttentionBy = "written",
) -> Target:
    """Llama 3 8B at its context length, with the 4M tokens per batch of Llama 2's paper."""
    config = replace(LLAMA_8B, layers=layers, remat=remat, dropout=dropout, attention=attention)
    return llama(config, batch=batch, seq=seq, dtype=dtype).target


def llama_70b(
    batch: int = 512,
    seq: int = 8192,
    layers: Layers = "unrolled",
    dtype: DType = "float32",
    remat: Remat = "none",
    dropout: float = 0.0,
) -> Target:
    """Llama 3 70B at its context length, with the batch of `llama_8b`."""
    config = replace(LLAMA_70B, layers=layers, remat=remat, dropout=dropout)
    return llama(config, batch=batch, seq=seq, dtype=dtype).target


def llama_1b(
    batch: int = 512,
    seq: int = 8192,
    layers: Layers = "unrolled",
    dtype: DType = "float32",
    remat: Remat = "none",
    dropout: float = 0.0,
    attention: AttentionBy = "written",
) -> Target:
    """Llama 3.2 1B, with the batch of `llama_8b`."""
    config = replace(LLAMA_1B, layers=layers, remat=remat, dropout=dropout, attention=attention)
    return llama(config, batch=batch, seq=seq, dtype=dtype).target


def llama_tiny(
    batch: int = 16,
    seq: int = 16,
    layers: Layers = "unrolled",
    dtype: DType = "float32",
    remat: Remat = "none",
    dropout: float = 0.0,
    attention: AttentionBy = "written",
) -> Target:
    """Two layers, 16 query heads on 8 key heads, everything divisible by 8, for tests."""
    config = replace(TINY, layers=layers, remat=remat, dropout=dropout, attention=attention)
    return llama(config, batch=batch, seq=seq, dtype=dtype).target
