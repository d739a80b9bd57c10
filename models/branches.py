"""A transformer whose layers are mixtures of branches, as an inference step.

A layer normalizes its input once, and every branch reads that: attention, and several feed-forwards
of different widths, whose results are summed with the input (parallel layers as in GPT-J and PaLM,
with more than one feed-forward). All first products of a layer have one input, and so can be one.
"""

from dataclasses import dataclass

from flax import nnx
import jax

from models.inference import InferenceStep, Target, inference_step
from models.layers import Attention, AttentionConfig, Embedding, FeedForward, causal_bias
from models.training import DType, check_size


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchesConfig:
    """Sizes: `widths` are those of the feed-forwards of each layer."""

    vocabulary: int
    length: int
    depth: int
    d_model: int
    heads: int
    widths: tuple[int, ...]


BRANCHES = BranchesConfig(
    vocabulary=32000, length=128, depth=12, d_model=512, heads=8, widths=(512, 512, 1024, 1024)
)
TINY = BranchesConfig(vocabulary=64, length=8, depth=2, d_model=16, heads=2, widths=(16, 32))


class Layer(nnx.Module):
    """Attention and feed-forwards side by side."""

    def __init__(self, config: BranchesConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        d, d_head = config.d_model, config.d_model // config.heads
        self.norm = nnx.RMSNorm(d, rngs=rngs)
        sizes = AttentionConfig(
            d_model=d, heads=config.heads, d_head=d_head, scale=d_head**-0.5, use_bias=False
        )
        self.attention = Attention(sizes, rngs=rngs)
        self.branches = nnx.List(
            FeedForward(d, width, activation=jax.nn.gelu, use_bias=False, rngs=rngs)
            for width in config.widths
        )

    def __call__(self, x: jax.Array, bias: jax.Array) -> jax.Array:
        """[B, T, d_model] -> [B, T, d_model]."""
        y = self.norm(x)
        return x + self.attention(y, y, bias) + sum(branch(y) for branch in self.branches)


class Branches(nnx.Module):
    """Tokens, layers, and scores of the next token."""

    def __init__(self, config: BranchesConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.length = config.length
        self.tokens = Embedding(config.vocabulary, config.d_model, rngs=rngs)
        self.layers = nnx.List(Layer(config, rngs=rngs) for _ in range(config.depth))
        self.norm = nnx.RMSNorm(config.d_model, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Scores [B, vocabulary] of the token after the last of tokens [B, T]."""
        x, bias = self.tokens(tokens), causal_bias(self.length)
        for layer in self.layers:
            x = layer(x, bias)
        return self.tokens.attend(self.norm(x[:, -1]))


def branches_step(config: BranchesConfig, *, batch: int, dtype: DType = "float32") -> InferenceStep:
    """The inference step of a configuration on `batch` sequences.

    Raises:
        InputError: a batch that is not possible, or an unknown `dtype`.
    """
    check_size("batch", batch)
    shapes = {"tokens": ((batch, config.length), "int32")}
    return inference_step(
        lambda rngs: Branches(config, rngs=rngs),
        lambda model, given: model(given["tokens"]),
        shapes,
        dtype=dtype,
    )


def branches(batch: int = 1, dtype: DType = "float32") -> Target:
    """Twelve layers of attention and four feed-forwards on 128 tokens."""
    return branches_step(BRANCHES, batch=batch, dtype=dtype).target


def branches_small(batch: int = 2, dtype: DType = "float32") -> Target:
    """Two layers of attention and two feed-forwards, for tests."""
    return branches_step(TINY, batch=batch, dtype=dtype).target
