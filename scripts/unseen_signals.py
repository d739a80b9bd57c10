"""More models of sequences of `scripts.unseen_steps`: sound, chunked state spaces, filters."""

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
    rms_normalized,
    standardized,
)


def chunked_state_space() -> Target:
    """Mamba 2: within chunks of 128 products of matrices, between them a scan over their states."""
    batch, length, d, inner, size, states, chunk, depth = 16, 2048, 1024, 2048, 64, 64, 128, 6
    heads, chunks = inner // size, length // chunk

    def mixed(x: jax.Array, b: jax.Array, c: jax.Array, log_decay: jax.Array) -> jax.Array:
        """`x` [batch, chunks, chunk, heads, size] after the recurrence."""
        total = jnp.cumsum(log_decay, 2)
        apart = total[:, :, :, None] - total[:, :, None]
        is_past = jnp.tril(jnp.ones((chunk, chunk), bool))[:, :, None]
        decay = jnp.exp(jnp.where(is_past, apart, -jnp.inf))
        score = jnp.einsum("zcqn,zckn->zcqk", c, b)
        within = jnp.einsum("zcqk,zcqkh,zckhp->zcqhp", score, decay, x)
        to_end = jnp.exp(total[:, :, -1:] - total)
        made = jnp.einsum("zckn,zckh,zckhp->czhpn", b, to_end, x)
        kept = jnp.exp(total[:, :, -1]).swapaxes(0, 1)

        def next_state(state: jax.Array, each: Any) -> tuple[jax.Array, jax.Array]:
            made, kept = each
            return state * kept[:, :, None, None] + made, state

        _, before = jax.lax.scan(next_state, jnp.zeros_like(made[0]), (made, kept))
        return within + jnp.einsum("zcqn,czhpn,zcqh->zcqhp", c, before, jnp.exp(total))

    @jax.checkpoint
    def layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
        projected = rms_normalized(x, w["scale"]) @ w["in"]
        gate, mixing, rate = jnp.split(projected, [inner, 2 * inner + 2 * states], -1)
        padded = jnp.pad(mixing, ((0, 0), (3, 0), (0, 0)))
        mixing = sum(padded[:, i : i + length] * w["filter"][i] for i in range(4))
        mixing = jax.nn.silu(mixing).reshape(batch, chunks, chunk, -1)
        value, b, c = jnp.split(mixing, [inner, inner + states], -1)
        rate = jax.nn.softplus(rate + w["rate"]).reshape(batch, chunks, chunk, heads)
        value = in_heads(value, heads)
        y = mixed(value * rate[..., None], b, c, -jnp.exp(w["decay"]) * rate)
        y = (y + value * w["skip"][:, None]).reshape(batch, length, inner)
        return x + rms_normalized(y * jax.nn.silu(gate), w["out_scale"]) @ w["out"], None

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return mean_square(jax.lax.scan(layer, x, params)[0], y)

    params = {
        "in": array(depth, d, 2 * inner + 2 * states + heads),
        "filter": array(depth, 4, inner + 2 * states),
        "out": array(depth, inner, d),
        "scale": array(depth, d),
        "out_scale": array(depth, inner),
        **{name: array(depth, heads) for name in ("rate", "decay", "skip")},
    }
    x = array(batch, length, d)
    return trained(loss, params, x, x)


def conformer() -> Target:
    """Speech by attention between halves of dense layers, and convolutions along time."""
    batch, frames, features, d, depth, labels = 128, 800, 80, 384, 8, 1024

    def dense(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        return x + 0.5 * jax.nn.silu(standardized(x) @ up) @ down

    def layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
        x = dense(x, w["up1"], w["down1"])
        q, k, v = (in_heads(part, 6) for part in jnp.split(standardized(x) @ w["qkv"], 3, -1))
        x = x + jax.nn.dot_product_attention(q, k, v).reshape(x.shape) @ w["o"]
        h, gate = jnp.split(standardized(x) @ w["gated"], 2, -1)
        h = jax.lax.conv_general_dilated(
            h * jax.nn.sigmoid(gate),
            w["depthwise"],
            (1,),
            "SAME",
            dimension_numbers=("NWC", "WIO", "NWC"),
            feature_group_count=d,
        )
        x = x + jax.nn.silu(standardized(h)) @ w["mixed"]
        return standardized(dense(x, w["up2"], w["down2"])), None

    def loss(params: Any, sound: jax.Array, label: jax.Array) -> jax.Array:
        x = jax.nn.relu(convolution(sound[..., None], params["in"], 2))
        x = jax.nn.relu(convolution(x, params["down"], 2))
        x = x.reshape(batch, frames // 4, -1) @ params["joined"]
        x, _ = jax.lax.scan(layer, x, params["layers"])
        cross_entropy = optax.softmax_cross_entropy_with_integer_labels
        return cross_entropy(x @ params["head"], label).mean()

    shapes = {
        **{name: (d, 4 * d) for name in ("up1", "up2")},
        **{name: (4 * d, d) for name in ("down1", "down2")},
        "qkv": (d, 3 * d),
        "o": (d, d),
        "gated": (d, 2 * d),
        "depthwise": (31, 1, d),
        "mixed": (d, d),
    }
    params = {
        "in": array(3, 3, 1, 64),
        "down": array(3, 3, 64, 64),
        "joined": array(64 * features // 4, d),
        "layers": {name: array(depth, *shape) for name, shape in shapes.items()},
        "head": array(d, labels),
    }
    sound = array(batch, frames, features)
    return optimized(loss, optax.adam(1e-3), params, sound, indices(batch, frames // 4))


def dilated_sound() -> Target:
    """WaveNet: twenty gated convolutions of two samples, ever farther apart."""
    batch, length, d, skipped, classes = 16, 8192, 128, 256, 256
    dilations = [2**i for i in range(10)] * 2

    def loss(params: Any, sound: jax.Array) -> jax.Array:
        x, skips = params["table"][sound], jnp.zeros((batch, length, skipped))
        for w, dilation in zip(params["layers"], dilations):
            h = jax.lax.conv_general_dilated(
                x,
                w["pair"],
                (1,),
                [(dilation, 0)],
                rhs_dilation=(dilation,),
                dimension_numbers=("NWC", "WIO", "NWC"),
            )
            h, gate = jnp.split(h, 2, -1)
            h = jnp.tanh(h) * jax.nn.sigmoid(gate)
            x, skips = x + h @ w["out"], skips + h @ w["skip"]
        logits = jax.nn.relu(jax.nn.relu(skips) @ params["a"]) @ params["b"]
        cross_entropy = optax.softmax_cross_entropy_with_integer_labels
        return cross_entropy(logits[:, :-1], sound[:, 1:]).mean()

    layer = {"pair": array(2, d, 2 * d), "out": array(d, d), "skip": array(d, skipped)}
    params = {
        "table": array(classes, d),
        "layers": [layer] * len(dilations),
        "a": array(skipped, skipped),
        "b": array(skipped, classes),
    }
    return optimized(loss, optax.adam(1e-3), params, indices(batch, length))


def kalman_filter() -> Target:
    """The likelihood of series by a Kalman filter, whose observations a network makes."""
    batch, length, features, d, states, observed = 512, 128, 128, 512, 32, 16

    def loss(params: Any, x: jax.Array) -> jax.Array:
        seen = jax.nn.relu(x @ params["a"])
        mean, noise = jnp.split(seen @ params["b"], 2, -1)
        noise, move, look = jax.nn.softplus(noise) + 1e-3, params["move"], params["look"]

        def update(carry: Any, each: Any) -> tuple[Any, jax.Array]:
            (state, covariance), (y, noise) = carry, each
            state = state @ move.T
            covariance = move @ covariance @ move.T + 0.1 * jnp.eye(states)
            shared = look @ covariance
            spread = shared @ look.T + noise[:, :, None] * jnp.eye(observed)
            factor = jnp.linalg.cholesky(spread)
            gain = jax.scipy.linalg.cho_solve((factor, True), shared)
            missed = y - state @ look.T
            state = state + jnp.einsum("bos,bo->bs", gain, missed)
            covariance = covariance - jnp.einsum("bos,bot->bst", gain, shared)
            scaled = jax.scipy.linalg.cho_solve((factor, True), missed[..., None])[..., 0]
            size = jnp.log(jnp.diagonal(factor, axis1=1, axis2=2)).sum(-1)
            return (state, covariance), -0.5 * (missed * scaled).sum(-1) - size

        start = jnp.zeros((batch, states)), jnp.tile(jnp.eye(states), (batch, 1, 1))
        by_time = jax.tree.map(lambda z: z.swapaxes(0, 1), (mean, noise))
        return -jax.lax.scan(update, start, by_time)[1].mean()

    params = {
        "a": array(features, d),
        "b": array(d, 2 * observed),
        "move": array(states, states),
        "look": array(observed, states),
    }
    return optimized(loss, optax.adam(1e-3), params, array(batch, length, features))
