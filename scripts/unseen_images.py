"""Models of images, videos and scenes of `scripts.unseen_steps`."""

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
    optimized,
    standardized,
    transformer_layers,
)


def _doubled(x: jax.Array) -> jax.Array:
    """Images of twice the height and width, each pixel four times."""
    b, h, w, c = x.shape
    return jax.image.resize(x, (b, 2 * h, 2 * w, c), "nearest")


def vqvae() -> Target:
    """An autoencoder whose codes are looked up in a table that follows its averages."""
    batch, side, codes, d = 64, 32, 512, 64

    def encoded(params: Any, image: jax.Array) -> jax.Array:
        h = jax.nn.relu(convolution(image, params["in"], 2))
        return convolution(jax.nn.relu(convolution(h, params["down"], 2)), params["code"])

    def decoded(params: Any, code: jax.Array) -> jax.Array:
        h = jax.nn.relu(convolution(_doubled(code), params["up"]))
        return convolution(_doubled(h), params["out"])

    def step(params: Any, table: jax.Array, count: jax.Array, image: jax.Array) -> Any:
        def loss(params: Any) -> tuple[jax.Array, Any]:
            z = encoded(params, image)
            rows = z.reshape(-1, d)
            squares = (rows**2).sum(1, keepdims=True), (table**2).sum(1)
            nearest = (squares[0] - 2 * rows @ table.T + squares[1]).argmin(1)
            code = table[nearest].reshape(z.shape)
            y = decoded(params, z + jax.lax.stop_gradient(code - z))
            commitment = mean_square(z, jax.lax.stop_gradient(code))
            return mean_square(y, image) + 0.25 * commitment, (rows, nearest)

        (value, (rows, nearest)), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        one_hot = jax.nn.one_hot(nearest, codes)
        count = 0.99 * count + 0.01 * one_hot.sum(0)
        mean = (one_hot.T @ rows) / jnp.maximum(count, 1e-5)[:, None]
        params = jax.tree.map(lambda p, g: p - 1e-3 * g, params, gradients)
        return params, 0.99 * table + 0.01 * mean, count, value

    params = {
        "in": array(4, 4, 3, 64),
        "down": array(4, 4, 64, 64),
        "code": array(3, 3, 64, d),
        "up": array(3, 3, d, 64),
        "out": array(3, 3, 64, 3),
    }
    return step, (params, array(codes, d), array(codes), array(batch, side, side, 3))


def _group_normalized(x: jax.Array, scale: jax.Array, groups: int = 8) -> jax.Array:
    b, h, w, c = x.shape
    y = x.reshape(b, h, w, groups, c // groups)
    mean, variance = y.mean((1, 2, 4), keepdims=True), y.var((1, 2, 4), keepdims=True)
    return ((y - mean) * jax.lax.rsqrt(variance + 1e-5)).reshape(x.shape) * scale


def _unet_block(x: jax.Array, time: jax.Array, w: Any) -> jax.Array:
    h = convolution(jax.nn.silu(_group_normalized(x, w["g1"])), w["c1"])
    h = h + (jax.nn.silu(time) @ w["time"])[:, None, None]
    h = convolution(jax.nn.silu(_group_normalized(h, w["g2"])), w["c2"])
    return h + convolution(x, w["skip"])


def _unet_params(widths: tuple[int, ...]) -> Any:
    def block(i: int, o: int) -> Any:
        return {
            "c1": array(3, 3, i, o),
            "c2": array(3, 3, o, o),
            "time": array(256, o),
            "skip": array(1, 1, i, o),
            "g1": array(i),
            "g2": array(o),
        }

    first, back = widths[0], widths[::-1]
    return {
        "in": array(3, 3, 3, first),
        "out": array(3, 3, first, 3),
        "time": array(128, 256),
        "down": [block(i, o) for i, o in zip((first, *widths), widths)],
        "up": [block(2 * i, o) for i, o in zip(back, (*back[1:], first))],
    }


def diffusion_unet() -> Target:
    """A U-Net that predicts noise, with group normalization and embeddings of time."""

    def predicted(params: Any, x: jax.Array, time: jax.Array) -> jax.Array:
        angle = time[:, None] * jnp.exp(-jnp.arange(64) / 8.0)
        time = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1) @ params["time"]
        x, skips = convolution(x, params["in"]), []
        for level, w in enumerate(params["down"]):
            x = _unet_block(x, time, w)
            skips.append(x)
            if level < len(params["down"]) - 1:
                window = (1, 2, 2, 1)
                x = jax.lax.reduce_window(x, 0.0, jax.lax.add, window, window, "VALID") / 4
        for level, w in enumerate(params["up"]):
            x = _unet_block(jnp.concatenate([x, skips.pop()], -1), time, w)
            x = _doubled(x) if level < len(params["up"]) - 1 else x
        return convolution(x, params["out"])

    def loss(params: Any, x: jax.Array, noise: jax.Array, time: jax.Array) -> jax.Array:
        noisy = x + time[:, None, None, None] * noise
        return mean_square(predicted(params, noisy, time), noise)

    image, params = array(64, 32, 32, 3), _unet_params((64, 128, 256))
    return optimized(loss, optax.adam(1e-4), params, image, image, array(64))


def video_classifier() -> Target:
    """Convolutions of volumes with batch normalization, whose averages are kept."""
    widths = (3, 32, 64, 128, 256)
    numbers, window = ("NDHWC", "DHWIO", "NDHWC"), (1, 2, 2, 2, 1)

    def step(params: Any, averages: Any, video: jax.Array, label: jax.Array) -> Any:
        def loss(params: Any) -> tuple[jax.Array, Any]:
            h, kept = video, []
            for w, (old_mean, old_variance) in zip(params["layers"], averages):
                h = jax.lax.conv_general_dilated(
                    h, w["w"], (1, 1, 1), "SAME", dimension_numbers=numbers
                )
                mean, variance = h.mean((0, 1, 2, 3)), h.var((0, 1, 2, 3))
                kept.append((0.9 * old_mean + 0.1 * mean, 0.9 * old_variance + 0.1 * variance))
                h = (h - mean) * jax.lax.rsqrt(variance + 1e-5) * w["scale"] + w["bias"]
                h = jax.nn.relu(h)
                h = jax.lax.reduce_window(h, -jnp.inf, jax.lax.max, window, window, "VALID")
            logits = h.mean((1, 2, 3)) @ params["head"]
            cross_entropy = optax.softmax_cross_entropy_with_integer_labels
            return cross_entropy(logits, label).mean(), kept

        (value, kept), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        return jax.tree.map(lambda p, g: p - 1e-2 * g, params, gradients), kept, value

    layers = [
        {"w": array(3, 3, 3, i, o), "scale": array(o), "bias": array(o)}
        for i, o in zip(widths, widths[1:])
    ]
    params = {"layers": layers, "head": array(256, 400)}
    averages = [(array(o), array(o)) for o in widths[1:]]
    return step, (params, averages, array(32, 16, 64, 64, 3), indices(32))


def contrastive_towers() -> Target:
    """CLIP: towers of images and texts, and the softmax of all pairs of a batch."""
    batch, d, depth, vocabulary, length, patches = 512, 512, 4, 8192, 64, 64

    def tower(x: jax.Array, layers: Any, *, is_causal: bool) -> jax.Array:
        def layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
            q, k, v = jnp.split(standardized(x) * w["scale"][0] @ w["qkv"], 3, -1)
            q, k, v = (in_heads(part, 8) for part in (q, k, v))
            attended = jax.nn.dot_product_attention(q, k, v, is_causal=is_causal)
            x = x + attended.reshape(x.shape) @ w["o"]
            return x + jax.nn.gelu(standardized(x) * w["scale"][1] @ w["up"]) @ w["down"], None

        return jax.lax.scan(layer, x, layers)[0]

    def loss(params: Any, image: jax.Array, text: jax.Array) -> jax.Array:
        x = image @ params["patches"] + params["places"]
        x = tower(x, params["images"], is_causal=False).mean(1) @ params["image_head"]
        y = tower(params["table"][text], params["texts"], is_causal=True)
        y = y[:, -1] @ params["text_head"]
        x, y = (z / jnp.linalg.norm(z, axis=-1, keepdims=True) for z in (x, y))
        score, label = jnp.exp(params["scale"]) * x @ y.T, jnp.arange(batch)
        cross_entropy = optax.softmax_cross_entropy_with_integer_labels
        return (cross_entropy(score, label) + cross_entropy(score.T, label)).mean() / 2

    layers = transformer_layers(depth, d)
    params = {
        "table": array(vocabulary, d),
        "places": array(patches, d),
        "patches": array(768, d),
        "texts": layers,
        "images": layers,
        "text_head": array(d, d),
        "image_head": array(d, d),
        "scale": array(),
    }
    text = indices(batch, length)
    return optimized(loss, optax.adamw(1e-4), params, array(batch, patches, 768), text)


def perceiver() -> Target:
    """Latents that attend to 8192 inputs once, then to each other; bfloat16 copies, Adafactor."""
    batch, inputs, latents, d, depth = 16, 8192, 256, 512, 6

    def attended(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        heads = (in_heads(part, 8) for part in (q, k, v))
        return jax.nn.dot_product_attention(*heads).reshape(q.shape)

    def layer(h: jax.Array, w: Any) -> tuple[jax.Array, None]:
        h = h + attended(*jnp.split(h @ w["qkv"], 3, -1)) @ w["o"]
        return h + jax.nn.gelu(h @ w["up"]) @ w["down"], None

    saving = jax.checkpoint(layer, policy=jax.checkpoint_policies.dots_saveable)

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        p = jax.tree.map(lambda w: w.astype(jnp.bfloat16), params)
        z = x.astype(jnp.bfloat16) @ p["in"]
        h = jnp.broadcast_to(p["latents"], (batch, latents, d))
        k, v = jnp.split(z @ p["cross"]["kv"], 2, -1)
        h = h + attended(h @ p["cross"]["q"], k, v) @ p["cross"]["o"]
        h, _ = jax.lax.scan(saving, h, p["layers"])
        return mean_square(h.mean(1).astype(jnp.float32), y)

    params = {
        "in": array(64, d),
        "latents": array(latents, d),
        "cross": {"q": array(d, d), "kv": array(d, 2 * d), "o": array(d, d)},
        "layers": {
            "qkv": array(depth, d, 3 * d),
            "o": array(depth, d, d),
            "up": array(depth, d, 4 * d),
            "down": array(depth, 4 * d, d),
        },
    }
    return optimized(loss, optax.adafactor(1e-3), params, array(batch, inputs, 64), array(batch, d))


def nerf() -> Target:
    """Colours of rays: encoded points, dense layers, and what of each sample is seen."""
    rays, samples, d = 4096, 64, 256

    def loss(params: Any, origin: jax.Array, direction: jax.Array, colour: jax.Array) -> jax.Array:
        depth = jnp.linspace(2.0, 6.0, samples)
        x = origin[:, None] + direction[:, None] * depth[None, :, None]
        angle = (x[..., None] * 2.0 ** jnp.arange(10)).reshape(*x.shape[:2], -1)
        encoded = jnp.concatenate([x, jnp.sin(angle), jnp.cos(angle)], -1)
        h = encoded
        for level, w in enumerate(params["layers"]):
            h = jnp.concatenate([h, encoded], -1) if level == 4 else h
            h = jax.nn.relu(h @ w)
        out = h @ params["out"]
        density, seen = jax.nn.relu(out[..., 3]), jax.nn.sigmoid(out[..., :3])
        opacity = 1 - jnp.exp(-density * (4.0 / samples))
        passed = jnp.concatenate([jnp.ones((rays, 1)), 1 - opacity + 1e-10], -1)
        share = jnp.cumprod(passed, -1)[:, :-1] * opacity
        return mean_square((share[..., None] * seen).sum(1), colour)

    widths = [(63, d), *[(d, d)] * 3, (d + 63, d), *[(d, d)] * 3]
    params = {"layers": [array(*shape) for shape in widths], "out": array(d, 4)}
    return trained(loss, params, array(rays, 3), array(rays, 3), array(rays, 3))


def penalized_gan() -> Target:
    """A generator and its critic with a penalty on gradients, each with an optimizer."""
    optimizer = optax.adam(1e-4)

    def generated(params: Any, z: jax.Array) -> jax.Array:
        h = jax.nn.relu(z @ params["in"]).reshape(-1, 4, 4, 256)
        for level, w in enumerate(params["up"]):
            h = jax.lax.conv_transpose(h, w, (2, 2), "SAME")
            h = jax.nn.relu(h) if level < 2 else jnp.tanh(h)
        return h

    def judged(params: Any, x: jax.Array) -> jax.Array:
        for w in params["down"]:
            x = jax.nn.leaky_relu(convolution(x, w, 2), 0.2)
        return (x.reshape(x.shape[0], -1) @ params["out"])[:, 0]

    def critic_loss(critic: Any, maker: Any, x: jax.Array, z: jax.Array, a: jax.Array) -> jax.Array:
        made = generated(maker, z)
        mixed = a[:, None, None, None] * x + (1 - a[:, None, None, None]) * made
        slope = jax.vmap(jax.grad(lambda image: judged(critic, image[None])[0]))(mixed)
        penalty = ((jnp.sqrt((slope**2).sum((1, 2, 3)) + 1e-12) - 1) ** 2).mean()
        return judged(critic, made).mean() - judged(critic, x).mean() + 10 * penalty

    def step(maker: Any, critic: Any, m: Any, c: Any, x: Any, z: Any, a: Any) -> Any:
        critic_value, gradients = jax.value_and_grad(critic_loss)(critic, maker, x, z, a)
        updates, c = optimizer.update(gradients, c)
        critic = optax.apply_updates(critic, updates)
        value, gradients = jax.value_and_grad(lambda p: -judged(critic, generated(p, z)).mean())(
            maker
        )
        updates, m = optimizer.update(gradients, m)
        return optax.apply_updates(maker, updates), critic, m, c, critic_value, value

    up = [array(4, 4, 256, 128), array(4, 4, 128, 64), array(4, 4, 64, 3)]
    down = [array(4, 4, 3, 64), array(4, 4, 64, 128), array(4, 4, 128, 256)]
    maker = {"in": array(128, 4 * 4 * 256), "up": up}
    critic = {"down": down, "out": array(4 * 4 * 256, 1)}
    states = (jax.eval_shape(optimizer.init, params) for params in (maker, critic))
    return step, (maker, critic, *states, array(256, 32, 32, 3), array(256, 128), array(256))
