"""Separable convolutions and poolings that keep their channels: what NASNet and RandWire are of."""

from typing import Literal

from flax import nnx
import jax


class SeparableConv(nnx.Module):
    """ReLU, a depthwise convolution, a pointwise one, batch norm."""

    def __init__(self, c_in: int, channels: int, size: int, stride: int = 1, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.depthwise = nnx.Conv(
            c_in,
            c_in,
            (size, size),
            strides=stride,
            feature_group_count=c_in,
            use_bias=False,
            rngs=rngs,
        )
        self.pointwise = nnx.Conv(c_in, channels, (1, 1), use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(channels, momentum=0.9, epsilon=1e-3, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, H, W, channels in] -> [B, H / stride, W / stride, channels]."""
        return self.norm(self.pointwise(self.depthwise(jax.nn.relu(x))))


class PointwiseConv(nnx.Module):
    """ReLU, a 1x1 convolution, batch norm; with a stride it reads every other pixel."""

    def __init__(self, c_in: int, channels: int, stride: int = 1, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.convolution = nnx.Conv(
            c_in, channels, (1, 1), strides=stride, use_bias=False, rngs=rngs
        )
        self.norm = nnx.BatchNorm(channels, momentum=0.9, epsilon=1e-3, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, H, W, channels in] -> [B, H / stride, W / stride, channels]."""
        return self.norm(self.convolution(jax.nn.relu(x)))


def pool(kind: Literal["max", "mean"], x: jax.Array, stride: int = 1) -> jax.Array:
    """A 3x3 pooling."""
    function = nnx.max_pool if kind == "max" else nnx.avg_pool
    return function(x, (3, 3), (stride, stride), padding="SAME")
