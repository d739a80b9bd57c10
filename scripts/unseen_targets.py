"""Steps of `scripts.unseen_steps` in few words: an optimizer, and layers that several have."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from scripts.memory_targets import Target, array


def optimized(
    loss: Callable[..., jax.Array],
    optimizer: optax.GradientTransformation,
    params: Any,
    *batch: Any,
) -> Target:
    """A step of an optimizer."""

    def step(params: Any, state: Any, *batch: Any) -> tuple[Any, Any, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(params, *batch)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    return step, (params, jax.eval_shape(optimizer.init, params), *batch)


def indices(*shape: int) -> jax.ShapeDtypeStruct:
    """An abstract array of tokens, labels or places."""
    return array(*shape, dtype=jnp.int32)


def random_key() -> jax.ShapeDtypeStruct:
    """An abstract key of random numbers."""
    return jax.eval_shape(lambda: jax.random.key(0))


def convolution(x: jax.Array, w: jax.Array, stride: int = 1, groups: int = 1) -> jax.Array:
    """A convolution of images, channels last."""
    return jax.lax.conv_general_dilated(
        x,
        w,
        (stride, stride),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def standardized(x: jax.Array) -> jax.Array:
    """Layer normalization without its scale."""
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5)


def rms_normalized(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Normalization by the root of the mean square."""
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale


def in_heads(x: jax.Array, heads: int) -> jax.Array:
    """The last dimension as heads and their features."""
    return x.reshape(*x.shape[:-1], heads, -1)


def next_token_loss(logits: jax.Array, tokens: jax.Array) -> jax.Array:
    """The cross entropy of each token, given those before it."""
    cross_entropy = optax.softmax_cross_entropy_with_integer_labels
    return cross_entropy(logits[:, :-1], tokens[:, 1:]).mean()


def mean_square(x: jax.Array, y: jax.Array) -> jax.Array:
    """The mean of squared differences."""
    return ((x - y) ** 2).mean()


def transformer_layers(depth: int, d: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Parameters of layers that a scan goes over: attention, a block four times as wide, norms."""
    return {
        "qkv": array(depth, d, 3 * d),
        "o": array(depth, d, d),
        "up": array(depth, d, 4 * d),
        "down": array(depth, 4 * d, d),
        "scale": array(depth, 2, d),
    }
