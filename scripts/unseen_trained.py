"""Steps of `scripts.unseen_later` that train networks of common kinds."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from scripts.memory_targets import Target, array, trained
from scripts.unseen_targets import (
    convolution,
    in_heads,
    indices,
    mean_square,
    next_token_loss,
    optimized,
    random_key,
    rms_normalized,
    standardized,
)


def axial_attention() -> Target:
    """Attention along the rows and then the columns of images, with biases of distance."""
    batch, side, d, heads, depth = 16, 32, 256, 8, 4

    def attended(x: jax.Array, w: Any, bias: jax.Array) -> jax.Array:
        q, k, v = (in_heads(z, heads) for z in jnp.split(standardized(x) @ w["qkv"], 3, -1))
        scores = jnp.einsum("brqhc,brkhc->brhqk", q, k) * (d // heads) ** -0.5 + bias
        mixed = jnp.einsum("brhqk,brkhc->brqhc", jax.nn.softmax(scores), v)
        return x + mixed.reshape(x.shape) @ w["o"]

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        place = jnp.arange(side)
        distance = place[:, None] - place[None] + side - 1

        def layer(h: jax.Array, w: Any) -> tuple[jax.Array, None]:
            h = attended(h, w["row"], w["row"]["bias"][:, distance])
            h = attended(h.swapaxes(1, 2), w["column"], w["column"]["bias"][:, distance])
            h = h.swapaxes(1, 2)
            return h + jax.nn.gelu(standardized(h) @ w["up"]) @ w["down"], None

        return mean_square(jax.lax.scan(layer, x, params)[0], y)

    one = {
        "qkv": array(depth, d, 3 * d),
        "o": array(depth, d, d),
        "bias": array(depth, heads, 2 * side - 1),
    }
    params = {
        "row": one,
        "column": one,
        "up": array(depth, d, 4 * d),
        "down": array(depth, 4 * d, d),
    }
    x = array(batch, side, side, d)
    return optimized(loss, optax.adamw(1e-3), params, x, x)


def both_directions() -> Target:
    """Tags of words by two layers of gated recurrent units in both directions."""
    batch, length, d, vocabulary, tags = 128, 128, 512, 8192, 64

    def loss(params: Any, words: jax.Array, y: jax.Array) -> jax.Array:
        x = params["embedding"][words].swapaxes(0, 1)
        for w in params["layers"]:

            def unit(w: Any, h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
                update, reset = jnp.split(jax.nn.sigmoid(x[..., : 2 * d] + h @ w["g"]), 2, -1)
                new = jnp.tanh(x[..., 2 * d :] + (reset * h) @ w["n"])
                h = update * h + (1 - update) * new
                return h, h

            outputs = []
            for direction in ("forward", "backward"):
                v, start = w[direction], jnp.zeros((batch, d))
                run, reverse = partial(unit, v), direction == "backward"
                outputs.append(jax.lax.scan(run, start, x @ v["x"], reverse=reverse)[1])
            x = jnp.concatenate(outputs, -1)
        logits = (x @ params["out"]).swapaxes(0, 1)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def layer(width: int) -> Any:
        one = {"x": array(width, 3 * d), "g": array(d, 2 * d), "n": array(d, d)}
        return {"forward": one, "backward": one}

    params = {
        "embedding": array(vocabulary, d),
        "layers": [layer(d), layer(2 * d)],
        "out": array(2 * d, tags),
    }
    words = indices(batch, length)
    return optimized(loss, optax.adam(1e-3), params, words, words)


def gated_linear_attention() -> Target:
    """A decoder whose attention is a matrix of state that decays by a gate of each key."""
    batch, length, d, heads, depth, vocabulary = 32, 512, 512, 8, 4, 8192

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        h = params["embedding"][tokens]

        def layer(h: jax.Array, w: Any) -> tuple[jax.Array, None]:
            x = standardized(h)
            q, k, v, g = (in_heads(z, heads) for z in jnp.split(x @ w["qkvg"], 4, -1))
            decay = jax.nn.sigmoid(g)

            def token(state: jax.Array, at: Any) -> tuple[jax.Array, jax.Array]:
                q, k, v, decay = at
                state = state * decay[..., None] + k[..., None] * v[..., None, :]
                return state, jnp.einsum("bhk,bhkv->bhv", q, state)

            start = jnp.zeros((batch, heads, d // heads, d // heads))
            along = tuple(z.swapaxes(0, 1) for z in (q, k, v, decay))
            mixed = jax.lax.scan(token, start, along)[1].swapaxes(0, 1)
            h = h + standardized(mixed).reshape(h.shape) @ w["o"]
            return h + jax.nn.silu(standardized(h) @ w["up"]) @ w["down"], None

        h = jax.lax.scan(layer, h, params["layers"])[0]
        return next_token_loss(h @ params["embedding"].T, tokens)

    layers = {
        "qkvg": array(depth, d, 4 * d),
        "o": array(depth, d, d),
        "up": array(depth, d, 4 * d),
        "down": array(depth, 4 * d, d),
    }
    params = {"embedding": array(vocabulary, d), "layers": layers}
    return trained(loss, params, indices(batch, length))


def inverted_bottlenecks() -> Target:
    """Convolutions channel by channel between wide ones, with squeezed gates and batch norms."""
    batch, side, d, depth, classes = 128, 56, 64, 4, 1000

    def normalized(x: jax.Array, scale: jax.Array) -> jax.Array:
        mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
        return (x - mean) * jax.lax.rsqrt(variance + 1e-3) * scale

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        h = convolution(x, params["in"], 2)
        for w in params["blocks"]:
            wide = jax.nn.silu(normalized(h @ w["up"], w["scale"]))
            wide = jax.nn.silu(convolution(wide, w["each"], groups=4 * d))
            squeezed = jax.nn.silu(wide.mean((1, 2)) @ w["squeeze"])
            wide = wide * jax.nn.sigmoid(squeezed @ w["gate"])[:, None, None]
            h = h + wide @ w["down"]
        logits = h.mean((1, 2)) @ params["out"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    block = {
        "up": array(d, 4 * d),
        "scale": array(4 * d),
        "each": array(3, 3, 1, 4 * d),
        "squeeze": array(4 * d, 16),
        "gate": array(16, 4 * d),
        "down": array(4 * d, d),
    }
    params = {"in": array(3, 3, 3, d), "blocks": [block] * depth, "out": array(d, classes)}
    images = array(batch, 2 * side, 2 * side, 3)
    return optimized(loss, optax.sgd(0.1, 0.9), params, images, indices(batch))


def masked_patches() -> Target:
    """Patches that are left out, reconstructed from a quarter that is chosen by lot."""
    batch, patches, kept, pixels, d, heads, depth = 64, 256, 64, 192, 512, 8, 4

    def attended(x: jax.Array, w: Any) -> jax.Array:
        q, k, v = (in_heads(z, heads) for z in jnp.split(standardized(x) @ w["qkv"], 3, -1))
        scores = jnp.einsum("bqhc,bkhc->bhqk", q, k) * (d // heads) ** -0.5
        mixed = jnp.einsum("bhqk,bkhc->bqhc", jax.nn.softmax(scores), v)
        x = x + mixed.reshape(x.shape) @ w["o"]
        return x + jax.nn.gelu(standardized(x) @ w["up"]) @ w["down"]

    def loss(params: Any, x: jax.Array, key: jax.Array) -> jax.Array:
        order = jnp.argsort(jax.random.uniform(key, (batch, patches)), axis=1)
        back = jnp.argsort(order, axis=1)
        h = x @ params["in"] + params["place"]
        h = jnp.take_along_axis(h, order[:, :kept, None], axis=1)
        for w in params["encoder"]:
            h = attended(h, w)
        blank = jnp.broadcast_to(params["blank"], (batch, patches - kept, d))
        h = jnp.take_along_axis(jnp.concatenate([h, blank], 1), back[..., None], axis=1)
        h = h + params["place"]
        for w in params["decoder"]:
            h = attended(h, w)
        hidden = (back >= kept).astype(x.dtype)
        return ((((h @ params["out"]) - x) ** 2).mean(-1) * hidden).sum() / hidden.sum()

    layer = {
        "qkv": array(d, 3 * d),
        "o": array(d, d),
        "up": array(d, 4 * d),
        "down": array(4 * d, d),
    }
    params = {
        "in": array(pixels, d),
        "place": array(patches, d),
        "blank": array(d),
        "encoder": [layer] * depth,
        "decoder": [layer] * 2,
        "out": array(d, pixels),
    }
    return optimized(loss, optax.adamw(1e-3), params, array(batch, patches, pixels), random_key())


def diffusion_transformer() -> Target:
    """Noise of latent images by a transformer whose norms are shifted by the time, in bfloat16."""
    batch, tokens, latent, d, heads, depth = 64, 256, 16, 768, 12, 4

    def loss(params: Any, x: jax.Array, label: jax.Array, key: jax.Array) -> jax.Array:
        params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
        when, lot = jax.random.split(key)
        t = jax.random.uniform(when, (batch,))
        noise = jax.random.normal(lot, x.shape)
        mixed = x * (1 - t)[:, None, None] + noise * t[:, None, None]
        waves = t[:, None] * jnp.exp(-jnp.arange(128) * 0.05) * 1000
        waves = jnp.concatenate([jnp.sin(waves), jnp.cos(waves)], -1).astype(jnp.bfloat16)
        condition = jax.nn.silu(waves @ params["time"]) + params["label"][label]
        h = mixed.astype(jnp.bfloat16) @ params["in"] + params["place"]

        def layer(h: jax.Array, w: Any) -> tuple[jax.Array, None]:
            shifts = (jax.nn.silu(condition) @ w["shift"])[:, None]
            a, b, c, e, f, g = jnp.split(shifts, 6, -1)
            z = standardized(h) * (1 + a) + b
            q, k, v = (in_heads(y, heads) for y in jnp.split(z @ w["qkv"], 3, -1))
            scores = jnp.einsum("bqhc,bkhc->bhqk", q, k) * (d // heads) ** -0.5
            share = jax.nn.softmax(scores.astype(jnp.float32)).astype(h.dtype)
            h = h + c * (jnp.einsum("bhqk,bkhc->bqhc", share, v).reshape(h.shape) @ w["o"])
            z = standardized(h) * (1 + e) + f
            return h + g * (jax.nn.gelu(z @ w["up"]) @ w["down"]), None

        h = jax.lax.scan(layer, h, params["layers"])[0]
        return mean_square((standardized(h) @ params["out"]).astype(jnp.float32), noise - x)

    layers = {
        "shift": array(depth, d, 6 * d),
        "qkv": array(depth, d, 3 * d),
        "o": array(depth, d, d),
        "up": array(depth, d, 4 * d),
        "down": array(depth, 4 * d, d),
    }
    params = {
        "time": array(256, d),
        "label": array(1000, d),
        "in": array(latent, d),
        "place": array(tokens, d),
        "layers": layers,
        "out": array(d, latent),
    }
    batch_ = (array(batch, tokens, latent), indices(batch), random_key())
    return optimized(loss, optax.adamw(1e-4), params, *batch_)


def off_policy_actor() -> Target:
    """A recurrent actor of pixels with V-trace: a convolution, a loop of time and its reverse."""
    time, batch, side, d, actions = 20, 64, 42, 256, 18

    def loss(params: Any, frames: jax.Array, acted: jax.Array, behaved: Any, rewards: Any) -> Any:
        h = frames.reshape(time * batch, side, side, 4).astype(jnp.float32) / 255.0
        for w in params["convolutions"]:
            h = jax.nn.relu(convolution(h, w, 2))
        h = jax.nn.relu(h.reshape(time, batch, -1) @ params["flat"])

        def unit(carry: Any, x: jax.Array) -> tuple[Any, jax.Array]:
            hidden, cell = carry
            gates = jnp.split(x @ params["x"] + hidden @ params["h"], 4, -1)
            i, f, o = (jax.nn.sigmoid(z) for z in gates[:3])
            cell = f * cell + i * jnp.tanh(gates[3])
            hidden = o * jnp.tanh(cell)
            return (hidden, cell), hidden

        zeros = jnp.zeros((batch, d))
        h = jax.lax.scan(unit, (zeros, zeros), h)[1]
        value = (h @ params["value"])[..., 0]
        log = jax.nn.log_softmax(h @ params["policy"])
        chosen = jnp.take_along_axis(log, acted[..., None], -1)[..., 0]
        ratio = jax.lax.stop_gradient(jnp.minimum(jnp.exp(chosen - behaved), 1.0))
        fixed = jax.lax.stop_gradient(value)
        after = jnp.concatenate([fixed[1:], fixed[-1:]])
        delta = ratio * (rewards + 0.99 * after - fixed)

        def back(carry: jax.Array, at: Any) -> tuple[jax.Array, jax.Array]:
            delta, ratio = at
            carry = delta + 0.99 * ratio * carry
            return carry, carry

        summed = jax.lax.scan(back, jnp.zeros(batch), (delta, ratio), reverse=True)[1]
        advantage = delta + 0.99 * ratio * jnp.concatenate([summed[1:], summed[-1:] * 0])
        entropy = -(jnp.exp(log) * log).sum(-1).mean()
        fit = ((value - fixed - summed) ** 2).mean()
        return -(chosen * advantage).mean() + 0.5 * fit - 0.01 * entropy

    params = {
        "convolutions": [array(4, 4, 4, 32), array(4, 4, 32, 64), array(3, 3, 64, 64)],
        "flat": array(6 * 6 * 64, d),
        "x": array(d, 4 * d),
        "h": array(d, 4 * d),
        "value": array(d, 1),
        "policy": array(d, actions),
    }
    frames = array(time, batch, side, side, 4, dtype=jnp.uint8)
    rest = (indices(time, batch), array(time, batch), array(time, batch))
    return optimized(loss, optax.rmsprop(1e-3), params, frames, *rest)


def grouped_queries() -> Target:
    """A decoder in bfloat16: rotated queries that share keys in fours, gates, accumulated loss."""
    batch, length, d, heads, groups, depth, vocabulary = 16, 1024, 1024, 16, 4, 4, 16384
    width = d // heads

    def rotated(x: jax.Array) -> jax.Array:
        angle = jnp.arange(length)[:, None] * 10000.0 ** (-jnp.arange(width // 2) / (width // 2))
        cos, sin = (f(angle)[:, None].astype(x.dtype) for f in (jnp.cos, jnp.sin))
        a, b = jnp.split(x, 2, -1)
        return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
        mask = jnp.tril(jnp.ones((length, length), bool))

        @jax.checkpoint
        def layer(h: jax.Array, w: Any) -> tuple[jax.Array, None]:
            x = rms_normalized(h, w["scale"][0])
            q = rotated(in_heads(x @ w["q"], heads)).reshape(batch, length, groups, -1, width)
            k, v = rotated(in_heads(x @ w["k"], groups)), in_heads(x @ w["v"], groups)
            scores = jnp.einsum("bqgnc,bkgc->bgnqk", q, k).astype(jnp.float32) * width**-0.5
            share = jax.nn.softmax(jnp.where(mask, scores, -1e9)).astype(h.dtype)
            h = h + jnp.einsum("bgnqk,bkgc->bqgnc", share, v).reshape(h.shape) @ w["o"]
            x = rms_normalized(h, w["scale"][1])
            return h + (jax.nn.silu(x @ w["gate"]) * (x @ w["up"])) @ w["down"], None

        h = jax.lax.scan(layer, params["embedding"][tokens], params["layers"])[0]
        logits = rms_normalized(h, params["scale"]) @ params["embedding"].T
        return next_token_loss(logits.astype(jnp.float32), tokens)

    layers = {
        "scale": array(depth, 2, d),
        "q": array(depth, d, d),
        "k": array(depth, d, groups * width),
        "v": array(depth, d, groups * width),
        "o": array(depth, d, d),
        "gate": array(depth, d, 3 * d),
        "up": array(depth, d, 3 * d),
        "down": array(depth, 3 * d, d),
    }
    params = {"embedding": array(vocabulary, d), "scale": array(d), "layers": layers}
    return optimized(loss, optax.adamw(3e-4), params, indices(batch, length))


def aligned_letters() -> Target:
    """Letters of sounds whose alignment is not known: gated convolutions and the CTC loss."""
    batch, length, d, letters, most = 64, 512, 256, 32, 64

    def loss(params: Any, x: jax.Array, pads: jax.Array, labels: jax.Array, label_pads: Any) -> Any:
        h = x @ params["in"]
        for w in params["layers"]:
            wide = jax.lax.conv_general_dilated(
                standardized(h), w, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
            )
            a, b = jnp.split(wide, 2, -1)
            h = h + a * jax.nn.sigmoid(b)
        logits = h @ params["out"]
        return optax.ctc_loss(logits, pads, labels, label_pads).mean()

    params = {
        "in": array(80, d),
        "layers": [array(5, d, 2 * d)] * 4,
        "out": array(d, letters),
    }
    sounds = (array(batch, length, 80), array(batch, length))
    return optimized(
        loss, optax.adam(1e-3), params, *sounds, indices(batch, most), array(batch, most)
    )
