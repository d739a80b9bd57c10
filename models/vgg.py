"""VGG-19: a convolutional image classifier (Simonyan and Zisserman 2015, configuration E).

Blocks of 3x3 convolutions with ReLU, each block closed by a 2x2 max-pool, then fully connected
layers. Nearly all parameters are in the first of those, nearly all work in the convolutions.
Departures: AdamW where the paper uses SGD with momentum; no dropout between the fully connected
layers.
"""

from dataclasses import dataclass
import math

from flax import nnx
import jax

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
class VggConfig:
    """Sizes of a VGG; `blocks` holds, per block, the output channels of its convolutions."""

    image: int
    blocks: tuple[tuple[int, ...], ...]
    hidden: tuple[int, ...]
    classes: int


VGG_19 = VggConfig(
    image=224,
    blocks=((64,) * 2, (128,) * 2, (256,) * 4, (512,) * 4, (512,) * 4),
    hidden=(4096, 4096),
    classes=1000,
)
TINY = VggConfig(image=32, blocks=((8,), (16,), (32, 32)), hidden=(64,), classes=16)


class Block(nnx.Module):
    """3x3 convolutions with ReLU, then a 2x2 max-pool."""

    def __init__(self, channels: tuple[int, ...], *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`; `channels` are the input's and each convolution's."""
        init = nnx.initializers.he_normal()
        self.convolutions = nnx.List(
            nnx.Conv(c_in, c_out, kernel_size=(3, 3), kernel_init=init, rngs=rngs)
            for c_in, c_out in zip(channels, channels[1:], strict=False)
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, H, W, channels in] -> [B, H/2, W/2, channels out]."""
        for convolution in self.convolutions:
            x = jax.nn.relu(convolution(x))
        return nnx.max_pool(x, window_shape=(2, 2), strides=(2, 2))


class Vgg(nnx.Module):
    """Convolution blocks and a classifier."""

    def __init__(self, config: VggConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        inputs = (RGB, *(block[-1] for block in config.blocks))
        self.blocks = nnx.List(
            Block((c_in, *block), rngs=rngs)
            for c_in, block in zip(inputs, config.blocks, strict=False)
        )
        pixels = (config.image // 2 ** len(config.blocks)) ** 2
        sizes = (pixels * inputs[-1], *config.hidden, config.classes)
        init = nnx.initializers.he_normal()
        self.classifier = nnx.List(
            nnx.Linear(d_in, d_out, kernel_init=init, rngs=rngs)
            for d_in, d_out in zip(sizes, sizes[1:], strict=False)
        )

    def __call__(self, images: jax.Array) -> jax.Array:
        """Logits [B, classes] of images [B, H, W, RGB]."""
        x = images
        for block in self.blocks:
            x = block(x)
        x = x.reshape(x.shape[0], math.prod(x.shape[1:]))
        *hidden, last = self.classifier
        for linear in hidden:
            x = jax.nn.relu(linear(x))
        return last(x)


def loss(model: Vgg, batch: Batch) -> jax.Array:
    """Mean cross-entropy of the labels."""
    return cross_entropy(model(batch["images"]), batch["labels"]).mean()


def vgg(config: VggConfig, *, batch: int, dtype: DType = "float32") -> TrainStep:
    """The train step of a configuration on `batch` square images.

    Raises:
        InputError: a batch that is not possible, or an unknown `dtype`.
    """
    check_size("batch", batch)
    shapes = {
        "images": ((batch, config.image, config.image, RGB), "float32"),
        "labels": ((batch,), "int32"),
    }
    return train_step(lambda rngs: Vgg(config, rngs=rngs), loss, shapes, dtype=dtype)


def init(config: VggConfig, rng: jax.Array) -> State:
    """Concrete parameters and optimizer state."""
    return vgg(config, batch=1).init(rng)


def vgg_19(batch: int = 256, dtype: DType = "float32") -> Target:
    """VGG-19 on ImageNet, with the batch of its paper."""
    return vgg(VGG_19, batch=batch, dtype=dtype).target


def vgg_tiny(batch: int = 16, dtype: DType = "float32") -> Target:
    """Four convolutions on 32x32 images, everything but RGB divisible by 8, for tests."""
    return vgg(TINY, batch=batch, dtype=dtype).target
