"""SqueezeNet 1.0: an image classifier of fire modules, as an inference step (Iandola et al. 2016).

A fire module squeezes its input by a 1x1 convolution and expands it by a 1x1 and a 3x3 convolution
side by side, concatenated. Sizes are torchvision's `squeezenet1_0`. Departure: no dropout, which
inference does not do.
"""

from dataclasses import dataclass

from flax import nnx
import jax
from jax import numpy as jnp

from models.inference import InferenceStep, Target, inference_step
from models.training import DType, check_size


RGB = 3


@dataclass(frozen=True, slots=True)
class Fire:
    """Channels of the squeezing and of each of the two expanding convolutions."""

    squeezed: int
    expanded: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SqueezeNetConfig:
    """Sizes of a SqueezeNet; a "pool" among the steps halves the image."""

    image: int
    stem: int
    stem_kernel: int
    steps: tuple[Fire | str, ...]
    classes: int


SQUEEZENET = SqueezeNetConfig(
    image=224,
    stem=96,
    stem_kernel=7,
    steps=(
        "pool",
        Fire(16, 64),
        Fire(16, 64),
        Fire(32, 128),
        "pool",
        Fire(32, 128),
        Fire(48, 192),
        Fire(48, 192),
        Fire(64, 256),
        "pool",
        Fire(64, 256),
    ),
    classes=1000,
)
TINY = SqueezeNetConfig(
    image=32, stem=8, stem_kernel=3, steps=("pool", Fire(8, 16), Fire(8, 16)), classes=16
)


class FireModule(nnx.Module):
    """Squeeze, then expand twice side by side."""

    def __init__(self, c_in: int, fire: Fire, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.squeeze = nnx.Conv(c_in, fire.squeezed, (1, 1), rngs=rngs)
        self.expand1 = nnx.Conv(fire.squeezed, fire.expanded, (1, 1), rngs=rngs)
        self.expand3 = nnx.Conv(fire.squeezed, fire.expanded, (3, 3), rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, H, W, channels in] -> [B, H, W, 2 expanded]."""
        x = jax.nn.relu(self.squeeze(x))
        sides = (self.expand1(x), self.expand3(x))
        return jnp.concatenate([jax.nn.relu(side) for side in sides], axis=-1)


class SqueezeNet(nnx.Module):
    """A stem, fire modules and poolings, and a convolution to classes."""

    def __init__(self, config: SqueezeNetConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.kinds = tuple("pool" if step == "pool" else "fire" for step in config.steps)
        kernel = (config.stem_kernel, config.stem_kernel)
        self.stem = nnx.Conv(RGB, config.stem, kernel, strides=2, padding="VALID", rngs=rngs)
        channels, modules = config.stem, []
        for step in config.steps:
            if isinstance(step, Fire):
                modules.append(FireModule(channels, step, rngs=rngs))
                channels = 2 * step.expanded
        self.fires = nnx.List(modules)
        self.classifier = nnx.Conv(channels, config.classes, (1, 1), rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Logits [B, classes] of images [B, H, W, RGB]."""
        x, fires = jax.nn.relu(self.stem(images)), iter(self.fires)
        for kind in self.kinds:
            x = nnx.max_pool(x, (3, 3), (2, 2)) if kind == "pool" else next(fires)(x)
        return jax.nn.relu(self.classifier(x)).mean(axis=(1, 2))


def squeezenet_step(
    config: SqueezeNetConfig, *, batch: int, dtype: DType = "float32"
) -> InferenceStep:
    """The inference step of a configuration on `batch` square images.

    Raises:
        InputError: a batch that is not possible, or an unknown `dtype`.
    """
    check_size("batch", batch)
    shapes = {"images": ((batch, config.image, config.image, RGB), "float32")}
    return inference_step(
        lambda rngs: SqueezeNet(config, rngs=rngs),
        lambda model, given: model(given["images"]),
        shapes,
        dtype=dtype,
    )


def squeezenet(batch: int = 1, dtype: DType = "float32") -> Target:
    """SqueezeNet 1.0 on ImageNet."""
    return squeezenet_step(SQUEEZENET, batch=batch, dtype=dtype).target


def squeezenet_small(batch: int = 2, dtype: DType = "float32") -> Target:
    """A stem and two fire modules on 32x32 images, for tests."""
    return squeezenet_step(TINY, batch=batch, dtype=dtype).target
