"""Mamba: a language model of selective state-space layers (Gu and Dao 2023), with the 130M model.

Pre-norm blocks of a short causal depthwise convolution and a diagonal state-space recurrence whose
step size and input and output matrices depend on the token, gated; tied embeddings, no positions.
The vocabulary of GPT-NeoX, 50,277, is padded to 50,280 as in the published model. Departures: the
recurrence is a plain `jax.lax.scan` over time, in float32, where the paper has a fused parallel
scan that recomputes its states in the backward pass; with "bfloat16" the residual stream and the
decay rates are rounded to bfloat16, which the original keeps in float32; weight decay on all
parameters; output projections do not start smaller with depth. Initialization of step sizes, decay
rates and skips is the paper's, the rest Flax's, with 0.02 for the embedding.
"""

from dataclasses import dataclass, replace
import math

from flax import nnx
import jax
from jax import numpy as jnp

from models.layers import Embedding, Layers, apply_layers, make_layers
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


# Range of the step sizes at the start.
SMALLEST_STEP = 1e-3
LARGEST_STEP = 1e-1


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaConfig:
    """Sizes of a Mamba; a block is d_inner = 2 * d_model wide, with `state` states per feature."""

    depth: int
    d_model: int
    state: int
    window: int
    step_rank: int
    vocab: int
    layers: Layers = "unrolled"

    @property
    def d_inner(self) -> int:
        """Features inside a block."""
        return 2 * self.d_model


MAMBA_130M = MambaConfig(depth=24, d_model=768, state=16, window=4, step_rank=48, vocab=50_280)
TINY = MambaConfig(depth=2, d_model=32, state=8, window=8, step_rank=8, vocab=128)


class Selective(nnx.Module):
    """The state-space recurrence: per feature, `state` numbers that decay and take in the input."""

    def __init__(self, config: MambaConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        d_inner, state, rank = config.d_inner, config.state, config.step_rank
        # Uniform within rank**-0.5.
        init = nnx.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
        self.sizes = (rank, rank + state)
        self.select = nnx.Linear(d_inner, rank + 2 * state, use_bias=False, rngs=rngs)
        self.step = nnx.Linear(rank, d_inner, kernel_init=init, bias_init=_step_bias, rngs=rngs)
        rates = jnp.log(jnp.arange(1, state + 1, dtype=jnp.float32))
        self.log_rates = nnx.Param(jnp.tile(rates, (d_inner, 1)))
        self.skip = nnx.Param(jnp.ones(d_inner))

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, S, d_inner] -> [B, S, d_inner]."""
        low_rank, b, c = jnp.split(self.select(x), self.sizes, axis=-1)
        delta = jax.nn.softplus(self.step(low_rank).astype(jnp.float32))
        a = -jnp.exp(self.log_rates[...].astype(jnp.float32))
        return selective_scan(x, delta, a, b, c).astype(x.dtype) + x * self.skip[...]


class Block(nnx.Module):
    """Norm, in-projection, convolution, recurrence, gate and out-projection, with a residual."""

    def __init__(self, config: MambaConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        d_inner = config.d_inner
        self.norm = nnx.RMSNorm(config.d_model, epsilon=1e-5, rngs=rngs)
        self.up = nnx.Linear(config.d_model, 2 * d_inner, use_bias=False, rngs=rngs)
        self.convolution = nnx.Conv(
            d_inner,
            d_inner,
            kernel_size=(config.window,),
            feature_group_count=d_inner,
            padding="CAUSAL",
            rngs=rngs,
        )
        self.selective = Selective(config, rngs=rngs)
        self.down = nnx.Linear(d_inner, config.d_model, use_bias=False, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, S, d_model] -> [B, S, d_model]."""
        y, gate = jnp.split(self.up(self.norm(x)), 2, axis=-1)
        y = self.selective(jax.nn.silu(self.convolution(y)))
        return x + self.down(y * jax.nn.silu(gate))


class Mamba(nnx.Module):
    """Embedding, `depth` blocks, a final norm, and the embedding again as output."""

    def __init__(self, config: MambaConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.tokens = Embedding(config.vocab, config.d_model, rngs=rngs)
        self.layers = make_layers(
            lambda rngs: Block(config, rngs=rngs), config.depth, config.layers, rngs
        )
        self.norm = nnx.RMSNorm(config.d_model, epsilon=1e-5, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Logits [B, S, vocab] of the token that follows each of tokens [B, S]."""
        x = apply_layers(self.layers, self.tokens(tokens))
        return self.tokens.attend(self.norm(x))


def selective_scan(
    x: jax.Array, delta: jax.Array, a: jax.Array, b: jax.Array, c: jax.Array
) -> jax.Array:
    """y [B, S, d_inner] float32 of the recurrence h' = exp(delta a) h + delta x b, y = h' c from 0.

    x and delta are [B, S, d_inner], a is [d_inner, state], b and c are [B, S, state].
    """

    def body(h: jax.Array, inputs: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        x, delta, b, c = inputs
        h = jnp.exp(delta[..., None] * a) * h + (delta * x)[..., None] * b[:, None, :]
        return h, jnp.einsum("bin,bn->bi", h, c)

    inputs = tuple(jnp.swapaxes(y.astype(jnp.float32), 0, 1) for y in (x, delta, b, c))
    h = jnp.zeros((x.shape[0], *a.shape), jnp.float32)
    return jnp.swapaxes(jax.lax.scan(body, h, inputs)[1], 0, 1)


def loss(model: Mamba, batch: Batch) -> jax.Array:
    """Mean next-token cross-entropy; `targets` are `tokens` moved on by one."""
    return cross_entropy(model(batch["tokens"]), batch["targets"]).mean()


def mamba(config: MambaConfig, *, batch: int, seq: int, dtype: DType = "float32") -> TrainStep:
    """The train step of a configuration on [batch, seq] tokens.

    Raises:
        InputError: a size that is not possible, or an unknown `layers` or `dtype`.
    """
    check_size("batch", batch)
    check_size("seq", seq)
    tokens = ((batch, seq), "int32")
    shapes = {"tokens": tokens, "targets": tokens}
    return train_step(lambda rngs: Mamba(config, rngs=rngs), loss, shapes, dtype=dtype)


def init(config: MambaConfig, rng: jax.Array) -> State:
    """Concrete parameters and optimizer state."""
    return mamba(config, batch=1, seq=1).init(rng)


def mamba_130m(
    batch: int = 256, seq: int = 2048, layers: Layers = "unrolled", dtype: DType = "float32"
) -> Target:
    """Mamba-130M, with the 0.5M tokens per batch of its paper."""
    return mamba(replace(MAMBA_130M, layers=layers), batch=batch, seq=seq, dtype=dtype).target


def mamba_tiny(
    batch: int = 16, seq: int = 16, layers: Layers = "unrolled", dtype: DType = "float32"
) -> Target:
    """Two layers, everything divisible by 8, for tests."""
    return mamba(replace(TINY, layers=layers), batch=batch, seq=seq, dtype=dtype).target


def _step_bias(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    """Biases whose softplus is log-uniform between the smallest and the largest step."""
    low, high = math.log(SMALLEST_STEP), math.log(LARGEST_STEP)
    step = jnp.exp(jax.random.uniform(key, shape, dtype, low, high))
    return step + jnp.log(-jnp.expm1(-step))
