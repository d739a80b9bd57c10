"""Steps of `scripts.unseen_steps` that were written on 2026-12-01: attention along several
dimensions, states of matrices, and rows that are decoded one by one.

What a compiler makes of the fitted half was looked at on that day, kernel by kernel; of the others
nothing was.
"""

from typing import Any, Final

import jax
import jax.numpy as jnp
import optax

from scripts.memory_targets import Target, array
from scripts.unseen_targets import (
    convolution,
    in_heads,
    indices,
    mean_square,
    next_token_loss,
    optimized,
    rms_normalized,
    standardized,
)


def video_attention() -> Target:
    """TimeSformer: patches attend to their place in other frames, then to their own frame."""
    batch, frames, places, d, heads, depth = 16, 8, 196, 384, 6, 3

    def attended(x: jax.Array, w: Any) -> jax.Array:
        q, k, v = (in_heads(z, heads) for z in jnp.split(standardized(x) @ w["qkv"], 3, -1))
        share = jax.nn.softmax(jnp.einsum("bsqhd,bskhd->bshqk", q, k) / (d / heads) ** 0.5)
        return jnp.einsum("bshqk,bskhd->bsqhd", share, v).reshape(x.shape) @ w["o"]

    def loss(params: Any, x: jax.Array, label: jax.Array) -> jax.Array:
        for w in params["layers"]:
            by_place = x.swapaxes(1, 2)
            x = x + attended(by_place, w["time"]).swapaxes(1, 2)
            x = x + attended(x, w["space"])
            x = x + jax.nn.gelu(standardized(x) @ w["up"]) @ w["down"]
        logits = x.mean((1, 2)) @ params["head"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, label).mean()

    one = {"qkv": array(d, 3 * d), "o": array(d, d)}
    layer = {"time": one, "space": one, "up": array(d, 4 * d), "down": array(4 * d, d)}
    params = {"layers": [layer] * depth, "head": array(d, 400)}
    x = array(batch, frames, places, d)
    return optimized(loss, optax.adamw(1e-3), params, x, indices(batch))


def blocks_and_grids() -> Target:
    """MaxViT: attention in blocks of 8 x 8 neighbours, then in grids of 8 x 8 that lie apart."""
    batch, size, side, d, heads, depth = 64, 32, 8, 256, 8, 2
    count, half = size // side, jnp.bfloat16

    def attended(x: jax.Array, w: Any) -> jax.Array:
        q, k, v = (in_heads(z, heads) for z in jnp.split(standardized(x) @ w["qkv"], 3, -1))
        score = jnp.einsum("bnqhd,bnkhd->bnhqk", q, k).astype(jnp.float32) / (d / heads) ** 0.5
        share = jax.nn.softmax(score + w["bias"].astype(jnp.float32)).astype(half)
        return jnp.einsum("bnhqk,bnkhd->bnqhd", share, v).reshape(x.shape) @ w["o"]

    def layer(x: jax.Array, w: Any) -> jax.Array:
        parts = x.reshape(batch, count, side, count, side, d).swapaxes(2, 3)
        parts = attended(parts.reshape(batch, count**2, side**2, d), w["block"])
        parts = parts.reshape(batch, count, count, side, side, d).swapaxes(2, 3)
        x = x + parts.reshape(x.shape)
        parts = x.reshape(batch, side, count, side, count, d).transpose(0, 2, 4, 1, 3, 5)
        parts = attended(parts.reshape(batch, count**2, side**2, d), w["grid"])
        parts = parts.reshape(batch, count, count, side, side, d).transpose(0, 3, 1, 4, 2, 5)
        x = x + parts.reshape(x.shape)
        return x + jax.nn.gelu(standardized(x) @ w["up"]) @ w["down"]

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        halved = jax.tree.map(lambda w: w.astype(half), params)
        for w in halved:
            x = layer(x, w)
        return mean_square(x.astype(jnp.float32), y)

    one = {"qkv": array(d, 3 * d), "o": array(d, d), "bias": array(heads, side**2, side**2)}
    layers = {"block": one, "grid": one, "up": array(d, 4 * d), "down": array(4 * d, d)}
    x = array(batch, size, size, d, dtype=half)
    y = array(batch, size, size, d)
    return optimized(loss, optax.adamw(1e-3), [layers] * depth, x, y)


def evoformer_rows() -> Target:
    """Evoformer: rows of an alignment attend with a bias of pairs, which they update."""
    batch, rows, length, d, pairs, heads, depth = 8, 32, 128, 256, 128, 8, 3

    def layer(carry: Any, w: Any) -> tuple[Any, None]:
        x, z = carry
        q, k, v = (in_heads(a, heads) for a in jnp.split(standardized(x) @ w["qkv"], 3, -1))
        bias = jnp.moveaxis(standardized(z) @ w["bias"], -1, 1)[:, None]
        scores = jnp.einsum("brihc,brjhc->brhij", q, k) * (d // heads) ** -0.5 + bias
        mixed = jnp.einsum("brhij,brjhc->brihc", jax.nn.softmax(scores), v).reshape(x.shape)
        x = x + jax.nn.sigmoid(standardized(x) @ w["gate"]) * mixed @ w["o"]
        a, b = jnp.split(standardized(x) @ w["outer"], 2, -1)
        outer = jnp.einsum("bric,brje->bijce", a, b) / rows
        z = z + outer.reshape(*z.shape[:3], -1) @ w["pair"]
        x = x + jax.nn.relu(standardized(x) @ w["up"]) @ w["down"]
        return (x, z), None

    def loss(params: Any, x: jax.Array, z: jax.Array, y: jax.Array) -> jax.Array:
        (x, z), _ = jax.lax.scan(layer, (x, z), params)
        return mean_square(z, y) + (x**2).mean()

    params = {
        "qkv": array(depth, d, 3 * d),
        "bias": array(depth, pairs, heads),
        "gate": array(depth, d, d),
        "o": array(depth, d, d),
        "outer": array(depth, d, 32),
        "pair": array(depth, 256, pairs),
        "up": array(depth, d, 4 * d),
        "down": array(depth, 4 * d, d),
    }
    z = array(batch, length, length, pairs)
    return optimized(loss, optax.adamw(1e-3), params, array(batch, rows, length, d), z, z)


def samples_and_features() -> Target:
    """SAINT: attention among the columns of a table, then among the rows of a batch."""
    groups, rows, columns, d, heads, depth = 16, 64, 24, 32, 4, 3

    def attended(x: jax.Array, w: Any) -> jax.Array:
        q, k, v = (in_heads(z, heads) for z in jnp.split(standardized(x) @ w["qkv"], 3, -1))
        share = jax.nn.softmax(jnp.einsum("gqhc,gkhc->ghqk", q, k) / q.shape[-1] ** 0.5)
        x = x + jnp.einsum("ghqk,gkhc->gqhc", share, v).reshape(x.shape) @ w["o"]
        return x + jax.nn.gelu(standardized(x) @ w["up"]) @ w["down"]

    def loss(params: Any, numbers: jax.Array, y: jax.Array) -> jax.Array:
        x = numbers[..., None] * params["scale"] + params["shift"]
        for w in params["layers"]:
            x = attended(x.reshape(-1, columns, d), w["columns"])
            x = attended(x.reshape(groups, rows, columns * d), w["rows"])
            x = x.reshape(groups, rows, columns, d)
        return mean_square(x.mean(2) @ params["head"], y)

    def one(d: int, wide: int) -> Any:
        dense = {"qkv": array(d, 3 * d), "o": array(d, d)}
        return {**dense, "up": array(d, wide), "down": array(wide, d)}

    layer = {"columns": one(d, 4 * d), "rows": one(columns * d, columns * d)}
    params = {
        "scale": array(columns, d),
        "shift": array(columns, d),
        "layers": [layer] * depth,
        "head": array(d, 1),
    }
    numbers = array(groups, rows, columns)
    return optimized(loss, optax.adamw(1e-3), params, numbers, array(groups, rows, 1))


def delta_rule() -> Target:
    """DeltaNet: each token writes into a matrix of every head what it does not yet recall."""
    batch, length, d, heads, depth, vocabulary = 32, 256, 512, 8, 2, 8192

    def recalled(q: jax.Array, k: jax.Array, v: jax.Array, rate: jax.Array) -> jax.Array:
        def token(state: jax.Array, at: Any) -> tuple[jax.Array, jax.Array]:
            q, k, v, rate = at
            wrong = v - jnp.einsum("bhkv,bhk->bhv", state, k)
            state = state + jnp.einsum("bhk,bhv->bhkv", k, rate[..., None] * wrong)
            return state, jnp.einsum("bhkv,bhk->bhv", state, q)

        size = d // heads
        start = jnp.zeros((q.shape[0], heads, size, size))
        steps = tuple(jnp.moveaxis(z, 1, 0) for z in (q, k, v, rate))
        return jnp.moveaxis(jax.lax.scan(token, start, steps)[1], 0, 1)

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        x = params["embedding"][tokens]
        for w in params["layers"]:
            h = rms_normalized(x, w["scale"])
            q, k, v = (in_heads(jax.nn.silu(z), heads) for z in jnp.split(h @ w["qkv"], 3, -1))
            k = k / (jnp.linalg.norm(k, axis=-1, keepdims=True) + 1e-6)
            mixed = recalled(q, k, v, jax.nn.sigmoid(h @ w["rate"]))
            x = x + mixed.reshape(x.shape) @ w["o"]
            x = x + jax.nn.silu(h @ w["up"]) @ w["down"]
        return next_token_loss(x @ params["embedding"].T, tokens)

    layer = {
        "scale": array(d),
        "qkv": array(d, 3 * d),
        "rate": array(d, heads),
        "o": array(d, d),
        "up": array(d, 2 * d),
        "down": array(2 * d, d),
    }
    params = {"embedding": array(vocabulary, d), "layers": [layer] * depth}
    return optimized(loss, optax.adamw(1e-3), params, indices(batch, length))


def fast_weights() -> Target:
    """Linear attention with decay: a matrix of every head forgets, is written to, and is read."""
    batch, length, d, heads, depth = 32, 128, 768, 12, 2

    def recalled(q: jax.Array, k: jax.Array, v: jax.Array, keep: jax.Array) -> jax.Array:
        def token(state: jax.Array, at: Any) -> tuple[jax.Array, jax.Array]:
            q, k, v, keep = at
            state = keep[..., None] * state + k[..., None] * v[..., None, :]
            return state, (state * q[..., None]).sum(-2)

        size = d // heads
        start = jnp.zeros((q.shape[0], heads, size, size), q.dtype)
        steps = tuple(z.swapaxes(0, 1) for z in (q, k, v, keep))
        return jax.lax.scan(token, start, steps)[1].swapaxes(0, 1)

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        for w in params:
            h = standardized(x)
            q, k, v = (in_heads(h @ w[name], heads) for name in ("q", "k", "v"))
            keep = jax.nn.sigmoid(in_heads(h @ w["keep"], heads))
            mixed = standardized(recalled(q, k, v, keep)).reshape(x.shape)
            x = x + (mixed * jax.nn.silu(h @ w["gate"])) @ w["o"]
        return mean_square(x, y)

    names = ("q", "k", "v", "keep", "gate", "o")
    params = [{name: array(d, d) for name in names}] * depth
    x = array(batch, length, d)
    return optimized(loss, optax.adam(1e-3), params, x, x)


def dense_graph_attention() -> Target:
    """Graphormer: every node attends to every other, with biases of edges and of distances."""
    batch, nodes, d, heads, depth, distances = 64, 96, 256, 8, 4, 20

    def loss(params: Any, x: jax.Array, edges: jax.Array, far: jax.Array, y: jax.Array) -> Any:
        bias = params["distance"][far] + edges @ params["edge"]
        bias = jnp.moveaxis(bias, -1, 1)

        def layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
            h = standardized(x) * w["scale"]
            q, k, v = (in_heads(z, heads).swapaxes(1, 2) for z in jnp.split(h @ w["qkv"], 3, -1))
            score = q @ k.swapaxes(-1, -2) * (d // heads) ** -0.5 + bias
            mixed = (jax.nn.softmax(score) @ v).swapaxes(1, 2).reshape(x.shape)
            x = x + mixed @ w["o"]
            return x + jax.nn.gelu(standardized(x) @ w["up"]) @ w["down"], None

        x = jax.lax.scan(layer, x, params["layers"])[0]
        return mean_square(x.mean(1) @ params["out"], y)

    layers = {
        "scale": array(depth, d),
        "qkv": array(depth, d, 3 * d),
        "o": array(depth, d, d),
        "up": array(depth, d, 4 * d),
        "down": array(depth, 4 * d, d),
    }
    params = {
        "distance": array(distances, heads),
        "edge": array(16, heads),
        "layers": layers,
        "out": array(d, 1),
    }
    edges, far = array(batch, nodes, nodes, 16), indices(batch, nodes, nodes)
    batched = (array(batch, nodes, d), edges, far, array(batch, 1))
    return optimized(loss, optax.adamw(1e-3), params, *batched)


def super_resolution() -> Target:
    """Images made four times as large: attention in windows, then pixels out of features."""
    batch, size, side, d, heads, depth = 16, 48, 8, 120, 6, 3
    count = size // side

    def attended(x: jax.Array, w: Any) -> jax.Array:
        parts = x.reshape(batch, count, side, count, side, d).transpose(0, 1, 3, 2, 4, 5)
        parts = parts.reshape(-1, side * side, d)
        q, k, v = (in_heads(z, heads) for z in jnp.split(standardized(parts) @ w["qkv"], 3, -1))
        score = jnp.einsum("nqhd,nkhd->nhqk", q, k) * (d // heads) ** -0.5 + w["bias"]
        mixed = jnp.einsum("nhqk,nkhd->nqhd", jax.nn.softmax(score), v).reshape(parts.shape)
        mixed = (mixed @ w["o"]).reshape(batch, count, count, side, side, d)
        return mixed.transpose(0, 1, 3, 2, 4, 5).reshape(x.shape)

    def loss(params: Any, image: jax.Array, y: jax.Array) -> jax.Array:
        x = first = convolution(image, params["in"])
        for w in params["layers"]:
            x = x + attended(x, w)
            x = x + jax.nn.gelu(standardized(x) @ w["up"]) @ w["down"]
        x = convolution(first + convolution(x, params["middle"]), params["out"])
        x = x.reshape(batch, size, size, 4, 4, 3).transpose(0, 1, 3, 2, 4, 5)
        return jnp.abs(x.reshape(y.shape) - y).mean()

    layer = {
        "qkv": array(d, 3 * d),
        "bias": array(heads, side**2, side**2),
        "o": array(d, d),
        "up": array(d, 2 * d),
        "down": array(2 * d, d),
    }
    params = {
        "in": array(3, 3, 3, d),
        "layers": [layer] * depth,
        "middle": array(3, 3, d, d),
        "out": array(3, 3, d, 48),
    }
    image, y = array(batch, size, size, 3), array(batch, 4 * size, 4 * size, 3)
    return optimized(loss, optax.adam(1e-3), params, image, y)


def decoded_rows() -> Target:
    """One token of each of eight sequences, with caches of 2,048, through layers of a scan."""
    batch, length, d, heads, depth, vocabulary = 8, 2048, 1024, 16, 8, 32000
    half = jnp.bfloat16

    def step(params: Any, caches: Any, token: jax.Array, place: jax.Array) -> Any:
        def layer(x: jax.Array, at: Any) -> tuple[jax.Array, Any]:
            w, keys, values = at
            h = rms_normalized(x, w["scale"])
            q, k, v = (in_heads(h @ w[name], heads) for name in ("q", "k", "v"))
            keys = jax.lax.dynamic_update_slice(keys, k[:, None], (0, place, 0, 0))
            values = jax.lax.dynamic_update_slice(values, v[:, None], (0, place, 0, 0))
            score = jnp.einsum("bhd,bshd->bhs", q, keys).astype(jnp.float32)
            seen = jnp.where(jnp.arange(length) <= place, score, -1e9)
            mixed = jnp.einsum("bhs,bshd->bhd", jax.nn.softmax(seen).astype(half), values)
            x = x + mixed.reshape(x.shape) @ w["o"]
            return x + jax.nn.silu(x @ w["up"]) @ w["down"], (keys, values)

        x, caches = jax.lax.scan(layer, params["embedding"][token], (params["layers"], *caches))
        return (x @ params["embedding"].T).argmax(-1), caches, place + 1

    def stacked(*shape: int) -> jax.ShapeDtypeStruct:
        return array(depth, *shape, dtype=half)

    layers = {name: stacked(d, d) for name in ("q", "k", "v", "o")}
    layers |= {"scale": stacked(d), "up": stacked(d, 4 * d), "down": stacked(4 * d, d)}
    params = {"embedding": array(vocabulary, d, dtype=half), "layers": layers}
    caches = (stacked(batch, length, heads, d // heads),) * 2
    return step, (params, caches, indices(batch), indices())


ATTENDING: Final = (
    blocks_and_grids,
    decoded_rows,
    delta_rule,
    dense_graph_attention,
    evoformer_rows,
    fast_weights,
    samples_and_features,
    super_resolution,
    video_attention,
)
