"""ResNet-50 and ResNet-101: residual image classifiers with batch norm (He et al. 2016).

A strided stem, four stages of bottleneck blocks (1x1, 3x3, 1x1 convolutions around a shortcut), a
mean over the pixels and one linear layer. The first block of a stage projects its shortcut.
Departures: the stride of a stage is on its 3x3 convolution ("v1.5"), not on the 1x1 before it;
AdamW where the paper uses SGD with momentum. Batch norm is over the whole batch, not over one
device's part.
"""

from dataclasses import dataclass

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
EXPANSION = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ResNetConfig:
    """Sizes of a ResNet; `blocks` holds the depths of the stages, whose widths double."""

    image: int
    width: int
    blocks: tuple[int, ...]
    classes: int


RESNET_50 = ResNetConfig(image=224, width=64, blocks=(3, 4, 6, 3), classes=1000)
RESNET_101 = ResNetConfig(image=224, width=64, blocks=(3, 4, 23, 3), classes=1000)
TINY = ResNetConfig(image=32, width=8, blocks=(1, 2), classes=16)


class ConvNorm(nnx.Module):
    """A convolution without bias, then batch norm."""

    def __init__(self, c_in: int, c_out: int, *, kernel: int, stride: int = 1, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.convolution = nnx.Conv(
            c_in,
            c_out,
            kernel_size=(kernel, kernel),
            strides=stride,
            padding=kernel // 2,
            use_bias=False,
            kernel_init=nnx.initializers.he_normal(),
            rngs=rngs,
        )
        self.norm = nnx.BatchNorm(c_out, momentum=0.9, epsilon=1e-5, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, H, W, channels in] -> [B, H/stride, W/stride, channels out]."""
        return self.norm(self.convolution(x))


class Bottleneck(nnx.Module):
    """1x1, 3x3 and 1x1 convolutions around a shortcut, projected where the shape changes."""

    def __init__(self, c_in: int, width: int, *, stride: int, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        c_out = EXPANSION * width
        self.reduce = ConvNorm(c_in, width, kernel=1, rngs=rngs)
        self.spatial = ConvNorm(width, width, kernel=3, stride=stride, rngs=rngs)
        self.expand = ConvNorm(width, c_out, kernel=1, rngs=rngs)
        project = c_in != c_out or stride != 1
        self.shortcut = (
            ConvNorm(c_in, c_out, kernel=1, stride=stride, rngs=rngs) if project else None
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, H, W, channels in] -> [B, H/stride, W/stride, EXPANSION * width]."""
        y = jax.nn.relu(self.reduce(x))
        y = jax.nn.relu(self.spatial(y))
        shortcut = x if self.shortcut is None else self.shortcut(x)
        return jax.nn.relu(self.expand(y) + shortcut)


class ResNet(nnx.Module):
    """Stem, stages of bottleneck blocks, and a classifier."""

    def __init__(self, config: ResNetConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.stem = ConvNorm(RGB, config.width, kernel=7, stride=2, rngs=rngs)
        self.blocks = nnx.List([])
        channels = config.width
        for stage, depth in enumerate(config.blocks):
            width = config.width * 2**stage
            for block in range(depth):
                stride = 2 if stage > 0 and block == 0 else 1
                self.blocks.append(Bottleneck(channels, width, stride=stride, rngs=rngs))
                channels = EXPANSION * width
        self.classifier = nnx.Linear(channels, config.classes, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Logits [B, classes] of images [B, H, W, RGB]."""
        x = jax.nn.relu(self.stem(images))
        x = nnx.max_pool(x, window_shape=(3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
        for block in self.blocks:
            x = block(x)
        return self.classifier(x.mean(axis=(1, 2)))


def loss(model: ResNet, batch: Batch) -> jax.Array:
    """Mean cross-entropy of the labels."""
    return cross_entropy(model(batch["images"]), batch["labels"]).mean()


def resnet(config: ResNetConfig, *, batch: int, dtype: DType = "float32") -> TrainStep:
    """The train step of a configuration on `batch` square images.

    Raises:
        InputError: a batch that is not possible, or an unknown `dtype`.
    """
    check_size("batch", batch)
    shapes = {
        "images": ((batch, config.image, config.image, RGB), "float32"),
        "labels": ((batch,), "int32"),
    }
    return train_step(lambda rngs: ResNet(config, rngs=rngs), loss, shapes, dtype=dtype)


def init(config: ResNetConfig, rng: jax.Array) -> State:
    """Concrete parameters, running statistics and optimizer state."""
    return resnet(config, batch=1).init(rng)


def resnet_50(batch: int = 256, dtype: DType = "float32") -> Target:
    """ResNet-50 on ImageNet, with the batch of its paper."""
    return resnet(RESNET_50, batch=batch, dtype=dtype).target


def resnet_101(batch: int = 256, dtype: DType = "float32") -> Target:
    """ResNet-101 on ImageNet, with the batch of its paper."""
    return resnet(RESNET_101, batch=batch, dtype=dtype).target


def resnet_tiny(batch: int = 16, dtype: DType = "float32") -> Target:
    """Three blocks on 32x32 images, everything but RGB divisible by 8, for tests."""
    return resnet(TINY, batch=batch, dtype=dtype).target
