"""The second part of `scripts.memory_steps`, by which its functions are known: odd and narrow
dimensions, transforms and windows, and layers.
"""

from typing import Any

import jax
import jax.numpy as jnp

from scripts.memory_targets import Target, array, trained


# --- narrow and odd dimensions ------------------------------------------------------------------


def odd_einsum() -> Target:
    """A product of [b, 33, 17, 5]."""

    def step(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.einsum("bijk,kl->bijl", x, w)

    return step, (array(32768, 33, 17, 5), array(5, 7))


def odd_elementwise() -> Target:
    """Elementwise on [b, 9, 5], kept for the gradient."""

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.mean(jnp.sin(jnp.exp(x * w)))

    return trained(loss, array(9, 5), array(2000000, 9, 5))


def narrow_heads() -> Target:
    """Attention with heads of 40."""

    def loss(w: Any, x: jax.Array) -> jax.Array:
        b, s, _ = x.shape
        q, k, v = ((x @ w[n]).reshape(b, s, 8, 40) for n in ("q", "k", "v"))
        score = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 6.3)
        out = jnp.einsum("bhqk,bkhd->bqhd", score, v).reshape(b, s, 320)
        return jnp.mean((out @ w["o"]) ** 2)

    w = {name: array(320, 320) for name in ("q", "k", "v", "o")}
    return trained(loss, w, array(64, 512, 320))


def wide_heads() -> Target:
    """Attention with heads of 96, in bfloat16, on 300 patches."""

    def loss(w: Any, x: jax.Array) -> jax.Array:
        b, s, _ = x.shape
        q, k, v = ((x @ w[n]).reshape(b, s, 4, 96) for n in ("q", "k", "v"))
        score = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) / 9.8)
        out = jnp.einsum("bhqk,bkhd->bqhd", score.astype(x.dtype), v).reshape(b, s, 384)
        return jnp.mean((out @ w["o"]).astype(jnp.float32) ** 2)

    half = jnp.bfloat16
    w = {name: array(384, 384, dtype=half) for name in ("q", "k", "v", "o")}
    return trained(loss, w, array(128, 300, 384, dtype=half))


def last_of_one() -> Target:
    """A column: [n, 1]."""

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.mean(jnp.tanh(jnp.tanh(x @ w) * 2.0) ** 2)

    return trained(loss, array(16, 1), array(8000000, 16))


def coordinates() -> Target:
    """Distances of points in space: [n, k, 3]."""

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        shift = x[:, :, None, :] - x[:, None, :, :] * w
        return jnp.mean(jnp.sqrt(jnp.sum(shift**2, axis=-1) + 1e-3))

    return trained(loss, array(3), array(4096, 96, 3))


def small_matrices() -> Target:
    """Products of many 4 x 4 matrices."""
    return (lambda a, b: jnp.einsum("nij,njk->nik", a, b)), (
        array(4000000, 4, 4),
        array(4000000, 4, 4),
    )


def small_dense() -> Target:
    """A perceptron of 24 features on many rows."""

    def loss(w: Any, x: jax.Array) -> jax.Array:
        h = jnp.tanh(x @ w["a"])
        h = jnp.tanh(h @ w["b"])
        return jnp.mean((h @ w["c"]) ** 2)

    w = {"a": array(12, 24), "b": array(24, 24), "c": array(24, 3)}
    return trained(loss, w, array(4000000, 12))


def bool_masks() -> Target:
    """Masks of single bytes beside numbers."""

    def step(x: jax.Array, mask: jax.Array) -> jax.Array:
        return jnp.cumsum(jnp.where(mask[:, None, :], x, 0.0), axis=2)

    return step, (array(2048, 20, 2000), array(2048, 2000, dtype=jnp.bool_))


def stacked_layers() -> Target:
    """A scan that keeps [layers, b, 50, 50] for its gradient."""

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        def layer(h: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
            return jnp.sin(jnp.einsum("bij,jk->bik", h, w)), None

        return jnp.mean(jax.lax.scan(layer, x, w)[0])

    return trained(loss, array(24, 50, 50), array(4096, 50, 50))


# --- transforms and windows ---------------------------------------------------------------------


def fft_rows() -> Target:
    """A complex transform of rows."""

    def step(x: jax.Array) -> jax.Array:
        return jnp.abs(jnp.fft.fft(x))

    return step, (array(65536, 2048),)


def fft_images() -> Target:
    """A real transform of images and back, filtered."""

    def step(x: jax.Array, f: jax.Array) -> jax.Array:
        return jnp.fft.irfft2(jnp.fft.rfft2(x) * f)

    return step, (array(1024, 256, 256), array(256, 129))


def spectral_mixing() -> Target:
    """The gradient through a transform of two dimensions, as in FNet."""

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.mean(jnp.tanh(jnp.fft.fft2(jnp.tanh(x @ w)).real))

    return trained(loss, array(512, 512), array(256, 512, 512))


def convolution_few_channels() -> Target:
    """A first layer: three channels in, seven by seven."""

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        y = jax.lax.conv_general_dilated(
            x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.mean(jax.nn.relu(y))

    return trained(loss, array(7, 7, 3, 64), array(256, 224, 224, 3))


def convolutions() -> Target:
    """Two layers of 48 channels, three by three."""

    def loss(w: Any, x: jax.Array) -> jax.Array:
        for kernel in w:
            x = jax.nn.relu(
                jax.lax.conv_general_dilated(
                    x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
                )
            )
        return jnp.mean(x)

    return trained(loss, [array(3, 3, 48, 48)] * 2, array(128, 56, 56, 48))


def depthwise() -> Target:
    """A convolution along time for each channel by itself."""

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        y = jax.lax.conv_general_dilated(
            x, w, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=512
        )
        return jnp.mean(jax.nn.silu(y))

    return trained(loss, array(4, 1, 512), array(128, 2048, 512))


def max_pooling() -> Target:
    """The greatest of windows, and its gradient."""

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        y = jax.lax.reduce_window(x * w, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        return jnp.mean(y**2)

    return trained(loss, array(64), array(128, 112, 112, 64))


# --- matrices, random numbers, recurrences ------------------------------------------------------


def factorized() -> Target:
    """Cholesky factors of many matrices, solved with."""

    def step(a: jax.Array, b: jax.Array) -> jax.Array:
        return jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(a), True), b)

    return step, (array(4096, 128, 128), array(4096, 128, 8))


def dropout() -> Target:
    """A mask drawn for all numbers of a layer."""

    def loss(w: jax.Array, x: jax.Array, key: jax.Array) -> jax.Array:
        h = jax.nn.gelu(x @ w)
        keep = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.9, h.shape)
        return jnp.mean((jnp.where(keep, h, 0.0) @ w) ** 2)

    return trained(loss, array(2048, 2048), array(32768, 2048), array(2, dtype=jnp.uint32))


def recurrence() -> Target:
    """A recurrent network of 100 units over 200 steps."""

    def loss(w: Any, x: jax.Array) -> jax.Array:
        def cell(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            h = jnp.tanh(x @ w["x"] + h @ w["h"])
            return h, h

        h = jnp.zeros((x.shape[1], 100))
        return jnp.mean(jax.lax.scan(cell, h, x)[1] ** 2)

    return trained(loss, {"x": array(30, 100), "h": array(100, 100)}, array(200, 4096, 30))


def normalized() -> Target:
    """Layer normalization between two products, 700 features wide."""

    def loss(w: Any, x: jax.Array) -> jax.Array:
        h = x @ w["a"]
        h = (h - h.mean(-1, keepdims=True)) * jax.lax.rsqrt(h.var(-1, keepdims=True) + 1e-5)
        return jnp.mean((jax.nn.gelu(h) @ w["b"]) ** 2)

    return trained(loss, {"a": array(700, 700), "b": array(700, 700)}, array(65536, 700))


def cross_entropies() -> Target:
    """Logits of 50,257 classes with their gradient, as a language model's last layer."""

    def loss(w: jax.Array, x: jax.Array, label: jax.Array) -> jax.Array:
        logits = jax.nn.log_softmax(x @ w)
        return -jnp.mean(jnp.take_along_axis(logits, label[:, None], axis=1))

    return trained(loss, array(512, 50257), array(4096, 512), array(4096, dtype=jnp.int32))


def masked_attention() -> Target:
    """Causal attention on 1000 tokens in bfloat16, grouped heads."""

    def loss(w: Any, x: jax.Array) -> jax.Array:
        b, s, d = x.shape
        q = (x @ w["q"]).reshape(b, s, 4, 4, 64)
        k, v = ((x @ w[n]).reshape(b, s, 4, 64) for n in ("k", "v"))
        score = jnp.einsum("bqhgd,bkhd->bhgqk", q, k).astype(jnp.float32)
        score = jnp.where(jnp.tril(jnp.ones((s, s), bool)), score / 8, -1e9)
        share = jax.nn.softmax(score).astype(x.dtype)
        out = jnp.einsum("bhgqk,bkhd->bqhgd", share, v).reshape(b, s, d)
        return jnp.mean((out @ w["o"]).astype(jnp.float32) ** 2)

    half = jnp.bfloat16
    w = {
        "q": array(1024, 1024, dtype=half),
        "o": array(1024, 1024, dtype=half),
        "k": array(1024, 256, dtype=half),
        "v": array(1024, 256, dtype=half),
    }
    return trained(loss, w, array(16, 1000, 1024, dtype=half))
