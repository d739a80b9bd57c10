"""AlexNet: a convolutional image classifier (Krizhevsky et al. 2012).

Five convolutions with ReLU, some followed by a 3x3 max-pool, then three fully connected layers with
dropout before the first two. This is the single-tower network of "One weird trick for parallelizing
convolutional neural networks" (Krizhevsky 2014) in torchvision's sizes. Departures: no local
response normalization; AdamW where the paper uses SGD with momentum.
"""

from dataclasses import dataclass
import math

from flax import nnx
import jax

from models.layers import dropout
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """Sizes of one convolution, whose kernel is square; `pool` puts a max-pool behind it."""

    channels: int
    kernel: int
    stride: int = 1
    padding: int
    pool: bool = False

    def side(self, image: int) -> int:
        """Height of the output for an input of height `image`."""
        side = (image + 2 * self.padding - self.kernel) // self.stride + 1
        return (side - 3) // 2 + 1 if self.pool else side


@dataclass(frozen=True, slots=True, kw_only=True)
class AlexNetConfig:
    """Sizes of an AlexNet; `dropout` is the rate before every hidden layer."""

    image: int
    convolutions: tuple[Convolution, ...]
    hidden: tuple[int, ...]
    classes: int
    dropout: float = 0.5


ALEXNET = AlexNetConfig(
    image=224,
    convolutions=(
        Convolution(channels=64, kernel=11, stride=4, padding=2, pool=True),
        Convolution(channels=192, kernel=5, padding=2, pool=True),
        Convolution(channels=384, kernel=3, padding=1),
        Convolution(channels=256, kernel=3, padding=1),
        Convolution(channels=256, kernel=3, padding=1, pool=True),
    ),
    hidden=(4096, 4096),
    classes=1000,
)
TINY = AlexNetConfig(
    image=32,
    convolutions=(
        Convolution(channels=8, kernel=5, stride=2, padding=2, pool=True),
        Convolution(channels=16, kernel=3, padding=1, pool=True),
    ),
    hidden=(64, 64),
    classes=16,
)


class ConvPool(nnx.Module):
    """A convolution with ReLU, and a max-pool if the configuration asks for one."""

    def __init__(self, c_in: int, config: Convolution, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.pool = config.pool
        self.convolution = nnx.Conv(
            c_in,
            config.channels,
            kernel_size=(config.kernel, config.kernel),
            strides=config.stride,
            padding=config.padding,
            kernel_init=nnx.initializers.he_normal(),
            rngs=rngs,
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, H, W, channels in] -> [B, side(H), side(W), channels out]."""
        x = jax.nn.relu(self.convolution(x))
        return nnx.max_pool(x, window_shape=(3, 3), strides=(2, 2)) if self.pool else x


class AlexNet(nnx.Module):
    """Convolutions and a classifier."""

    def __init__(self, config: AlexNetConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.dropout = config.dropout
        self.convolutions = nnx.List([])
        channels, side = RGB, config.image
        for convolution in config.convolutions:
            self.convolutions.append(ConvPool(channels, convolution, rngs=rngs))
            channels, side = convolution.channels, convolution.side(side)
        sizes = (side**2 * channels, *config.hidden, config.classes)
        init = nnx.initializers.he_normal()
        self.classifier = nnx.List(
            nnx.Linear(d_in, d_out, kernel_init=init, rngs=rngs)
            for d_in, d_out in zip(sizes, sizes[1:], strict=False)
        )

    def __call__(self, images: jax.Array, key: jax.Array) -> jax.Array:
        """Logits [B, classes] of images [B, H, W, RGB]; `key` draws what is dropped."""
        x = images
        for convolution in self.convolutions:
            x = convolution(x)
        x = x.reshape(x.shape[0], math.prod(x.shape[1:]))
        *hidden, last = self.classifier
        for layer, linear in enumerate(hidden):
            x = dropout(x, jax.random.fold_in(key, layer), self.dropout)
            x = jax.nn.relu(linear(x))
        return last(x)


def loss(model: AlexNet, batch: Batch) -> jax.Array:
    """Mean cross-entropy of the labels."""
    return cross_entropy(model(batch["images"], batch["rng"]), batch["labels"]).mean()


def alexnet_step(config: AlexNetConfig, *, batch: int, dtype: DType = "float32") -> TrainStep:
    """The train step of a configuration on `batch` square images.

    Raises:
        InputError: a batch that is not possible, or an unknown `dtype`.
    """
    check_size("batch", batch)
    shapes = {
        "images": ((batch, config.image, config.image, RGB), "float32"),
        "labels": ((batch,), "int32"),
        "rng": ((), "key"),
    }
    return train_step(lambda rngs: AlexNet(config, rngs=rngs), loss, shapes, dtype=dtype)


def init(config: AlexNetConfig, rng: jax.Array) -> State:
    """Concrete parameters and optimizer state."""
    return alexnet_step(config, batch=1).init(rng)


def alexnet(batch: int = 256, dtype: DType = "float32") -> Target:
    """AlexNet on ImageNet."""
    return alexnet_step(ALEXNET, batch=batch, dtype=dtype).target


def alexnet_tiny(batch: int = 16, dtype: DType = "float32") -> Target:
    """Two convolutions on 32x32 images, all features but RGB divisible by 8, for tests."""
    return alexnet_step(TINY, batch=batch, dtype=dtype).target
