"""Inception-v3: an image classifier of parallel convolutions and batch norm (Szegedy et al. 2016).

A stem of convolutions, then eleven blocks, each a few chains of convolutions or poolings side by
side, concatenated. The network is data: a tuple of steps, each a convolution, a pooling or a fork
of such tuples. Sizes are torchvision's, as is batch norm's scale; it is over the whole batch.
Departures: no auxiliary classifier, no dropout, no label smoothing; AdamW for the paper's RMSProp.
"""

from dataclasses import dataclass
from typing import Literal

from flax import nnx
import jax
from jax import numpy as jnp

from models.inference import Target as InferenceTarget, inference_step
from models.training import (
    Batch,
    DType,
    State,
    Target,
    TrainStep,
    check_size,
    cross_entropy,
    train_step,
)


RGB = 3
# A 3x3 pooling: "max" halves the image, "mean" keeps its size.
Pool = Literal["max", "mean"]


@dataclass(frozen=True, slots=True)
class Conv:
    """A convolution with batch norm and ReLU; its kernel is [height, width]."""

    channels: int
    kernel: tuple[int, int] = (1, 1)
    stride: int = 1
    padding: Literal["SAME", "VALID"] = "SAME"


@dataclass(frozen=True, slots=True)
class Fork:
    """Chains of steps that see the same input; their outputs are concatenated."""

    branches: tuple["Steps", ...]


Step = Conv | Pool | Fork
Steps = tuple[Step, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InceptionConfig:
    """Steps and sizes of an Inception network."""

    image: int
    steps: Steps
    classes: int


def reduction(channels: int) -> Conv:
    """A 3x3 convolution that halves the image."""
    return Conv(channels, (3, 3), 2, "VALID")


def block_a(pooled: int, unit: int) -> Fork:
    """Square kernels: 1x1, 5x5, twice 3x3, and a pooling; widths are multiples of `unit`."""
    five = (Conv(3 * unit), Conv(4 * unit, (5, 5)))
    three = (Conv(4 * unit), Conv(6 * unit, (3, 3)), Conv(6 * unit, (3, 3)))
    return Fork(((Conv(4 * unit),), five, three, ("mean", Conv(pooled))))


def block_b(direct: int, reduced: int, double: int) -> Fork:
    """Halves the image by one and by two 3x3 convolutions and by a pooling."""
    branch = (Conv(reduced), Conv(double, (3, 3)), reduction(double))
    return Fork(((reduction(direct),), branch, ("max",)))


def block_c(inner: int, channels: int) -> Fork:
    """Seven by seven, factorized: 1x7 and 7x1, once and twice; every branch ends in `channels`."""
    wide, high = (1, 7), (7, 1)
    once = (Conv(inner), Conv(inner, wide), Conv(channels, high))
    again = (Conv(inner, high), Conv(inner, wide), Conv(inner, high), Conv(channels, wide))
    return Fork(((Conv(channels),), once, (Conv(inner), *again), ("mean", Conv(channels))))


def block_d() -> Fork:
    """Halves the image by a 3x3 convolution, by a 7x7 (factorized) and a 3x3, by a pooling."""
    seven = (Conv(192), Conv(192, (1, 7)), Conv(192, (7, 1)), reduction(192))
    return Fork(((Conv(192), reduction(320)), seven, ("max",)))


def block_e() -> Fork:
    """The widest: 3x3 convolutions, factorized side by side into 1x3 and 3x1."""
    split = Fork(((Conv(384, (1, 3)),), (Conv(384, (3, 1)),)))
    double = (Conv(448), Conv(384, (3, 3)), split)
    return Fork(((Conv(320),), (Conv(384), split), double, ("mean", Conv(192))))


INCEPTION_V3 = InceptionConfig(
    image=299,
    steps=(
        reduction(32),
        Conv(32, (3, 3), padding="VALID"),
        Conv(64, (3, 3)),
        "max",
        Conv(80),
        Conv(192, (3, 3), padding="VALID"),
        "max",
        *(block_a(pooled, 16) for pooled in (32, 64, 64)),
        block_b(384, 64, 96),
        *(block_c(inner, 192) for inner in (128, 160, 160, 192)),
        block_d(),
        block_e(),
        block_e(),
    ),
    classes=1000,
)
TINY_STEM = (reduction(8), Conv(16, (3, 3)), "max")
TINY = InceptionConfig(
    image=32,
    steps=(*TINY_STEM, block_a(16, 8), block_b(32, 8, 32), block_c(16, 32)),
    classes=16,
)


class ConvNorm(nnx.Module):
    """A convolution without bias, batch norm, ReLU."""

    def __init__(self, c_in: int, conv: Conv, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.channels = conv.channels
        self.convolution = nnx.Conv(
            c_in,
            conv.channels,
            kernel_size=conv.kernel,
            strides=conv.stride,
            padding=conv.padding,
            use_bias=False,
            kernel_init=nnx.initializers.he_normal(),
            rngs=rngs,
        )
        self.norm = nnx.BatchNorm(conv.channels, momentum=0.9, epsilon=1e-3, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, H, W, channels in] -> [B, H', W', channels], smaller by stride and padding."""
        return jax.nn.relu(self.norm(self.convolution(x)))


class Pooling(nnx.Module):
    """A 3x3 pooling."""

    def __init__(self, c_in: int, kind: Pool):
        """Nothing to draw."""
        self.channels, self.kind = c_in, kind

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, H, W, C] -> [B, (H-1)/2, (W-1)/2, C] for "max", the same shape for "mean"."""
        if self.kind == "max":
            return nnx.max_pool(x, window_shape=(3, 3), strides=(2, 2))
        return nnx.avg_pool(x, window_shape=(3, 3), padding="SAME")


class Branches(nnx.Module):
    """Chains side by side."""

    def __init__(self, c_in: int, fork: Fork, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.chains = nnx.List(Chain(c_in, branch, rngs=rngs) for branch in fork.branches)
        self.channels = sum(chain.channels for chain in self.chains)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, H, W, channels in] -> [B, H', W', channels]."""
        return jnp.concatenate([chain(x) for chain in self.chains], axis=-1)


class Chain(nnx.Module):
    """Steps one after another."""

    def __init__(self, c_in: int, steps: Steps, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.channels = c_in
        self.steps = nnx.List([])
        for step in steps:
            self.steps.append(make_step(self.channels, step, rngs))
            self.channels = self.steps[-1].channels

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, H, W, channels in] -> [B, H', W', channels]."""
        for step in self.steps:
            x = step(x)
        return x


def make_step(c_in: int, step: Step, rngs: nnx.Rngs) -> nnx.Module:
    """The module of one step, whose `channels` are those of its output."""
    if isinstance(step, str):
        return Pooling(c_in, step)
    module = ConvNorm if isinstance(step, Conv) else Branches
    return module(c_in, step, rngs=rngs)


class Inception(nnx.Module):
    """A chain of steps and a classifier."""

    def __init__(self, config: InceptionConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.features = Chain(RGB, config.steps, rngs=rngs)
        self.classifier = nnx.Linear(self.features.channels, config.classes, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Logits [B, classes] of images [B, H, W, RGB]."""
        return self.classifier(self.features(images).mean(axis=(1, 2)))


def loss(model: Inception, batch: Batch) -> jax.Array:
    """Mean cross-entropy of the labels."""
    return cross_entropy(model(batch["images"]), batch["labels"]).mean()


def inception(config: InceptionConfig, *, batch: int, dtype: DType = "float32") -> TrainStep:
    """The train step of a configuration on `batch` square images.

    Raises:
        InputError: a batch that is not possible, or an unknown `dtype`.
    """
    check_size("batch", batch)
    shapes = {
        "images": ((batch, config.image, config.image, RGB), "float32"),
        "labels": ((batch,), "int32"),
    }
    return train_step(lambda rngs: Inception(config, rngs=rngs), loss, shapes, dtype=dtype)


def init(config: InceptionConfig, rng: jax.Array) -> State:
    """Concrete parameters, running statistics and optimizer state."""
    return inception(config, batch=1).init(rng)


def inception_v3(batch: int = 256, dtype: DType = "float32") -> Target:
    """Inception-v3 on ImageNet."""
    return inception(INCEPTION_V3, batch=batch, dtype=dtype).target


def inception_tiny(batch: int = 16, dtype: DType = "float32") -> Target:
    """A stem and three blocks on 32x32 images, all channels but RGB divisible by 8, for tests."""
    return inception(TINY, batch=batch, dtype=dtype).target


def inception_inference(
    config: InceptionConfig, *, batch: int, dtype: DType = "float32"
) -> InferenceTarget:
    """The forward pass of a configuration on `batch` square images, with running statistics.

    Raises:
        InputError: a batch that is not possible, or an unknown `dtype`.
    """
    check_size("batch", batch)
    shapes = {"images": ((batch, config.image, config.image, RGB), "float32")}
    return inference_step(
        lambda rngs: Inception(config, rngs=rngs),
        lambda model, given: model(given["images"]),
        shapes,
        dtype=dtype,
    ).target


def inception_v3_forward(batch: int = 1, dtype: DType = "float32") -> InferenceTarget:
    """Inception-v3 on ImageNet as an inference step."""
    return inception_inference(INCEPTION_V3, batch=batch, dtype=dtype)


def inception_small_forward(batch: int = 2, dtype: DType = "float32") -> InferenceTarget:
    """The network of `inception_tiny` as an inference step, for tests."""
    return inception_inference(TINY, batch=batch, dtype=dtype)
