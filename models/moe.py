"""MoE: a decoder-only language model with mixtures of experts, after GShard (Lepikhin et al. 2020).

In every second layer the feed-forward is a mixture of experts, see `models.experts`, whose balance
losses are added with weight 0.01. `moe_8x` is GPT-2 medium with 8 experts and has 1,059,551,232
parameters. Departures: a language model where the paper translates; GPT's pre-norm layers with gelu
and learned positions, the experts without biases; the second expert is always used, where GShard
drops it at random by its weight; tokens can also be sorted, which is not in the paper; no dropout;
AdamW where the paper uses Adafactor. Initialization is Flax's, with 0.02 for the embeddings.
"""

from dataclasses import dataclass, replace
from typing import get_args

from flax import nnx
import jax
from jax import numpy as jnp

from models.experts import Dispatch, Experts, ExpertsConfig
from models.flash import AttentionBy
from models.layers import (
    Attention,
    AttentionConfig,
    Embedding,
    FeedForward,
    Layers,
    apply_layers,
    causal_bias,
    make_layers,
)
from models.training import (
    Batch,
    DType,
    State,
    Target,
    TrainStep,
    check_choice,
    check_size,
    cross_entropy,
    train_step,
)


# An activation [B, S, d_model], and the sum of the balance losses of the layers before.
Carry = tuple[jax.Array, jax.Array]

BALANCE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig:
    """Sizes of a MoE; `depth` is even, `positions` is the longest sequence, d_ff is 4 * d_model.

    `room` is the capacity of an expert relative to its even share of the tokens.
    """

    depth: int
    d_model: int
    heads: int
    experts: int
    room: float
    positions: int
    vocab: int = 50_304
    dispatch: Dispatch = "einsum"
    layers: Layers = "unrolled"
    attention: AttentionBy = "written"


MOE_8X = MoeConfig(depth=24, d_model=1024, heads=16, experts=8, room=1.25, positions=1024)
TINY = MoeConfig(depth=4, d_model=64, heads=8, experts=8, room=2.0, positions=16, vocab=128)


class SelfAttention(nnx.Module):
    """Norm and attention, with a residual."""

    def __init__(self, config: MoeConfig, *, rngs: nnx.Rngs):
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
        self.norm = nnx.LayerNorm(config.d_model, rngs=rngs)
        self.attention = Attention(attention, rngs=rngs)

    def __call__(self, x: jax.Array, bias: jax.Array) -> jax.Array:
        """[B, S, d_model] -> [B, S, d_model]; bias [S, S] hides the future."""
        y = self.norm(x)
        return x + self.attention(y, y, bias)


class TwoLayers(nnx.Module):
    """A pre-norm layer with a dense feed-forward, then one with experts."""

    def __init__(self, config: MoeConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        d_model = config.d_model
        experts = ExpertsConfig(
            d_model=d_model,
            d_ff=4 * d_model,
            experts=config.experts,
            room=config.room,
            dispatch=config.dispatch,
        )
        self.first = SelfAttention(config, rngs=rngs)
        self.mlp_norm = nnx.LayerNorm(d_model, rngs=rngs)
        self.mlp = FeedForward(
            d_model, 4 * d_model, activation=jax.nn.gelu, use_bias=True, rngs=rngs
        )
        self.second = SelfAttention(config, rngs=rngs)
        self.experts_norm = nnx.LayerNorm(d_model, rngs=rngs)
        self.experts = Experts(experts, rngs=rngs)

    def __call__(self, carry: Carry, bias: jax.Array) -> Carry:
        """[B, S, d_model] -> [B, S, d_model], with the balance loss added; bias [S, S]."""
        x, total = carry
        x = self.first(x, bias)
        x = x + self.mlp(self.mlp_norm(x))
        x = self.second(x, bias)
        y, balance = self.experts(self.experts_norm(x))
        return x + y, total + balance


class Moe(nnx.Module):
    """Embeddings, `depth` layers by twos, a final norm, and the embedding again as output."""

    def __init__(self, config: MoeConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.tokens = Embedding(config.vocab, config.d_model, rngs=rngs)
        self.positions = Embedding(config.positions, config.d_model, rngs=rngs)
        self.layers = make_layers(
            lambda rngs: TwoLayers(config, rngs=rngs), config.depth // 2, config.layers, rngs
        )
        self.norm = nnx.LayerNorm(config.d_model, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Logits [B, S, vocab] of the token after each of tokens [B, S], and the balance loss."""
        length = tokens.shape[1]
        x = self.tokens(tokens) + self.positions(jnp.arange(length))
        x, balance = apply_layers(self.layers, (x, jnp.zeros(())), causal_bias(length))
        return self.tokens.attend(self.norm(x)), balance


def loss(model: Moe, batch: Batch) -> jax.Array:
    """Mean next-token cross-entropy, `targets` being `tokens` moved on by one, and the balance."""
    logits, balance = model(batch["tokens"])
    return cross_entropy(logits, batch["targets"]).mean() + BALANCE * balance


def moe(config: MoeConfig, *, batch: int, seq: int, dtype: DType = "float32") -> TrainStep:
    """The train step of a configuration on [batch, seq] tokens.

    Raises:
        InputError: a size that is not possible, or an unknown `dispatch`, `layers` or `dtype`.
    """
    check_size("batch", batch)
    check_size("seq", seq, at_most=config.positions)
    check_choice("dispatch", config.dispatch, get_args(Dispatch))
    tokens = ((batch, seq), "int32")
    shapes = {"tokens": tokens, "targets": tokens}
    return train_step(lambda rngs: Moe(config, rngs=rngs), loss, shapes, dtype=dtype)


def init(config: MoeConfig, rng: jax.Array) -> State:
    """Concrete parameters and optimizer state."""
    return moe(config, batch=1, seq=1).init(rng)


def moe_8x(
    batch: int = 512,
    seq: int = 1024,
    dispatch: Dispatch = "einsum",
    layers: Layers = "unrolled",
    dtype: DType = "float32",
    attention: AttentionBy = "written",
) -> Target:
    """GPT-2 medium with 8 experts in every second layer, on GPT-2's batch."""
    config = replace(MOE_8X, dispatch=dispatch, layers=layers, attention=attention)
    return moe(config, batch=batch, seq=seq, dtype=dtype).target


def moe_tiny(
    batch: int = 16,
    seq: int = 16,
    dispatch: Dispatch = "einsum",
    layers: Layers = "unrolled",
    dtype: DType = "float32",
    attention: AttentionBy = "written",
) -> Target:
    """Four layers, two of them with 8 experts, everything else divisible by 8, for tests."""
    config = replace(TINY, dispatch=dispatch, layers=layers, attention=attention)
    return moe(config, batch=batch, seq=seq, dtype=dtype).target
