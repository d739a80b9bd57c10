"""Inference steps with branches that no paper about streams has and nothing was tuned on.

GoogLeNet         inception modules of 2014: 1x1, 3x3, 5x5 and pooling side by side (Szegedy et al.)
ResNeXt           a bottleneck of 8 paths written out, each 16 channels wide (Xie et al. 2017)
DenseNet          a block whose layers read all before them (Huang et al. 2017)
U-Net             a level of a diffusion model: residual blocks with a time embedding, and attention
two towers        a recommender: a user's and an item's features through layers of their own

Each is written with `lax` alone and has its weights as arguments -> in: `NETWORKS`
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import jax
from jax import lax
import jax.numpy as jnp


Target = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclass
class _Weights:
    """The weights that a network asks for as it is built: shapes first, then values by name."""

    values: Mapping[str, Any] | None = None
    shapes: dict[str, jax.ShapeDtypeStruct] = field(default_factory=dict)

    def __call__(self, *shape: int) -> Any:
        """The next weight."""
        name = f"w{len(self.shapes)}"
        self.shapes[name] = jax.ShapeDtypeStruct(shape, jnp.float32)
        return jnp.zeros(shape) if self.values is None else self.values[name]


def _conv(w: _Weights, x: jax.Array, features: int, size: int = 1, stride: int = 1) -> jax.Array:
    """A convolution with bias and ReLU."""
    kernel = w(size, size, x.shape[-1], features)
    y = lax.conv_general_dilated(
        x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return jax.nn.relu(y + w(features))


def _dense(w: _Weights, x: jax.Array, features: int) -> jax.Array:
    return x @ w(x.shape[-1], features) + w(features)


def _max_pool(x: jax.Array, size: int, stride: int) -> jax.Array:
    window, strides = (1, size, size, 1), (1, stride, stride, 1)
    return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, "SAME")


def _inception(w: _Weights, x: jax.Array, sizes: tuple[int, ...]) -> jax.Array:
    one, three_in, three, five_in, five, pooled = sizes
    branches = (
        _conv(w, x, one),
        _conv(w, _conv(w, x, three_in), three, 3),
        _conv(w, _conv(w, x, five_in), five, 5),
        _conv(w, _max_pool(x, 3, 1), pooled),
    )
    return jnp.concatenate(branches, axis=-1)


# Of the modules 3a to 5b in the table of GoogLeNet's paper; None halves the image.
_MODULES: Final = (
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    None,
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    None,
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
)


def _googlenet(w: _Weights, x: jax.Array) -> jax.Array:
    x = _max_pool(_conv(w, x, 64, 7, 2), 3, 2)
    x = _max_pool(_conv(w, _conv(w, x, 64), 192, 3), 3, 2)
    for sizes in _MODULES:
        x = _max_pool(x, 3, 2) if sizes is None else _inception(w, x, sizes)
    return _dense(w, x.mean(axis=(1, 2)), 1000)


def _resnext(w: _Weights, x: jax.Array, paths: int = 8, width: int = 16) -> jax.Array:
    each = [_conv(w, _conv(w, x, width), width, 3) for _ in range(paths)]
    return jax.nn.relu(x + _conv(w, jnp.concatenate(each, axis=-1), x.shape[-1]))


def _densenet(w: _Weights, x: jax.Array, layers: int = 6, growth: int = 32) -> jax.Array:
    made = [x]
    for _ in range(layers):
        made.append(_conv(w, _conv(w, jnp.concatenate(made, axis=-1), 4 * growth), growth, 3))
    return jnp.concatenate(made, axis=-1)


def _residual(w: _Weights, x: jax.Array, time: jax.Array, features: int) -> jax.Array:
    inner = _conv(w, x, features, 3) + _dense(w, jax.nn.silu(time), features)[:, None, None]
    return _conv(w, inner, features, 3) + _conv(w, x, features)


def _attention(w: _Weights, x: jax.Array) -> jax.Array:
    batch, height, wide, c = x.shape
    tokens = x.reshape(batch, height * wide, c)
    q, k, v = (_dense(w, tokens, c) for _ in range(3))
    weights = jax.nn.softmax(jnp.einsum("bqc,bkc->bqk", q, k) / c**0.5, axis=-1)
    return x + _dense(w, jnp.einsum("bqk,bkc->bqc", weights, v), c).reshape(x.shape)


def _unet(w: _Weights, x: jax.Array) -> jax.Array:
    time = jax.nn.silu(_dense(w, x.mean(axis=(1, 2)), 512))
    first = _attention(w, _residual(w, x, time, 320))
    low = _attention(w, _residual(w, _max_pool(first, 2, 2), time, 640))
    up = jnp.repeat(jnp.repeat(low, 2, axis=1), 2, axis=2)
    return _residual(w, jnp.concatenate([up, first], axis=-1), time, 320)


def _two_towers(w: _Weights, x: jax.Array) -> jax.Array:
    user, item = x[:, :256], x[:, 256:]
    tower = []
    for features in (user, item):
        # Experts of one input, as in mixtures for several tasks.
        experts = [jax.nn.relu(_dense(w, features, 256)) for _ in range(4)]
        gate = jax.nn.softmax(_dense(w, features, 4), axis=-1)
        mixed = jnp.einsum("be,bec->bc", gate, jnp.stack(experts, axis=1))
        tower.append(_dense(w, jax.nn.relu(_dense(w, mixed, 128)), 64))
    return (tower[0] * tower[1]).sum(axis=-1)


def _target(build: Callable[..., jax.Array], *shape: int) -> Callable[[int], Target]:
    """The step of a network on so many samples of a shape, and its abstract arguments."""

    def make(batch: int) -> Target:
        def step(weights: Mapping[str, Any], x: jax.Array) -> jax.Array:
            return build(_Weights(weights), x)

        asked = _Weights()
        x = jax.ShapeDtypeStruct((batch, *shape), jnp.float32)
        jax.eval_shape(lambda x: build(asked, x), x)
        return jax.jit(step), (asked.shapes, x)

    return make


NETWORKS: Final[Mapping[str, Callable[[int], Target]]] = {
    "GoogLeNet": _target(_googlenet, 224, 224, 3),
    "ResNeXt block": _target(_resnext, 56, 56, 256),
    "DenseNet block": _target(_densenet, 28, 28, 128),
    "U-Net level": _target(_unet, 32, 32, 4),
    "two towers": _target(_two_towers, 512),
}
