"""T5 v1.0: an encoder-decoder with relative positions (Raffel et al. 2020).

Pre-norm with bias-free RMSNorm and bias-free linear layers, ReLU feed-forward, tied embeddings with
logits scaled by d_model**-0.5, and attention scores that are not scaled (the query kernel starts
smaller instead). Encoder and decoder each have one table of relative position biases, used by the
self-attention of all their layers: in the original it lives in the first layer. Departures: AdamW
where the paper uses Adafactor; no dropout; sequences are full, without padding masks; the decoder
is as long as the encoder.

`automap_t5_*` are the T5s of Auto-MAP (Wang et al. 2020): LayerNorm with scale and bias and a
feed-forward with biases, as its Table 3 lists them, 6 + 6 and 24 + 24 layers. Their sequences hold
several examples each: positions count within an example, and none looks at another.
"""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from flax import nnx
import jax
from jax import numpy as jnp

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
    make_layers,
)
from models.relative_position import RelativePosition
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
class T5Config:
    """Sizes of a T5; `depth` is the number of encoder layers, and again of decoder layers.

    `norm` is RMSNorm without a bias, or LayerNorm; `is_packed` says whether sequences hold several
    examples.
    """

    depth: int
    d_model: int
    d_kv: int
    d_ff: int
    heads: int
    vocab: int = 32_128
    layers: Layers = "unrolled"
    remat: Remat = "none"
    norm: Literal["rms", "layer"] = "rms"
    use_mlp_bias: bool = False
    is_packed: bool = False


T5_BASE = T5Config(depth=12, d_model=768, d_kv=64, d_ff=3072, heads=12)
T5_3B = T5Config(depth=24, d_model=1024, d_kv=128, d_ff=16_384, heads=32)
T5_11B = T5Config(depth=24, d_model=1024, d_kv=128, d_ff=65_536, heads=128)
# The paper gives a batch of 64, and 51M parameters for the smallest: T5-small has 6 + 6 layers.
AUTOMAP_BASE = T5Config(
    depth=6,
    d_model=512,
    d_kv=64,
    d_ff=2048,
    heads=8,
    norm="layer",
    use_mlp_bias=True,
    is_packed=True,
)
AUTOMAP_3B, AUTOMAP_11B = (
    replace(config, norm="layer", use_mlp_bias=True, is_packed=True) for config in (T5_3B, T5_11B)
)
TINY = T5Config(depth=2, d_model=64, d_kv=8, d_ff=128, heads=8, vocab=128)


_PACKING = ("encoder_positions", "encoder_segments", "decoder_positions", "decoder_segments")


class Packing(NamedTuple):
    """Examples that share a sequence: place within the example and its number, int32 [B, T]."""

    positions: jax.Array
    segments: jax.Array


class EncoderBlock(nnx.Module):
    """Self-attention and feed-forward."""

    def __init__(self, config: T5Config, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.attention_norm = _norm(config, rngs)
        self.attention = _attention(config, rngs)
        self.mlp_norm = _norm(config, rngs)
        self.mlp = _feed_forward(config, rngs)

    def __call__(self, x: jax.Array, bias: jax.Array) -> jax.Array:
        """[B, S, d_model] -> [B, S, d_model]; bias [heads, S, S]."""
        y = self.attention_norm(x)
        x = x + self.attention(y, y, bias)
        return x + self.mlp(self.mlp_norm(x))


class DecoderBlock(nnx.Module):
    """Causal self-attention, attention over the encoder's output, and feed-forward."""

    def __init__(self, config: T5Config, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.attention_norm = _norm(config, rngs)
        self.attention = _attention(config, rngs)
        self.cross_norm = _norm(config, rngs)
        self.cross_attention = _attention(config, rngs)
        self.mlp_norm = _norm(config, rngs)
        self.mlp = _feed_forward(config, rngs)

    def __call__(
        self, x: jax.Array, bias: jax.Array, memory: jax.Array, across: jax.Array | None
    ) -> jax.Array:
        """[B, T, d_model] -> [B, T, d_model]; bias [heads, T, T], memory [B, S, d_model], bias
        across [B, 1, T, S] if some of the memory is not to be seen.
        """
        y = self.attention_norm(x)
        x = x + self.attention(y, y, bias)
        x = x + self.cross_attention(self.cross_norm(x), memory, across)
        return x + self.mlp(self.mlp_norm(x))


class Encoder(nnx.Module):
    """`depth` encoder blocks and a final norm."""

    def __init__(self, config: T5Config, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.relative = RelativePosition(config.heads, direction="both", rngs=rngs)
        self.remat = config.remat
        self.layers = make_layers(
            lambda rngs: EncoderBlock(config, rngs=rngs), config.depth, config.layers, rngs
        )
        self.norm = _norm(config, rngs)

    def __call__(self, x: jax.Array, packing: Packing | None) -> jax.Array:
        """[B, S, d_model] -> [B, S, d_model]."""
        bias = self.relative(_positions(x, packing))
        if packing is not None:
            bias += _mask(packing, packing)
        return self.norm(apply_layers(self.layers, x, bias, remat=self.remat))


class Decoder(nnx.Module):
    """`depth` decoder blocks and a final norm."""

    def __init__(self, config: T5Config, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.relative = RelativePosition(config.heads, direction="back", rngs=rngs)
        self.remat = config.remat
        self.layers = make_layers(
            lambda rngs: DecoderBlock(config, rngs=rngs), config.depth, config.layers, rngs
        )
        self.norm = _norm(config, rngs)

    def __call__(
        self,
        x: jax.Array,
        memory: jax.Array,
        packing: Packing | None,
        memory_packing: Packing | None,
    ) -> jax.Array:
        """[B, T, d_model] -> [B, T, d_model], looking at memory [B, S, d_model]."""
        bias = self.relative(_positions(x, packing)) + causal_bias(x.shape[1])
        across = None
        if packing is not None and memory_packing is not None:
            bias += _mask(packing, packing)
            across = _mask(packing, memory_packing)
        return self.norm(apply_layers(self.layers, x, bias, memory, across, remat=self.remat))


class T5(nnx.Module):
    """One embedding, an encoder and a decoder."""

    def __init__(self, config: T5Config, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        init = nnx.initializers.normal(1.0)
        self.config = config
        self.tokens = Embedding(config.vocab, config.d_model, init=init, rngs=rngs)
        self.encoder = Encoder(config, rngs=rngs)
        self.decoder = Decoder(config, rngs=rngs)

    def __call__(
        self,
        encoder_tokens: jax.Array,
        decoder_tokens: jax.Array,
        encoder_packing: Packing | None = None,
        decoder_packing: Packing | None = None,
    ) -> jax.Array:
        """Logits [B, T, vocab] of the token after each of decoder_tokens [B, T]."""
        memory = self.encoder(self.tokens(encoder_tokens), encoder_packing)
        y = self.decoder(self.tokens(decoder_tokens), memory, decoder_packing, encoder_packing)
        return self.tokens.attend(y * self.config.d_model**-0.5)


def loss(model: T5, batch: Batch) -> jax.Array:
    """Mean cross-entropy of `targets`, which are `decoder_tokens` moved on by one."""
    packings = [
        Packing(batch[f"{side}_positions"], batch[f"{side}_segments"])
        for side in (("encoder", "decoder") if model.config.is_packed else ())
    ]
    logits = model(batch["encoder_tokens"], batch["decoder_tokens"], *packings)
    return cross_entropy(logits, batch["targets"]).mean()


def t5(config: T5Config, *, batch: int, seq: int, dtype: DType = "float32") -> TrainStep:
    """The train step of a configuration on [batch, seq] encoder and [batch, seq] decoder tokens.

    Raises:
        InputError: a size that is not possible, or an unknown `layers`, `remat` or `dtype`.
    """
    check_size("batch", batch)
    check_size("seq", seq)
    check_remat(config.remat)
    tokens = ((batch, seq), "int32")
    names = ["encoder_tokens", "decoder_tokens", "targets", *(_PACKING if config.is_packed else ())]
    shapes = dict.fromkeys(names, tokens)
    return train_step(lambda rngs: T5(config, rngs=rngs), loss, shapes, dtype=dtype)


def init(config: T5Config, rng: jax.Array) -> State:
    """Concrete parameters and optimizer state."""
    return t5(config, batch=1, seq=1).init(rng)


def t5_base(
    batch: int = 128,
    seq: int = 512,
    layers: Layers = "unrolled",
    dtype: DType = "float32",
    remat: Remat = "none",
) -> Target:
    """T5-Base, with the batch of its pretraining."""
    config = replace(T5_BASE, layers=layers, remat=remat)
    return t5(config, batch=batch, seq=seq, dtype=dtype).target


def t5_3b(
    batch: int = 128,
    seq: int = 512,
    layers: Layers = "unrolled",
    dtype: DType = "float32",
    remat: Remat = "none",
) -> Target:
    """T5-3B, with the batch of its pretraining."""
    config = replace(T5_3B, layers=layers, remat=remat)
    return t5(config, batch=batch, seq=seq, dtype=dtype).target


def t5_11b(
    batch: int = 128,
    seq: int = 512,
    layers: Layers = "unrolled",
    dtype: DType = "float32",
    remat: Remat = "none",
) -> Target:
    """T5-11B, with the batch of its pretraining."""
    config = replace(T5_11B, layers=layers, remat=remat)
    return t5(config, batch=batch, seq=seq, dtype=dtype).target


def automap_t5_base(batch: int = 64, seq: int = 512) -> Target:
    """What Auto-MAP calls T5-base."""
    return t5(AUTOMAP_BASE, batch=batch, seq=seq).target


def automap_t5_3b(batch: int = 64, seq: int = 512) -> Target:
    """What Auto-MAP calls T5-3B."""
    return t5(AUTOMAP_3B, batch=batch, seq=seq).target


def automap_t5_11b(batch: int = 64, seq: int = 512) -> Target:
    """What Auto-MAP calls T5-11B."""
    return t5(AUTOMAP_11B, batch=batch, seq=seq).target


def t5_tiny(
    batch: int = 16,
    seq: int = 16,
    layers: Layers = "unrolled",
    dtype: DType = "float32",
    remat: Remat = "none",
) -> Target:
    """Two and two layers, everything divisible by 8, for tests."""
    config = replace(TINY, layers=layers, remat=remat)
    return t5(config, batch=batch, seq=seq, dtype=dtype).target


def _attention(config: T5Config, rngs: nnx.Rngs) -> Attention:
    return Attention(
        AttentionConfig(
            d_model=config.d_model,
            heads=config.heads,
            d_head=config.d_kv,
            scale=1.0,
            use_bias=False,
        ),
        rngs=rngs,
    )


def _feed_forward(config: T5Config, rngs: nnx.Rngs) -> FeedForward:
    return FeedForward(
        config.d_model,
        config.d_ff,
        activation=jax.nn.relu,
        use_bias=config.use_mlp_bias,
        rngs=rngs,
    )


def _norm(config: T5Config, rngs: nnx.Rngs) -> nnx.Module:
    kind = {"rms": nnx.RMSNorm, "layer": nnx.LayerNorm}[config.norm]
    return kind(config.d_model, rngs=rngs)


def _positions(x: jax.Array, packing: Packing | None) -> jax.Array:
    return jnp.arange(x.shape[1]) if packing is None else packing.positions


def _mask(queries: Packing, memory: Packing) -> jax.Array:
    """[B, 1, T, S] float32: 0 within an example, else -1e9."""
    is_same = queries.segments[:, None, :, None] == memory.segments[:, None, None, :]
    return jnp.where(is_same, 0.0, -1e9)
