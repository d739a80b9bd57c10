"""A decoder for long contexts, whose attention takes one block of queries after the other.

Scores [heads, queries, keys] of all queries at once are what does not fit (Rabe and Staats 2021):

    block i of n has the queries i, i + n, i + 2 n, ..   q[T] -> q[T/n, n] -> for i: q[:, i]
    o_i = softmax(q_i k^T) v                             computed again in the backward pass

Every block is spread over the whole sequence, so devices that hold a run of T / d positions hold
T / (n d) queries of each block: with the sequence split over devices none of them moves, and keys
and values, which all queries need, are gathered. Blocks of neighbours would be on one device each.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax import lax, numpy as jnp
import optax

from automap.errors import InputError
from models.training import Batch, DType, State, TrainStep, adamw, check_size, cross_entropy


@dataclass(frozen=True, slots=True, kw_only=True)
class LongContextConfig:
    """Sizes; `key_heads` divides `heads`, these `d_model`, `blocks` the length of the sequences."""

    depth: int
    d_model: int
    heads: int
    key_heads: int
    d_ff: int
    vocab: int
    blocks: int


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    mean = (x.astype(jnp.float32) ** 2).mean(-1, keepdims=True)
    return (x * lax.rsqrt(mean + 1e-5).astype(x.dtype)) * scale


def attention(q: jax.Array, k: jax.Array, v: jax.Array, blocks: int) -> jax.Array:
    """Causal attention of q [B, T, key heads, queries of each, d] and k, v [B, T, key heads, d]."""
    length = q.shape[1]
    inside = jnp.arange(length // blocks) * blocks

    @jax.checkpoint
    def block(number: jax.Array, q: jax.Array) -> jax.Array:
        scores = jnp.einsum("btkgd,bskd->bkgts", q, k).astype(jnp.float32)
        future = jnp.arange(length) > (inside + number)[:, None]
        weights = jax.nn.softmax(jnp.where(future, -jnp.inf, scores)).astype(v.dtype)
        return jnp.einsum("bkgts,bskd->btkgd", weights, v)

    parts = q.reshape(q.shape[0], length // blocks, blocks, *q.shape[2:])
    each = lax.map(lambda part: block(*part), (jnp.arange(blocks), jnp.moveaxis(parts, 2, 0)))
    return jnp.moveaxis(each, 0, 2).reshape(q.shape)


def _layer(config: LongContextConfig, x: jax.Array, p: dict[str, jax.Array]) -> jax.Array:
    batch, length, _ = x.shape
    h = _norm(x, p["attention_norm"])
    d_head = config.d_model // config.heads
    q = (h @ p["query"]).reshape(batch, length, config.key_heads, -1, d_head) * d_head**-0.5
    k, v = (
        (h @ p[name]).reshape(batch, length, config.key_heads, d_head) for name in ("key", "value")
    )
    x = x + attention(q, k, v, config.blocks).reshape(x.shape) @ p["attended"]
    h = _norm(x, p["feed_norm"])
    return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]


def _loss(config: LongContextConfig, dtype: DType, params: State, batch: Batch) -> jax.Array:
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
    x = params["tokens"][batch["tokens"]]
    step = jax.checkpoint(lambda x, p: (_layer(config, x, p), None))
    x = _norm(lax.scan(step, x, params["layers"])[0], params["norm"])
    return cross_entropy(x @ params["tokens"].T, batch["targets"]).mean()


def _shapes(config: LongContextConfig) -> State:
    c = config
    keys = c.d_model // c.heads * c.key_heads
    layer = {
        "query": (c.d_model, c.d_model),
        "key": (c.d_model, keys),
        "value": (c.d_model, keys),
        "attended": (c.d_model, c.d_model),
        "gate": (c.d_model, c.d_ff),
        "up": (c.d_model, c.d_ff),
        "down": (c.d_ff, c.d_model),
        "attention_norm": (c.d_model,),
        "feed_norm": (c.d_model,),
    }
    return {
        "tokens": (c.vocab, c.d_model),
        "norm": (c.d_model,),
        "layers": {name: (c.depth, *shape) for name, shape in layer.items()},
    }


def long_context(
    config: LongContextConfig, *, batch: int, seq: int, dtype: DType = "float32"
) -> TrainStep:
    """The train step on [batch, seq] tokens. Raises `InputError` for sizes that do not go."""
    check_size("batch", batch)
    check_size("seq", seq)
    for name, whole, part in (
        ("blocks", seq, config.blocks),
        ("heads", config.d_model, config.heads),
        ("key_heads", config.heads, config.key_heads),
    ):
        check_size(name, part)
        if whole % part:
            raise InputError(f"{name}={part} is not possible; give a divisor of {whole}")
    optimizer, loss = adamw(), partial(_loss, config, dtype)

    def step(state: State, batch: Batch) -> tuple[State, dict[str, Any]]:
        value, gradients = jax.value_and_grad(loss)(state["params"], batch)
        updates, opt = optimizer.update(gradients, state["opt"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, {
            "loss": value
        }

    def init(rng: jax.Array) -> State:
        shapes, tree = jax.tree.flatten(_shapes(config), is_leaf=lambda x: isinstance(x, tuple))
        keys = jax.random.split(rng, len(shapes))
        leaves = [
            0.02 * jax.random.normal(key, shape) if len(shape) > 1 else jnp.ones(shape)
            for key, shape in zip(keys, shapes, strict=True)
        ]
        params = jax.tree.unflatten(tree, leaves)
        return {"params": params, "opt": optimizer.init(params)}

    tokens = jax.ShapeDtypeStruct((batch, seq), "int32")
    state = jax.eval_shape(init, jax.random.key(0))
    args = (state, {"tokens": tokens, "targets": tokens})
    return TrainStep(step=jax.jit(step, donate_argnums=0), args=args, init=init)
