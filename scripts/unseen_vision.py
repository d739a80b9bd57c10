"""More models of images of `scripts.unseen_steps`: depthwise convolutions, windows, contrast with
a queue, and splats.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from scripts.memory_targets import Target, array
from scripts.unseen_targets import convolution, in_heads, indices, optimized, standardized


def depthwise_network() -> Target:
    """ConvNeXt: filters of 7 x 7 for each channel by itself, then dense layers of channels."""
    widths, depths = (96, 192, 384, 768), (2, 2, 4, 2)

    def block(x: jax.Array, w: Any) -> jax.Array:
        d = x.shape[-1]
        h = standardized(convolution(x, w["depthwise"], groups=d)) * w["scale"] + w["bias"]
        return x + jax.nn.gelu(h @ w["up"]) @ w["down"] * w["layer_scale"]

    def loss(params: Any, image: jax.Array, label: jax.Array) -> jax.Array:
        x = image
        for stage in params["stages"]:
            side = stage["reduce"].shape[0]
            x = x if side == 4 else standardized(x)
            x = convolution(x, stage["reduce"], side)
            for w in stage["blocks"]:
                x = block(x, w)
        logits = standardized(x.mean((1, 2))) @ params["head"]
        cross_entropy = optax.softmax_cross_entropy_with_integer_labels
        return cross_entropy(logits, label).mean()

    def block_params(d: int) -> Any:
        vectors = {name: array(d) for name in ("scale", "bias", "layer_scale")}
        dense = {"up": array(d, 4 * d), "down": array(4 * d, d)}
        return {"depthwise": array(7, 7, 1, d), **dense, **vectors}

    stages = [
        {
            "reduce": array(4, 4, 3, o) if i == 3 else array(2, 2, i, o),
            "blocks": [block_params(o)] * depth,
        }
        for i, o, depth in zip((3, *widths), widths, depths)
    ]
    params = {"stages": stages, "head": array(widths[-1], 1000)}
    return optimized(loss, optax.adamw(1e-3), params, array(256, 128, 128, 3), indices(256))


def _window_bias(table: jax.Array, side: int) -> jax.Array:
    """What attention adds between the places of a window: a number for each offset and head."""
    places = np.stack(np.meshgrid(np.arange(side), np.arange(side), indexing="ij"), -1)
    places = places.reshape(-1, 2)
    offset = places[:, None] - places[None] + side - 1
    return table[offset[..., 0] * (2 * side - 1) + offset[..., 1]].transpose(2, 0, 1)


def _window_mask(size: int, side: int, shift: int) -> np.ndarray:
    """Which places of a window were neighbours before the image was rolled."""
    part = np.zeros(size, int)
    part[size - side : size - shift], part[size - shift :] = 1, 2
    regions = part[:, None] * 3 + part[None]
    regions = regions.reshape(size // side, side, size // side, side).swapaxes(1, 2)
    regions = regions.reshape(-1, side * side)
    return regions[:, :, None] == regions[:, None]


def shifted_windows() -> Target:
    """Swin: attention in windows of 7 x 7, which every other layer shifts, in bfloat16."""
    side, half = 7, jnp.bfloat16

    def attended(x: jax.Array, w: Any, heads: int, shift: int) -> jax.Array:
        b, size, _, d = x.shape
        count = size // side
        h = jnp.roll(x, (-shift, -shift), (1, 2)) if shift else x
        h = h.reshape(b, count, side, count, side, d).swapaxes(2, 3)
        h = h.reshape(b, count * count, side * side, d)
        q, k, v = (in_heads(part, heads) for part in jnp.split(h @ w["qkv"], 3, -1))
        score = jnp.einsum("bnqhd,bnkhd->bnhqk", q, k).astype(jnp.float32) / (d / heads) ** 0.5
        score = score + _window_bias(w["bias"], side).astype(jnp.float32)
        if shift:
            score = jnp.where(_window_mask(size, side, shift)[:, None], score, -1e9)
        share = jax.nn.softmax(score, -1).astype(half)
        h = jnp.einsum("bnhqk,bnkhd->bnqhd", share, v).reshape(h.shape) @ w["o"]
        h = h.reshape(b, count, count, side, side, d).swapaxes(2, 3).reshape(x.shape)
        return jnp.roll(h, (shift, shift), (1, 2)) if shift else h

    def loss(params: Any, patches: jax.Array, label: jax.Array) -> jax.Array:
        p = jax.tree.map(lambda w: w.astype(half), params)
        x = patches @ p["in"]
        for level, stage in enumerate(p["stages"]):
            if level:
                b, size, _, d = x.shape
                x = x.reshape(b, size // 2, 2, size // 2, 2, d).swapaxes(2, 3)
                x = x.reshape(b, size // 2, size // 2, 4 * d) @ stage["merge"]
            for place, w in enumerate(stage["layers"]):
                heads = x.shape[-1] // 32
                x = x + attended(standardized(x), w, heads, side // 2 * (place % 2))
                x = x + jax.nn.gelu(standardized(x) @ w["up"]) @ w["down"]
        logits = (x.mean((1, 2)) @ p["head"]).astype(jnp.float32)
        cross_entropy = optax.softmax_cross_entropy_with_integer_labels
        return cross_entropy(logits, label).mean()

    def layer(d: int) -> Any:
        dense = {"qkv": array(d, 3 * d), "o": array(d, d)}
        dense |= {"up": array(d, 4 * d), "down": array(4 * d, d)}
        return {**dense, "bias": array((2 * side - 1) ** 2, d // 32)}

    stages = [
        {"merge": array(2 * d, d), "layers": [layer(d)] * depth}
        for d, depth in ((96, 2), (192, 2), (384, 4))
    ]
    params = {"in": array(48, 96), "stages": stages, "head": array(384, 1000)}
    patches = array(128, 56, 56, 48, dtype=half)
    return optimized(loss, optax.adamw(1e-3), params, patches, indices(128))


def momentum_contrast() -> Target:
    """MoCo: images beside a queue of 65,536 keys, which a slowly following encoder makes."""
    batch, d, length = 256, 128, 65536
    widths = (64, 128, 256, 512)
    optimizer = optax.sgd(0.03, momentum=0.9)

    def encoded(params: Any, x: jax.Array) -> jax.Array:
        x = jax.nn.relu(convolution(x, params["in"], 2))
        for w in params["layers"]:
            h = jax.nn.relu(standardized(convolution(x, w["a"], 2)))
            x = jax.nn.relu(convolution(x, w["skip"], 2) + standardized(convolution(h, w["b"])))
        x = x.mean((1, 2)) @ params["out"]
        return x / jnp.linalg.norm(x, axis=-1, keepdims=True)

    def loss(params: Any, view: jax.Array, key: jax.Array, queue: jax.Array) -> jax.Array:
        query = encoded(params, view)
        score = jnp.concatenate([(query * key).sum(-1, keepdims=True), query @ queue.T], -1) / 0.07
        return -jax.nn.log_softmax(score)[:, 0].mean()

    def step(
        params: Any, slow: Any, state: Any, queue: jax.Array, place: jax.Array, a: Any, b: Any
    ) -> Any:
        slow = jax.tree.map(lambda s, p: 0.999 * s + 0.001 * p, slow, params)
        key = encoded(slow, b)
        value, gradients = jax.value_and_grad(loss)(params, a, key, queue)
        updates, state = optimizer.update(gradients, state, params)
        queue = jax.lax.dynamic_update_slice(queue, key, (place, 0))
        place = (place + batch) % length
        return optax.apply_updates(params, updates), slow, state, queue, place, value

    layers = [
        {"a": array(3, 3, i, o), "b": array(3, 3, o, o), "skip": array(1, 1, i, o)}
        for i, o in zip((64, *widths), widths)
    ]
    params = {"in": array(7, 7, 3, 64), "layers": layers, "out": array(512, d)}
    state = jax.eval_shape(optimizer.init, params)
    view = array(batch, 112, 112, 3)
    return step, (params, params, state, array(length, d), indices(), view, view)


def gaussian_splatting() -> Target:
    """Images of 16,384 splats: of each tile the 256 nearest, blended from front to back."""
    splats, views, size, tile, nearest = 16384, 8, 128, 16, 256
    count = size // tile

    def projected(params: Any, camera: jax.Array) -> Any:
        """Depths, centres on the image, and inverse covariances there."""
        point = params["centre"] @ camera[:, :3].T + camera[:, 3]
        depth = jnp.maximum(point[:, 2], 0.1)
        centre = point[:, :2] / depth[:, None] * size + size / 2
        axes = camera[:, :3] @ params["axes"] * jnp.exp(params["scale"])[:, None]
        flat = axes[:, :2] / depth[:, None, None] * size
        covariance = flat @ flat.swapaxes(-1, -2) + 0.3 * jnp.eye(2)
        a, b, c = covariance[:, 0, 0], covariance[:, 0, 1], covariance[:, 1, 1]
        inverse = jnp.stack([c, -b, a], -1) / (a * c - b * b)[:, None]
        return depth, centre, inverse

    def rendered(params: Any, camera: jax.Array) -> jax.Array:
        depth, centre, inverse = projected(params, camera)
        opacity, colour = jax.nn.sigmoid(params["opacity"]), jax.nn.sigmoid(params["colour"])
        corner = jnp.stack(jnp.meshgrid(jnp.arange(count), jnp.arange(count)), -1) * tile
        pixel = jnp.stack(jnp.meshgrid(jnp.arange(tile), jnp.arange(tile)), -1)

        def tile_image(corner: jax.Array) -> jax.Array:
            is_near = (jnp.abs(centre - corner - tile / 2) < 2 * tile).all(-1)
            order = jnp.argsort(jnp.where(is_near, depth, jnp.inf))[:nearest]
            x = (pixel + corner).reshape(-1, 1, 2) - centre[order]
            a, b, c = jnp.moveaxis(inverse[order], -1, 0)
            power = 0.5 * (a * x[..., 0] ** 2 + c * x[..., 1] ** 2) + b * x[..., 0] * x[..., 1]
            alpha = jnp.where(is_near[order], opacity[order] * jnp.exp(-power), 0.0)
            passed = jnp.cumprod(1 - jnp.minimum(alpha, 0.99), -1)
            before = jnp.concatenate([jnp.ones_like(passed[:, :1]), passed[:, :-1]], -1)
            return (alpha * before) @ colour[order]

        return jax.vmap(tile_image)(corner.reshape(-1, 2))

    def loss(params: Any, cameras: jax.Array, images: jax.Array) -> jax.Array:
        return jnp.abs(jax.vmap(rendered, (None, 0))(params, cameras) - images).mean()

    shapes = {"centre": (3,), "axes": (3, 3), "scale": (3,), "opacity": (), "colour": (3,)}
    params = {name: array(splats, *shape) for name, shape in shapes.items()}
    images = array(views, count * count, tile * tile, 3)
    return optimized(loss, optax.adam(1e-2), params, array(views, 3, 4), images)
