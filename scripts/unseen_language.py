"""Language models of `scripts.unseen_steps`: trained, adapted, and asked for tokens."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from scripts.memory_targets import Target, array, trained
from scripts.unseen_targets import (
    in_heads,
    indices,
    next_token_loss,
    optimized,
    random_key,
    rms_normalized,
    transformer_layers,
)


def _orthogonalized(gradient: jax.Array) -> jax.Array:
    """Five Newton-Schulz iterations, which bring all singular values near one."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = gradient / (jnp.linalg.norm(gradient, axis=(-2, -1), keepdims=True) + 1e-7)
    is_tall = x.shape[-2] > x.shape[-1]
    x = jnp.swapaxes(x, -1, -2) if is_tall else x
    for _ in range(5):
        square = x @ jnp.swapaxes(x, -1, -2)
        x = a * x + (b * square + c * square @ square) @ x
    return jnp.swapaxes(x, -1, -2) if is_tall else x


def muon_decoder() -> Target:
    """A decoder whose momentum is orthogonalized before it is applied (Muon)."""
    d, depth, vocabulary, batch, length = 512, 4, 4096, 16, 128

    def block(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
        q, k, v = jnp.split(rms_normalized(x, w["scale"][0]) @ w["qkv"], 3, -1)
        q, k, v = (in_heads(part, 8) for part in (q, k, v))
        attended = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + attended.reshape(x.shape) @ w["o"]
        return x + jax.nn.relu(rms_normalized(x, w["scale"][1]) @ w["up"]) ** 2 @ w["down"], None

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        x, _ = jax.lax.scan(block, params["table"][tokens], params["blocks"])
        return next_token_loss(x @ params["table"].T, tokens)

    def step(params: Any, momentum: Any, tokens: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, tokens)
        momentum = jax.tree.map(lambda m, g: 0.95 * m + g, momentum, gradients)
        updates = jax.tree.map(
            lambda m: _orthogonalized(m) if m.ndim >= 3 and m.shape[-2] > 2 else m, momentum
        )
        return jax.tree.map(lambda p, u: p - 0.02 * u, params, updates), momentum, value

    blocks = transformer_layers(depth, d)
    params = {"table": array(vocabulary, d), "blocks": blocks}
    return step, (params, params, indices(batch, length))


def lora_on_int8() -> Target:
    """Adapters of rank 16 on frozen weights of one byte, whose scales are by column."""
    d, ff, depth, rank, batch, length = 1024, 4096, 6, 16, 8, 256
    half = jnp.bfloat16

    def linear(x: jax.Array, base: Any, adapter: Any, name: str) -> jax.Array:
        frozen = (x @ base[name].astype(half)) * base[f"{name}_scale"]
        return frozen + (x @ adapter[f"{name}_a"]) @ adapter[f"{name}_b"]

    @jax.checkpoint
    def block(x: jax.Array, weights: Any) -> tuple[jax.Array, None]:
        base, adapter = weights
        hidden = jax.nn.gelu(linear(x, base, adapter, "up"))
        return x + linear(hidden, base, adapter, "down"), None

    def loss(adapters: Any, bases: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        z, _ = jax.lax.scan(block, x, (bases, adapters))
        return ((z - y).astype(jnp.float32) ** 2).mean()

    bases = {
        "up": array(depth, d, ff, dtype=jnp.int8),
        "up_scale": array(depth, ff, dtype=half),
        "down": array(depth, ff, d, dtype=jnp.int8),
        "down_scale": array(depth, d, dtype=half),
    }
    adapters = {
        "up_a": array(depth, d, rank, dtype=half),
        "up_b": array(depth, rank, ff, dtype=half),
        "down_a": array(depth, ff, rank, dtype=half),
        "down_b": array(depth, rank, d, dtype=half),
    }
    x = array(batch, length, d, dtype=half)
    return optimized(loss, optax.adamw(1e-3), adapters, bases, x, x)


def decoded_token() -> Target:
    """One token by a cache that is a ring, drawn from the nucleus of its distribution."""
    batch, heads, groups, size, length, depth, vocabulary = 32, 16, 4, 64, 2048, 4, 32000
    d = heads * size

    def step(
        params: Any, caches: Any, position: jax.Array, token: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Any, jax.Array]:
        def cached(cache: jax.Array, new: jax.Array) -> jax.Array:
            new = new.reshape(batch, 1, groups, size)
            return jax.lax.dynamic_update_slice(cache, new, (0, position % length, 0, 0))

        def block(x: jax.Array, weights: Any) -> tuple[jax.Array, Any]:
            w, keys, values = weights
            q = (x @ w["q"]).reshape(batch, groups, heads // groups, size)
            keys, values = cached(keys, x @ w["k"]), cached(values, x @ w["v"])
            score = jnp.einsum("bkgc,btkc->bkgt", q, keys) / 8
            score = jnp.where(jnp.arange(length) <= position, score, -1e9)
            attended = jnp.einsum("bkgt,btkc->bkgc", jax.nn.softmax(score), values)
            x = x + attended.reshape(batch, d) @ w["o"]
            x = x + jax.nn.silu(x @ w["gate"]) * (x @ w["up"]) @ w["down"]
            return x, (keys, values)

        x, caches = jax.lax.scan(block, params["table"][token], (params["blocks"], *caches))
        logits = x @ params["table"].T
        descending = jnp.sort(logits, -1)[:, ::-1]
        below = (jnp.cumsum(jax.nn.softmax(descending), -1) < 0.9).sum(-1, keepdims=True)
        least = jnp.take_along_axis(descending, below, -1)
        logits = jnp.where(logits < least, -jnp.inf, logits)
        return jax.random.categorical(key, logits), caches, position + 1

    shapes = {
        "q": (d, d),
        "k": (d, groups * size),
        "v": (d, groups * size),
        "o": (d, d),
        "gate": (d, 4 * d),
        "up": (d, 4 * d),
        "down": (4 * d, d),
    }
    blocks = {name: array(depth, *shape) for name, shape in shapes.items()}
    caches = (array(depth, batch, length, groups, size),) * 2
    params = {"table": array(vocabulary, d), "blocks": blocks}
    return step, (params, caches, indices(), indices(batch), random_key())


def preference_optimization() -> Target:
    """DPO: chosen and rejected answers by a policy and by a frozen reference."""
    d, vocabulary, batch, length, depth = 512, 8192, 16, 128, 4

    def log_likelihood(params: Any, tokens: jax.Array) -> jax.Array:
        def block(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
            context = jnp.cumsum(x, 1) / jnp.arange(1, length + 1)[:, None]
            return x + jax.nn.gelu(context @ w["a"]) @ w["b"], None

        x, _ = jax.lax.scan(block, params["table"][tokens], params["blocks"])
        log_p = jax.nn.log_softmax(x @ params["head"])
        return jnp.take_along_axis(log_p[:, :-1], tokens[:, 1:, None], -1)[..., 0].sum(-1)

    def loss(params: Any, reference: Any, chosen: jax.Array, rejected: jax.Array) -> jax.Array:
        better = log_likelihood(params, chosen) - log_likelihood(reference, chosen)
        worse = log_likelihood(params, rejected) - log_likelihood(reference, rejected)
        return -jax.nn.log_sigmoid(0.1 * (better - worse)).mean()

    blocks = {"a": array(depth, d, 4 * d), "b": array(depth, 4 * d, d)}
    params = {"table": array(vocabulary, d), "blocks": blocks, "head": array(d, vocabulary)}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-4))
    tokens = indices(batch, length)
    return optimized(loss, optimizer, params, params, tokens, tokens)


def rwkv() -> Target:
    """Gated linear recurrences by associative scans, layers computed again."""
    d, depth, batch, length, vocabulary = 512, 6, 32, 512, 8192

    def joined(left: Any, right: Any) -> Any:
        return left[0] * right[0], left[1] * right[0] + right[1]

    @jax.checkpoint
    def layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
        decay, value, gate = jnp.split(x @ w["in"], 3, -1)
        decay = jax.nn.sigmoid(decay)
        _, state = jax.lax.associative_scan(joined, (decay, (1 - decay) * value), axis=1)
        x = x + (state * jax.nn.silu(gate)) @ w["out"]
        return x + jnp.square(jax.nn.relu(x @ w["up"])) @ w["down"], None

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        x, _ = jax.lax.scan(layer, params["table"][tokens], params["layers"])
        return next_token_loss(x @ params["head"], tokens)

    layers = {
        "in": array(depth, d, 3 * d),
        "out": array(depth, d, d),
        "up": array(depth, d, 4 * d),
        "down": array(depth, 4 * d, d),
    }
    params = {"table": array(vocabulary, d), "head": array(d, vocabulary), "layers": layers}
    return trained(loss, params, indices(batch, length))


def mixture_of_depths() -> Target:
    """Only an eighth of the positions, chosen by a router, goes through each layer."""
    batch, length, d, depth, vocabulary = 32, 512, 512, 4, 8192

    def layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
        score = x @ w["router"]
        _, place = jax.lax.top_k(score, length // 8)
        place = jnp.sort(place, -1)
        h = jnp.take_along_axis(x, place[..., None], 1)
        q, k, v = jnp.split(h @ w["qkv"], 3, -1)
        share = jax.nn.softmax(jnp.einsum("btd,bsd->bts", q, k) / d**0.5, -1)
        h = jnp.einsum("bts,bsd->btd", share, v) @ w["o"]
        h = h + jax.nn.gelu(h @ w["up"]) @ w["down"]
        gate = jax.nn.sigmoid(jnp.take_along_axis(score, place, 1))[..., None]
        return x.at[jnp.arange(batch)[:, None], place].add(gate * h), None

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        x, _ = jax.lax.scan(layer, params["table"][tokens], params["layers"])
        return next_token_loss(x @ params["table"].T, tokens)

    layers = {
        "router": array(depth, d),
        "up": array(depth, d, 4 * d),
        "down": array(depth, 4 * d, d),
        "qkv": array(depth, d, 3 * d),
        "o": array(depth, d, d),
    }
    return trained(loss, {"table": array(vocabulary, d), "layers": layers}, indices(batch, length))


def beam_search() -> Target:
    """Four beams of 64 tokens in a while loop, which reorders its caches by their parents."""
    batch, beams, length, d, depth, vocabulary, heads = 16, 4, 64, 512, 4, 8192, 8
    half = jnp.bfloat16

    def step(params: Any, first: jax.Array) -> tuple[jax.Array, jax.Array]:
        def layer(x: jax.Array, w: Any, cache: jax.Array, t: jax.Array) -> Any:
            q, k, v = jnp.split(x @ w["qkv"], 3, -1)
            new = jnp.stack([k, v])[:, :, :, None].astype(half)
            cache = jax.lax.dynamic_update_slice(cache, new, (0, 0, 0, t, 0))
            score = jnp.einsum("bkhd,bkthd->bkht", in_heads(q, heads), in_heads(cache[0], heads))
            score = jnp.where(jnp.arange(length) <= t, score / 8, -1e9)
            share, values = jax.nn.softmax(score, -1), in_heads(cache[1], heads)
            x = x + jnp.einsum("bkht,bkthd->bkhd", share, values).reshape(x.shape) @ w["o"]
            return x + jax.nn.gelu(x @ w["up"]) @ w["down"], cache

        def token(state: Any) -> Any:
            t, tokens, score, cache = state
            x = params["table"][jax.lax.dynamic_index_in_dim(tokens, t, 2, keepdims=False)]
            x, cache = jax.lax.scan(
                lambda x, wc: layer(x, wc[0], wc[1], t), x, (params["layers"], cache)
            )
            log_p = jax.nn.log_softmax((x @ params["table"].T).astype(jnp.float32))
            score, best = jax.lax.top_k((score[..., None] + log_p).reshape(batch, -1), beams)
            parent, new = best // vocabulary, best % vocabulary
            tokens = jnp.take_along_axis(tokens, parent[..., None], 1)
            new = new[..., None].astype(jnp.int32)
            tokens = jax.lax.dynamic_update_slice(tokens, new, (0, 0, t + 1))
            cache = jnp.take_along_axis(cache, parent[None, None, :, :, None, None], 3)
            return t + 1, tokens, score, cache

        cache = jnp.zeros((depth, 2, batch, beams, length, d), half)
        tokens = jnp.zeros((batch, beams, length), jnp.int32).at[:, :, 0].set(first[:, None])
        score = jnp.zeros((batch, beams)).at[:, 1:].set(-1e9)
        start = (0, tokens, score, cache)
        return jax.lax.while_loop(lambda state: state[0] < length - 1, token, start)[1:3]

    layers = {
        "qkv": array(depth, d, 3 * d, dtype=half),
        "o": array(depth, d, d, dtype=half),
        "up": array(depth, d, 4 * d, dtype=half),
        "down": array(depth, 4 * d, d, dtype=half),
    }
    params = {"table": array(vocabulary, d, dtype=half), "layers": layers}
    return step, (params, indices(batch))


def _rotated(x: jax.Array) -> jax.Array:
    """Rotary embeddings: pairs of features, turned by angles that grow with the place."""
    length, size = x.shape[1], x.shape[-1]
    rate = 10000.0 ** (-jnp.arange(size // 2) / (size // 2))
    angle = jnp.arange(length)[:, None, None] * rate
    sine, cosine = jnp.sin(angle).astype(x.dtype), jnp.cos(angle).astype(x.dtype)
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cosine - b * sine, b * cosine + a * sine], -1)


def rotary_decoder() -> Target:
    """Grouped attention with normalized, rotated queries and keys; bfloat16 copies, a z-loss."""
    batch, length, d, heads, groups, ff, depth, vocabulary = 16, 1024, 1024, 16, 4, 2816, 8, 32000
    size = d // heads

    @jax.checkpoint
    def layer(x: jax.Array, full: Any) -> tuple[jax.Array, None]:
        w = jax.tree.map(lambda part: part.astype(jnp.bfloat16), full)
        y = rms_normalized(x, w["scale"][0])
        q, k = in_heads(y @ w["q"], heads), in_heads(y @ w["k"], groups)
        q = _rotated(rms_normalized(q, w["q_scale"]))
        k = _rotated(rms_normalized(k, w["k_scale"]))
        attended = jax.nn.dot_product_attention(q, k, in_heads(y @ w["v"], groups), is_causal=True)
        x = x + attended.reshape(x.shape) @ w["o"]
        y = rms_normalized(x, w["scale"][1])
        return x + (jax.nn.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"], None

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        x = params["table"].astype(jnp.bfloat16)[tokens]
        x, _ = jax.lax.scan(layer, x, params["layers"])
        logits = (x @ params["head"].astype(jnp.bfloat16)).astype(jnp.float32)
        penalty = (jax.nn.logsumexp(logits, -1) ** 2).mean()
        return next_token_loss(logits, tokens) + 1e-4 * penalty

    shapes = {
        "q": (d, d),
        "k": (d, groups * size),
        "v": (d, groups * size),
        "o": (d, d),
        "gate": (d, ff),
        "up": (d, ff),
        "down": (ff, d),
        "scale": (2, d),
        "q_scale": (size,),
        "k_scale": (size,),
    }
    layers = {name: array(depth, *shape) for name, shape in shapes.items()}
    params = {"table": array(vocabulary, d), "head": array(d, vocabulary), "layers": layers}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-4))
    return optimized(loss, optimizer, params, indices(batch, length))
