"""What models share: embedding, attention, feed-forward, dropout, and a stack of equal layers.

Kernels are two-dimensional, as in the T5 and Megatron papers: q, k, v are [d_model, heads * d_head]
and o is [heads * d_head, d_model]. Attention of queries x over memory y, per head:

    softmax((scale * x Wq) (y Wk)^T + bias) (y Wv)     -> in: Attention, softmax in float32

A stack is "unrolled" (a list of layers, each traced) or "scanned" (one layer whose parameters have
a leading [depth] axis, traced once under `jax.lax.scan`); both compute the same. With remat "layer"
only the inputs of the layers are kept for the backward pass, which computes the rest again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from flax import nnx
import jax
from jax import numpy as jnp

from models.flash import AttentionBy, flash_attention
from models.training import check_choice


Layers = Literal["unrolled", "scanned"]
Remat = Literal["none", "layer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """Sizes of an attention; `scale` multiplies queries, `use_bias` gives all kernels a bias.

    `by` says how it is computed: written out, or by each platform's own kernel, to which
    `is_causal` says what a bias says when it is written out.
    """

    d_model: int
    heads: int
    d_head: int
    scale: float
    use_bias: bool
    by: AttentionBy = "written"
    is_causal: bool = False


class Attention(nnx.Module):
    """Multi-head attention; the query kernel starts such that scores have unit variance."""

    def __init__(self, config: AttentionConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""

        def linear(d_in: int, d_out: int, variance: float = 1.0) -> nnx.Linear:
            init = nnx.initializers.variance_scaling(variance, "fan_in", "normal")
            return nnx.Linear(d_in, d_out, use_bias=config.use_bias, kernel_init=init, rngs=rngs)

        check_choice("attention", config.by, get_args(AttentionBy))
        inner = config.heads * config.d_head
        self.config = config
        self.q = linear(config.d_model, inner, variance=1 / (config.scale**2 * config.d_head))
        self.k = linear(config.d_model, inner)
        self.v = linear(config.d_model, inner)
        self.o = linear(inner, config.d_model)

    def __call__(self, x: jax.Array, memory: jax.Array, bias: jax.Array | None = None) -> jax.Array:
        """[B, T, d_model] of x [B, T, d_model], memory [B, S, d_model], bias [B, heads, T, S]."""
        queries = self.q(x) * self.config.scale
        q, k, v = (self._heads(y) for y in (queries, self.k(memory), self.v(memory)))
        if self.config.by == "flash":
            mixed = flash_attention(q, k, v, is_causal=self.config.is_causal)
            return self.o(mixed.reshape(*x.shape[:2], -1))
        scores = jnp.einsum("bthd,bshd->bhts", q, k).astype(jnp.float32)
        scores = scores if bias is None else scores + bias
        weights = jax.nn.softmax(scores).astype(x.dtype)
        mixed = jnp.einsum("bhts,bshd->bthd", weights, v)
        return self.o(mixed.reshape(*x.shape[:2], -1))

    def _heads(self, y: jax.Array) -> jax.Array:
        return y.reshape(*y.shape[:2], self.config.heads, self.config.d_head)


class Embedding(nnx.Module):
    """A table [entries, features]; unlike `nnx.Embed` it computes in the dtype it is given."""

    def __init__(
        self,
        entries: int,
        features: int,
        *,
        init: nnx.Initializer = nnx.initializers.normal(0.02),
        rngs: nnx.Rngs,
    ):
        """Draw the table from `rngs`."""
        self.embedding = nnx.Param(init(rngs.params(), (entries, features)))

    def __call__(self, indices: jax.Array) -> jax.Array:
        """[..., features] for integer indices [...]."""
        return jnp.take(self.embedding[...], indices, axis=0)

    def attend(self, x: jax.Array) -> jax.Array:
        """Scores [..., entries] of x [..., features]: the table as output kernel."""
        return x @ self.embedding[...].T


class FeedForward(nnx.Module):
    """Two linear layers with an activation between: d_model -> d_ff -> d_model."""

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        activation: Callable[[jax.Array], jax.Array],
        use_bias: bool,
        rngs: nnx.Rngs,
    ):
        """Draw the parameters from `rngs`."""
        self.activation = activation
        self.up = nnx.Linear(d_model, d_ff, use_bias=use_bias, rngs=rngs)
        self.down = nnx.Linear(d_ff, d_model, use_bias=use_bias, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, T, d_model] -> [B, T, d_model]."""
        return self.down(self.activation(self.up(x)))


def causal_bias(length: int) -> jax.Array:
    """[length, length] float32: 0 where a query may look (itself and before), else -1e9."""
    position = jnp.arange(length)
    return jnp.where(position[:, None] >= position[None, :], 0.0, -1e9)


def check_remat(remat: str) -> None:
    """Raise InputError unless `remat` is one of the two."""
    check_choice("remat", remat, get_args(Remat))


def make_layers(
    build: Callable[[nnx.Rngs], nnx.Module], depth: int, layers: Layers, rngs: nnx.Rngs
) -> nnx.Module:
    """`depth` layers: an `nnx.List` if unrolled, one layer with stacked parameters if scanned.

    Raises:
        InputError: `layers` is neither of the two.
    """
    check_choice("layers", layers, get_args(Layers))
    if layers == "unrolled":
        # Jitted, so that the layers of a deep model are traced once rather than `depth` times.
        build = nnx.jit(build)
        return nnx.List([build(rngs) for _ in range(depth)])
    return nnx.split_rngs(splits=depth)(nnx.vmap(build))(rngs)


def apply_layers(
    layers: nnx.Module,
    x: Any,
    *context: jax.Array | None,
    key: jax.Array | None = None,
    remat: Remat = "none",
) -> Any:
    """Run x, a tree of arrays, through the layers one after another.

    Every layer sees the same context, and, if there is a key, one of its own as `key`.
    """

    def run(graphdef: nnx.GraphDef, params: nnx.State, x: Any, key: jax.Array | None) -> Any:
        named = {} if key is None else {"key": key}
        return nnx.merge(graphdef, params)(x, *context, **named)

    is_list = isinstance(layers, nnx.List)
    if remat == "layer":
        # Under scan the backward pass is a loop of its own, so nothing can be merged back.
        run = jax.checkpoint(run, static_argnums=0, prevent_cse=is_list)
    if is_list:
        for layer, used in zip(layers, split_key(key, len(layers)), strict=True):
            x = run(*nnx.split(layer), x, used)
        return x
    graphdef, stacked = nnx.split(layers)
    depth = jax.tree.leaves(stacked)[0].shape[0]
    keys = None if key is None else split_key(key, depth)

    def body(x: Any, slices: tuple[nnx.State, jax.Array | None]) -> tuple[Any, None]:
        params, used = slices
        return run(graphdef, params, x, used), None

    return jax.lax.scan(body, x, (stacked, keys))[0]


def split_key(key: jax.Array | None, parts: int) -> Any:
    """`parts` keys made from one, [parts]; as many times None if there is no key."""
    return [None] * parts if key is None else jax.random.split(key, parts)


def dropout(x: jax.Array, key: jax.Array | None, rate: float) -> jax.Array:
    """x with entries set to zero with probability `rate`, the others scaled up to keep the mean.

    Without a key nothing is dropped.
    """
    if key is None:
        return x
    keep = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(keep, x / (1 - rate), 0)
