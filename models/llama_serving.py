"""Llama as a server runs it: a prompt read at once (prefill), then one token after another
(decode), with the keys and values of all that was read before in caches.

Both are one step on tokens [B, S] that stand at `position` and behind, S the prompt's length or 1:

    keys[:, position : position + S] = rotated keys of the tokens, values likewise
    a token at t reads what stands at 0 to t;  logits are those after the last token

The step takes `(state, caches, batch)` and returns `(logits, caches)`; caches are donated. Weights
and numbers are those of `models.llama`.
"""

from collections.abc import Callable, Mapping
from typing import Any, get_args

from flax import nnx
import jax
from jax import lax, numpy as jnp

from models.llama import LLAMA_1B, LLAMA_8B, TINY, GroupedAttention, Llama, LlamaConfig, rotate
from models.training import Batch, DType, State, check_choice, check_size


Caches = list[dict[str, jax.Array]]
"""Of each layer `keys` and `values`, [B, context, key heads, d_head]."""
Target = tuple[Callable[..., tuple[jax.Array, Caches]], tuple[State, Caches, Batch]]


def cached_attention(
    attention: GroupedAttention,
    x: jax.Array,
    cache: Mapping[str, jax.Array],
    position: jax.Array,
    angles: jax.Array,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """[B, S, d_model] -> [B, S, d_model] and the cache with S entries more; angles [S, d_head / 2]
    of the tokens' positions.
    """

    def heads(y: jax.Array) -> jax.Array:
        return y.reshape(*y.shape[:2], -1, attention.d_head)

    q, k, v = heads(attention.q(x)), heads(attention.k(x)), heads(attention.v(x))
    q, k = rotate(q * attention.d_head**-0.5, angles), rotate(k, angles)
    start = (0, position, 0, 0)
    keys = lax.dynamic_update_slice(cache["keys"], k, start)
    values = lax.dynamic_update_slice(cache["values"], v, start)
    q = q.reshape(*q.shape[:2], keys.shape[2], -1, attention.d_head)
    scores = jnp.einsum("btkgd,bskd->bkgts", q, keys).astype(jnp.float32)
    tokens = position + jnp.arange(x.shape[1])
    is_read = jnp.arange(keys.shape[1])[None, :] <= tokens[:, None]
    weights = jax.nn.softmax(jnp.where(is_read, scores, -jnp.inf)).astype(x.dtype)
    mixed = jnp.einsum("bkgts,bskd->btkgd", weights, values)
    return attention.o(mixed.reshape(x.shape)), {"keys": keys, "values": values}


def serve(
    model: Llama, caches: Caches, tokens: jax.Array, position: jax.Array
) -> tuple[jax.Array, Caches]:
    """Logits [B, vocab] after the last of tokens [B, S], and the caches with them."""
    half = model.config.d_model // model.config.heads // 2
    frequencies = model.config.theta ** (-jnp.arange(half) / half)
    angles = (position + jnp.arange(tokens.shape[1]))[:, None] * frequencies
    x, written = model.tokens(tokens), []
    layers: Any = model.layers  # a list: they are not scanned here
    for layer, cache in zip(layers, caches, strict=True):
        y, own = cached_attention(layer.attention, layer.attention_norm(x), cache, position, angles)
        written.append(own)
        x = x + y
        x = x + layer.mlp(layer.mlp_norm(x))
    x = model.norm(x[:, -1])
    return (model.tokens.attend(x) if model.output is None else model.output(x)), written


def llama_serving(
    config: LlamaConfig, *, requests: int, tokens: int, context: int, dtype: DType
) -> Target:
    """The step on [requests, tokens] tokens with caches of `context` entries.

    Raises:
        InputError: a size that is not possible, or an unknown dtype.
    """
    for name, size in (("requests", requests), ("tokens", tokens), ("context", context)):
        check_size(name, size)
    check_choice("dtype", dtype, get_args(DType))
    abstract = nnx.eval_shape(lambda: Llama(config, rngs=nnx.Rngs(0)))
    graphdef, params = nnx.split(abstract, nnx.Param)

    def step(state: State, caches: Caches, batch: Batch) -> tuple[jax.Array, Caches]:
        model = nnx.merge(graphdef, state["params"])
        return serve(model, caches, batch["tokens"], batch["position"])

    state = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype),
        {"params": nnx.to_pure_dict(params)},
    )
    entry = (requests, context, config.key_heads, config.d_model // config.heads)
    caches: Any = [
        {name: jax.ShapeDtypeStruct(entry, dtype) for name in ("keys", "values")}
        for _ in range(config.depth)
    ]
    batch: Any = {
        "tokens": jax.ShapeDtypeStruct((requests, tokens), "int32"),
        "position": jax.ShapeDtypeStruct((), "int32"),
    }
    return jax.jit(step, donate_argnums=1), (state, caches, batch)


def llama_8b_decode(requests: int = 1, context: int = 8192, dtype: DType = "bfloat16") -> Target:
    """One token of each request of Llama 3 8B, whose caches are as long as its context."""
    return llama_serving(LLAMA_8B, requests=requests, tokens=1, context=context, dtype=dtype)


def llama_8b_prefill(
    requests: int = 1, prompt: int = 2048, context: int = 8192, dtype: DType = "bfloat16"
) -> Target:
    """The prompts of requests of Llama 3 8B."""
    return llama_serving(LLAMA_8B, requests=requests, tokens=prompt, context=context, dtype=dtype)


def llama_1b_decode(requests: int = 1, context: int = 8192, dtype: DType = "bfloat16") -> Target:
    """One token of each request of Llama 3.2 1B."""
    return llama_serving(LLAMA_1B, requests=requests, tokens=1, context=context, dtype=dtype)


def serving_tiny(
    requests: int = 8, tokens: int = 1, context: int = 16, dtype: DType = "float32"
) -> Target:
    """The smallest Llama, for tests."""
    return llama_serving(TINY, requests=requests, tokens=tokens, context=context, dtype=dtype)
