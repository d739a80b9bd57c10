"""Steps of `scripts.unseen_steps` from science: graphs, fields, molecules, transport, tables."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from scripts.memory_targets import Target, array, trained
from scripts.unseen_targets import (
    in_heads,
    indices,
    mean_square,
    optimized,
    random_key,
    standardized,
)


def sinkhorn() -> Target:
    """Optimal transport between learnt embeddings, by twenty iterations that are not derived."""
    points, d, hidden, epsilon = 2048, 64, 256, 0.1

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        a, b = (jnp.tanh(z @ params["a"]) @ params["b"] for z in (x, y))
        cost = jnp.sum((a[:, None] - b[None]) ** 2, -1) / hidden

        def iteration(_: int, potentials: Any) -> Any:
            f, g = potentials
            f = -epsilon * jax.nn.logsumexp((g[None] - cost) / epsilon - np.log(points), axis=1)
            g = -epsilon * jax.nn.logsumexp((f[:, None] - cost) / epsilon - np.log(points), axis=0)
            return f, g

        start = (jnp.zeros(points), jnp.zeros(points))
        f, g = jax.lax.fori_loop(0, 20, iteration, start)
        carried = jnp.exp((f[:, None] + g[None] - cost) / epsilon) / points / points
        return (jax.lax.stop_gradient(carried) * cost).sum()

    params = {"a": array(d, hidden), "b": array(hidden, hidden)}
    return trained(loss, params, array(points, d), array(points, d))


def gaussian_process() -> Target:
    """Parameters of a Gaussian process, by the factor of a kernel of 1024 points."""
    points, d = 1024, 16

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        z = x * jnp.exp(params["scale"])
        square = (z**2).sum(-1)
        distance = square[:, None] + square[None] - 2 * z @ z.T
        noise = (jnp.exp(params["noise"]) + 1e-3) * jnp.eye(points)
        factor = jnp.linalg.cholesky(jnp.exp(params["size"]) * jnp.exp(-0.5 * distance) + noise)
        solved = jax.scipy.linalg.cho_solve((factor, True), y)
        return 0.5 * y @ solved + jnp.log(jnp.diagonal(factor)).sum()

    params = {"scale": array(d), "size": array(), "noise": array()}
    return trained(loss, params, array(points, d), array(points))


def graph_attention() -> Target:
    """Messages over 65,536 edges, weighed by a softmax over the edges of each target."""
    nodes, edges, d, depth = 16384, 65536, 128, 4

    def loss(params: Any, x: jax.Array, source: Any, target: Any, y: jax.Array) -> jax.Array:
        def layer(h: jax.Array, w: Any) -> tuple[jax.Array, None]:
            message = jnp.concatenate([h[source], h[target]], -1) @ w["message"]
            score = jax.nn.leaky_relu(message @ w["score"])[:, 0]
            greatest = jax.ops.segment_max(score, target, nodes)
            share = jnp.exp(score - greatest[target])
            share = share / (jax.ops.segment_sum(share, target, nodes)[target] + 1e-9)
            summed = jax.ops.segment_sum(message * share[:, None], target, nodes)
            return jax.nn.relu(h + summed @ w["out"]), None

        return mean_square(jax.lax.scan(layer, x, params)[0], y)

    params = {
        "message": array(depth, 2 * d, d),
        "score": array(depth, d, 1),
        "out": array(depth, d, d),
    }
    x, ends = array(nodes, d), indices(edges)
    return trained(loss, params, x, ends, ends, x)


def edge_means() -> Target:
    """Means of messages over 131,072 edges, joined with what each node is."""
    nodes, edges, d = 16384, 131072, 256

    def loss(params: Any, x: jax.Array, source: Any, target: Any, y: jax.Array) -> jax.Array:
        for w in params:
            message = jax.nn.relu(jnp.concatenate([x[source], x[target]], -1) @ w["message"])
            summed = jax.ops.segment_sum(message, target, nodes)
            count = jax.ops.segment_sum(jnp.ones(edges), target, nodes)
            mean = summed / jnp.maximum(count, 1)[:, None]
            x = x + jax.nn.relu(jnp.concatenate([x, mean], -1) @ w["update"])
        return optax.sigmoid_binary_cross_entropy(x.mean(-1), y).mean()

    params = [{"message": array(2 * d, d), "update": array(2 * d, d)}] * 4
    ends = indices(edges)
    return trained(loss, params, array(nodes, d), ends, ends, array(nodes))


def fourier_operator() -> Target:
    """A Fourier neural operator: weights on the lowest frequencies of fields."""
    batch, side, d, modes, depth = 32, 128, 64, 16, 4

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        h = x @ params["in"]
        for w, real, imaginary in zip(params["w"], params["real"], params["imaginary"]):
            spectrum = jnp.fft.rfft2(h, axes=(1, 2))
            weights, low = jax.lax.complex(real, imaginary), spectrum[:, :modes, :modes]
            low = jnp.einsum("bxyc,xycd->bxyd", low, weights)
            spectrum = jnp.zeros_like(spectrum).at[:, :modes, :modes].set(low)
            field = jnp.fft.irfft2(spectrum, s=(side, side), axes=(1, 2))
            h = jax.nn.gelu(field + h @ w)
        return mean_square(h @ params["out"], y)

    params = {
        "in": array(3, d),
        "out": array(d, 1),
        "w": [array(d, d)] * depth,
        "real": [array(modes, modes, d, d)] * depth,
        "imaginary": [array(modes, modes, d, d)] * depth,
    }
    return trained(loss, params, array(batch, side, side, 3), array(batch, side, side, 1))


def triangle_updates() -> Target:
    """Pairs of residues: products over the third corner, and attention along one axis."""
    batch, residues, d, heads = 8, 192, 128, 4

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        for w in params:
            h = standardized(x)
            a = jax.nn.sigmoid(h @ w["a_gate"]) * (h @ w["a"])
            b = jax.nn.sigmoid(h @ w["b_gate"]) * (h @ w["b"])
            product = standardized(jnp.einsum("zikc,zjkc->zijc", a, b)) @ w["out"]
            x = x + jax.nn.sigmoid(h @ w["out_gate"]) * product
            h = standardized(x)
            q, k, v = (in_heads(part, heads) for part in jnp.split(h @ w["qkv"], 3, -1))
            bias = jnp.einsum("zjkc,ch->zhjk", h, w["bias"])[:, None]
            share = jax.nn.softmax(jnp.einsum("zijhc,zikhc->zihjk", q, k) / 5.6 + bias, -1)
            x = x + jnp.einsum("zihjk,zikhc->zijhc", share, v).reshape(x.shape) @ w["o"]
        return mean_square(x, y)

    square = ("a_gate", "b_gate", "out_gate", "a", "b", "out", "o")
    layer = {name: array(d, d) for name in square}
    layer |= {"qkv": array(d, 3 * d), "bias": array(d, heads)}
    pairs = array(batch, residues, residues, d)
    return trained(loss, [layer, layer], pairs, pairs)


def continuous_filters() -> Target:
    """SchNet: filters made from distances between atoms; forces are gradients of energies."""
    molecules, atoms, d, basis, depth = 256, 32, 128, 64, 3

    def shifted_softplus(x: jax.Array) -> jax.Array:
        return jax.nn.softplus(x) - np.log(2.0)

    def energies(places: jax.Array, params: Any, kind: jax.Array) -> jax.Array:
        apart = places[:, :, None] - places[:, None]
        distance = jnp.sqrt((apart**2).sum(-1) + 1e-6)
        radial = jnp.exp(-10.0 * (distance[..., None] - jnp.linspace(0.0, 5.0, basis)) ** 2)
        cutoff = jnp.where(distance < 5.0, 0.5 * (jnp.cos(distance * np.pi / 5.0) + 1), 0.0)
        x = params["table"][kind]
        for w in params["layers"]:
            filters = shifted_softplus(radial @ w["f1"]) @ w["f2"] * cutoff[..., None]
            h = jnp.einsum("mijc,mjc->mic", filters, x @ w["in"])
            x = x + shifted_softplus(h @ w["a"]) @ w["b"]
        return (shifted_softplus(x @ params["a"]) @ params["b"])[..., 0].sum(-1)

    def loss(params: Any, places: Any, kind: Any, energy: jax.Array, force: jax.Array) -> jax.Array:
        def total(places: jax.Array) -> tuple[jax.Array, jax.Array]:
            each = energies(places, params, kind)
            return each.sum(), each

        slope, each = jax.grad(total, has_aux=True)(places)
        return 0.01 * mean_square(each, energy) + mean_square(-slope, force)

    layer = {name: array(d, d) for name in ("f2", "in", "a", "b")} | {"f1": array(basis, d)}
    params = {"table": array(100, d), "layers": [layer] * depth, "a": array(d, d), "b": array(d, 1)}
    places, kind = array(molecules, atoms, 3), indices(molecules, atoms)
    return optimized(loss, optax.adam(1e-4), params, places, kind, array(molecules), places)


def feature_tokens() -> Target:
    """A transformer over the features of rows of a table: numbers, and categories looked up."""
    rows, numbers, categories, values, d, depth = 4096, 48, 16, 6250, 192, 4

    def layer(x: jax.Array, each: Any) -> tuple[jax.Array, None]:
        w, key = each
        q, k, v = (in_heads(part, 8) for part in jnp.split(standardized(x) @ w["qkv"], 3, -1))
        x = x + jax.nn.dot_product_attention(q, k, v).reshape(x.shape) @ w["o"]
        h, gate = jnp.split(standardized(x) @ w["up"], 2, -1)
        h = h * jax.nn.relu(gate)
        h = jnp.where(jax.random.bernoulli(key, 0.9, h.shape), h / 0.9, 0.0)
        return x + h @ w["down"], None

    def loss(params: Any, x: jax.Array, kind: jax.Array, y: jax.Array, key: jax.Array) -> jax.Array:
        first = jnp.broadcast_to(params["first"], (rows, 1, d))
        known = x[..., None] * params["number"] + params["bias"]
        looked_up = params["table"][kind + jnp.arange(categories) * values]
        tokens = jnp.concatenate([first, known, looked_up], 1)
        keys = jax.random.split(key, depth)
        tokens, _ = jax.lax.scan(layer, tokens, (params["layers"], keys))
        logit = (jax.nn.relu(standardized(tokens[:, 0])) @ params["head"])[:, 0]
        return optax.sigmoid_binary_cross_entropy(logit, y).mean()

    shapes = {"qkv": (d, 3 * d), "o": (d, d), "up": (d, 4 * d), "down": (2 * d, d)}
    params = {
        "first": array(d),
        "number": array(numbers, d),
        "bias": array(numbers, d),
        "table": array(categories * values, d),
        "layers": {name: array(depth, *shape) for name, shape in shapes.items()},
        "head": array(d, 1),
    }
    batch = (array(rows, numbers), indices(rows, categories), array(rows), random_key())
    return optimized(loss, optax.adamw(1e-4), params, *batch)
