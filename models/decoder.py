"""A decoder of any published size: multi-head or grouped attention, plain or gated feed-forward,
dense or a mixture of experts.

    x = x + W_o attention(W_q n(x), W_k n(x), W_v n(x));  x = x + feed_forward(n(x))

n is a layer norm or a root-mean-square norm (Vaswani et al. 2017 with the norms first; Zhang and
Sennrich 2019), positions are learned or rotary (Su et al. 2021), the output is the embedding again
or a matrix of its own. Norms and activations keep their inputs alone for the backward pass.

What is differentiated and how it is kept:

    remat     "layer": the backward pass makes again what it needs of a layer from the layer's
              input; "whole": all of it, as frameworks do that call the layer again; "projections":
              what it needs but queries, keys, values and what attention hands on; "attention":
              attention alone
    weights   "cast": float32 parameters, rounded to bfloat16 for each step; "apart": bfloat16
              parameters, whose float32 copies are with Adam's moments (Megatron-LM)
    attention "kernel": `models.decoder_attention`; "written": products and a softmax in float32

Experts get equally many tokens: each token has `per_token` of them, and a group (a sequence) has
room for `room` times the even share in each (GShard, Lepikhin et al. 2020).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
import math
from typing import Any, Final, Literal, get_args

import jax
from jax import numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from models.decoder_attention import attention, written_attention
from models.training import check_choice, check_size


Parameters = dict[str, Any]
Norm = Literal["layer", "rms"]
Layers = Literal["scanned", "unrolled"]
Positions = Literal["learned", "rotary"]
Remat = Literal["none", "attention", "projections", "layer", "whole"]
Weights = Literal["cast", "apart"]
AttentionBy = Literal["kernel", "written"]

_KEPT: Final = ("query", "key", "value", "attended")
_ADAM: Final = (0.9, 0.95, 1e-8, 1e-4, 0.1)  # two decays, epsilon, rate, weight decay
_BASE: Final = 10_000.0  # of rotary wavelengths


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Sizes of a decoder; `kv_heads` divide `heads`, `experts` 0 is dense."""

    depth: int
    d_model: int
    heads: int
    kv_heads: int
    d_head: int
    d_ff: int
    vocab: int
    positions: Positions = "rotary"
    norm: Norm = "rms"
    gated: bool = True
    bias: bool = False
    tied: bool = False
    experts: int = 0
    per_token: int = 2
    room: float = 1.0
    remat: Remat = "none"
    weights: Weights = "cast"
    attention: AttentionBy = "kernel"
    layers: Layers = "scanned"

    def __post_init__(self) -> None:
        """Raise `InputError` for sizes or words that are not possible."""
        for name in ("depth", "d_model", "heads", "kv_heads", "d_head", "d_ff", "vocab"):
            check_size(name, getattr(self, name))
        check_choice("kv_heads", str(self.heads % self.kv_heads), ("0",))
        for name, words in (
            ("positions", Positions),
            ("norm", Norm),
            ("remat", Remat),
            ("weights", Weights),
            ("attention", AttentionBy),
            ("layers", Layers),
        ):
            check_choice(name, getattr(self, name), get_args(words))


def parameter_shapes(config: DecoderConfig, seq: int) -> Parameters:
    """The shape of every parameter: scanned layers have `depth` first, unrolled ones are a list."""
    c = config
    heads, kv = c.heads * c.d_head, c.kv_heads * c.d_head
    layer: dict[str, tuple[int, ...]] = {
        "query": (c.d_model, heads),
        "key": (c.d_model, kv),
        "value": (c.d_model, kv),
        "attended": (heads, c.d_model),
    }
    experts = (c.experts,) if c.experts else ()
    layer |= {"up": (*experts, c.d_model, c.d_ff), "down": (*experts, c.d_ff, c.d_model)}
    if c.gated:
        layer["gate"] = (*experts, c.d_model, c.d_ff)
    if c.experts:
        layer["router"] = (c.d_model, c.experts)
    if c.bias:
        made = {name: shape[-1:] for name, shape in layer.items()}
        layer |= {f"{name}_bias": shape for name, shape in made.items()}
    norms = {"scale": (c.d_model,)} | ({"shift": (c.d_model,)} if c.norm == "layer" else {})
    for name in ("attention_norm", "feed_norm"):
        layer |= {f"{name}_{part}": shape for part, shape in norms.items()}
    shapes: Parameters = {
        "tokens": (c.vocab, c.d_model),
        "layers": [layer] * c.depth
        if c.layers == "unrolled"
        else {name: (c.depth, *shape) for name, shape in layer.items()},
        **{f"norm_{part}": shape for part, shape in norms.items()},
    }
    if c.positions == "learned":
        shapes["positions"] = (seq, c.d_model)
    if not c.tied:
        shapes["logits"] = (c.d_model, c.vocab)
    return shapes


def parameter_count(config: DecoderConfig, seq: int) -> int:
    """How many numbers the parameters are."""
    shapes = jax.tree.leaves(parameter_shapes(config, seq), is_leaf=_is_shape)
    return sum(math.prod(shape) for shape in shapes)


def apply_decoder(config: DecoderConfig, params: Parameters, tokens: jax.Array) -> jax.Array:
    """Logits [B, S, vocab] of the token after each of tokens [B, S]."""
    x = jnp.take(params["tokens"], tokens, axis=0)
    if config.positions == "learned":
        x = x + params["positions"]

    def layer(x: jax.Array, weights: Parameters) -> tuple[jax.Array, None]:
        y = _layer(config, x, weights)
        return (_read_again(y) if config.remat == "whole" else y), None

    made_again = _remade(config.remat, layer)
    if config.layers == "scanned":
        x, _ = jax.lax.scan(made_again, x, params["layers"])
    else:
        for weights in params["layers"]:
            x, _ = made_again(x, weights)
    x = _norm(x, params, "norm")
    out = params["tokens"].T if config.tied else params["logits"]
    return x @ out


def train_step(
    config: DecoderConfig, *, batch: int, seq: int
) -> tuple[Callable[..., Any], tuple[Any, Any]]:
    """A jitted step (state, tokens [batch, seq + 1]) -> (state, loss), and abstract arguments.

    The state is {"params", "moments"}, with "masters" where `weights` is "apart".
    """
    check_size("batch", batch)
    check_size("seq", seq)
    is_cast = config.weights == "cast"

    def loss_of(params: Parameters, batch: Mapping[str, jax.Array]) -> jax.Array:
        rounded = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params) if is_cast else params
        logits = apply_decoder(config, rounded, batch["tokens"]).astype(jnp.float32)
        highest = jax.lax.stop_gradient(logits.max(-1, keepdims=True))
        total = jnp.log(jnp.exp(logits - highest).sum(-1)) + highest[..., 0]
        chosen = jnp.take_along_axis(logits, batch["targets"][..., None], axis=-1)[..., 0]
        return (total - chosen).mean()

    def step(state: Parameters, batch: Mapping[str, jax.Array]) -> tuple[Parameters, jax.Array]:
        loss, grads = jax.value_and_grad(loss_of)(state["params"], batch)
        masters = state["params"] if is_cast else state["masters"]
        updated = jax.tree.map(_adam, masters, grads, *state["moments"])
        masters, *moments = (
            jax.tree.map(lambda leaf, place=place: leaf[place], updated, is_leaf=_is_tuple)
            for place in range(3)
        )
        if is_cast:
            return {"params": masters, "moments": moments}, loss
        params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), masters)
        return {"params": params, "masters": masters, "moments": moments}, loss

    def abstract(dtype: Any) -> Parameters:
        shapes = parameter_shapes(config, seq)
        return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s, dtype), shapes, is_leaf=_is_shape)

    full = abstract(jnp.float32)
    state = {"params": full if is_cast else abstract(jnp.bfloat16), "moments": [full, full]}
    if not is_cast:
        state["masters"] = full
    tokens = jax.ShapeDtypeStruct((batch, seq), jnp.int32)
    return jax.jit(step, donate_argnums=0), (state, {"tokens": tokens, "targets": tokens})


def _layer(config: DecoderConfig, x: jax.Array, weights: Parameters) -> jax.Array:
    batch, length, _ = x.shape
    y = _norm(x, weights, "attention_norm")
    groups = config.heads // config.kv_heads
    # [B, S, key heads, queries of each, d_head], and [B, S, key heads, d_head].
    q = _product(y, weights, "query").reshape(batch, length, config.kv_heads, groups, -1)
    k, v = (
        _product(y, weights, name).reshape(batch, length, config.kv_heads, -1)
        for name in ("key", "value")
    )
    if config.positions == "rotary":
        q, k = _turned(q), _turned(k)
    q, k, v = (checkpoint_name(each, name) for each, name in zip((q, k, v), _KEPT))
    attend = attention if config.attention == "kernel" else written_attention
    attend = jax.checkpoint(attend) if config.remat == "attention" else attend
    y = attend(q * config.d_head**-0.5, k, v).reshape(batch, length, -1)
    x = x + checkpoint_name(_product(y, weights, "attended"), "attended")
    y = _norm(x, weights, "feed_norm")
    return x + (_experts(config, y, weights) if config.experts else _feed(config, y, weights))


def _product(x: jax.Array, weights: Parameters, name: str) -> jax.Array:
    bias = weights.get(f"{name}_bias")
    y = x @ weights[name]
    return y if bias is None else y + bias


def _feed(config: DecoderConfig, x: jax.Array, weights: Parameters) -> jax.Array:
    up = _product(x, weights, "up")
    y = _gated(_product(x, weights, "gate"), up) if config.gated else _gelu(up)
    return _product(y, weights, "down")


@jax.checkpoint
def _gated(gate: jax.Array, up: jax.Array) -> jax.Array:
    return jax.nn.silu(gate) * up


@jax.checkpoint
def _gelu(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x)


def _experts(config: DecoderConfig, x: jax.Array, weights: Parameters) -> jax.Array:
    """A token's experts by the router, each with room for `room` times the even share."""
    even = x.shape[1] * config.per_token / config.experts
    gates = jax.nn.softmax((x @ weights["router"]).astype(jnp.float32))
    best, chosen = jax.lax.top_k(gates, config.per_token)
    best = best / best.sum(-1, keepdims=True)
    masks = jax.nn.one_hot(chosen, config.experts, dtype=jnp.float32)  # [B, S, k, experts]
    # Places in an expert are given in the order of tokens, and of choices within a token.
    flat = masks.reshape(masks.shape[0], -1, config.experts)
    place = ((jnp.cumsum(flat, axis=1) - 1) * flat).reshape(masks.shape).sum(-1)
    room = jax.nn.one_hot(place.astype(jnp.int32), math.ceil(config.room * even))
    combine = jnp.einsum("bsk,bske,bskc->bsec", best, masks, room).astype(x.dtype)
    dispatch = (combine > 0).astype(x.dtype)
    y = jnp.einsum("bsec,bsd->becd", dispatch, x)
    up = jnp.einsum("becd,edf->becf", y, weights["up"])
    if config.gated:
        up = _gated(jnp.einsum("becd,edf->becf", y, weights["gate"]), up)
    else:
        up = _gelu(up)
    y = jnp.einsum("becf,efd->becd", up, weights["down"])
    return jnp.einsum("bsec,becd->bsd", combine, y)


def _norm(x: jax.Array, weights: Parameters, name: str) -> jax.Array:
    return _normalized(x, weights[f"{name}_scale"], weights.get(f"{name}_shift"))


@jax.checkpoint
def _normalized(x: jax.Array, scale: jax.Array, shift: jax.Array | None) -> jax.Array:
    y = x.astype(jnp.float32)
    if shift is not None:
        y = y - y.mean(-1, keepdims=True)
    y = y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-5)
    y = y.astype(x.dtype) * scale
    return y if shift is None else y + shift


def _turned(x: jax.Array) -> jax.Array:
    """[B, S, ..., d_head] with pairs of features turned by angles that grow with the position."""
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[1])[:, None] * _BASE ** (-jnp.arange(half) / half)
    angle = angle.reshape(x.shape[1], *(1,) * (x.ndim - 3), half)
    cos, sin = jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate((first * cos - second * sin, second * cos + first * sin), -1)


def _remade(remat: Remat, layer: Callable[..., Any]) -> Callable[..., Any]:
    if remat in ("none", "attention"):
        return layer
    policies = jax.checkpoint_policies
    policy = policies.save_only_these_names(*_KEPT) if remat == "projections" else None
    return jax.checkpoint(layer, policy=policy)


@jax.custom_vjp
def _read_again(x: jax.Array) -> jax.Array:
    """x, which the backward pass reads: so it is made again with all that leads to it."""
    return x


def _keep(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return x, x


def _gradient(x: jax.Array, gradient: jax.Array) -> tuple[jax.Array]:
    return (jax.lax.optimization_barrier((gradient, x))[0],)


_read_again.defvjp(_keep, _gradient)


def _adam(
    master: jax.Array, gradient: jax.Array, first: jax.Array, second: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """AdamW at a constant rate, without the correction of the first steps."""
    slow, slower, epsilon, rate, decay = _ADAM
    gradient = gradient.astype(jnp.float32)
    first = slow * first + (1 - slow) * gradient
    second = slower * second + (1 - slower) * gradient * gradient
    step = first / (jnp.sqrt(second) + epsilon) + decay * master
    return master - rate * step, first, second


def _is_shape(x: object) -> bool:
    return isinstance(x, tuple) and all(isinstance(n, int) for n in x)


def _is_tuple(x: object) -> bool:
    return isinstance(x, tuple)
