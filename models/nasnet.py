"""NASNet-A: an image classifier of searched cells, as an inference step (Zoph et al. 2018).

A cell reads the two results before it, squeezes each to F channels, combines five pairs of them or
of what it has made, and concatenates. A separable convolution is applied twice in a row, as in the
paper. Stem: a convolution and two reduction cells; then three times N normal cells, with a
reduction cell that doubles F between. Where the result before the last has another size it is
read with stride 2 by a 1x1 convolution, where the paper has two of half the channels, shifted by a
pixel.
"""

from dataclasses import dataclass

from flax import nnx
import jax
from jax import numpy as jnp

from models.inference import InferenceStep, Target, inference_step
from models.separable import PointwiseConv, SeparableConv, pool
from models.training import DType, check_size


RGB = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class NASNetConfig:
    """Sizes of a NASNet: F `filters` of the first normal cells, N `repeats`."""

    image: int
    stem: int
    filters: int
    repeats: int
    classes: int


NASNET_LARGE = NASNetConfig(image=331, stem=96, filters=168, repeats=6, classes=1000)
TINY = NASNetConfig(image=32, stem=8, filters=8, repeats=1, classes=16)


class Twice(nnx.Module):
    """A separable convolution applied twice; the first one has the stride."""

    def __init__(self, channels: int, size: int, stride: int = 1, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.first = SeparableConv(channels, channels, size, stride, rngs=rngs)
        self.second = SeparableConv(channels, channels, size, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, H, W, C] -> [B, H / stride, W / stride, C]."""
        return self.second(self.first(x))


class Cell(nnx.Module):
    """What both cells have: the two inputs squeezed to equal sizes."""

    def __init__(self, before: int, last: int, filters: int, is_halved: bool, rngs: nnx.Rngs):  # noqa: FBT001
        """Draw the parameters from `rngs`; `is_halved` says that the result before the last is of
        twice the last one's size.
        """
        self.squeeze_before = PointwiseConv(before, filters, 2 if is_halved else 1, rngs=rngs)
        self.squeeze_last = PointwiseConv(last, filters, rngs=rngs)


class NormalCell(Cell):
    """Keeps the image's size; 6F channels."""

    def __init__(self, before: int, last: int, filters: int, is_halved: bool, *, rngs: nnx.Rngs):  # noqa: FBT001
        """Draw the parameters from `rngs`."""
        super().__init__(before, last, filters, is_halved, rngs)
        self.channels = 6 * filters
        sizes = (5, 3, 5, 3, 3)
        self.twice = nnx.List(Twice(filters, size, rngs=rngs) for size in sizes)

    def __call__(self, before: jax.Array, last: jax.Array) -> jax.Array:
        """[B, H, W, 6F] of the two results before."""
        p, h, (a, b, c, d, e) = self.squeeze_before(before), self.squeeze_last(last), self.twice
        made = (a(h) + b(p), c(p) + d(p), pool("mean", h) + p, 2 * pool("mean", p), e(h) + h)
        return jnp.concatenate([p, *made], axis=-1)


class ReductionCell(Cell):
    """Halves the image; 4F channels."""

    def __init__(self, before: int, last: int, filters: int, is_halved: bool, *, rngs: nnx.Rngs):  # noqa: FBT001
        """Draw the parameters from `rngs`."""
        super().__init__(before, last, filters, is_halved, rngs)
        self.channels = 4 * filters
        self.twice = nnx.List(Twice(filters, size, 2, rngs=rngs) for size in (5, 7, 7, 5))
        self.flat = Twice(filters, 3, rngs=rngs)

    def __call__(self, before: jax.Array, last: jax.Array) -> jax.Array:
        """[B, H / 2, W / 2, 4F] of the two results before."""
        p, h, (a, b, c, d) = self.squeeze_before(before), self.squeeze_last(last), self.twice
        first = a(h) + b(p)
        second = pool("max", h, 2) + c(p)
        third = pool("mean", h, 2) + d(p)
        fourth = pool("mean", first) + second
        fifth = self.flat(first) + pool("max", h, 2)
        return jnp.concatenate([second, third, fourth, fifth], axis=-1)


class NASNet(nnx.Module):
    """A stem, cells and a classifier."""

    def __init__(self, config: NASNetConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.stem = nnx.Conv(
            RGB, config.stem, (3, 3), strides=2, padding="VALID", use_bias=False, rngs=rngs
        )
        self.norm = nnx.BatchNorm(config.stem, momentum=0.9, epsilon=1e-3, rngs=rngs)
        f, normal = config.filters, (NormalCell,) * config.repeats
        kinds = [
            ReductionCell,
            ReductionCell,
            *normal,
            ReductionCell,
            *normal,
            ReductionCell,
            *normal,
        ]
        filters = [f // 4, f // 2] + [
            f * 2**part for part in range(3) for _ in range(config.repeats + (part > 0))
        ]
        before, last, is_halved, cells = config.stem, config.stem, False, []
        for kind, width in zip(kinds, filters, strict=True):
            cells.append(kind(before, last, width, is_halved, rngs=rngs))
            before, last, is_halved = last, cells[-1].channels, kind is ReductionCell
        self.cells = nnx.List(cells)
        self.classifier = nnx.Linear(last, config.classes, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Logits [B, classes] of images [B, H, W, RGB]."""
        before = last = self.norm(self.stem(images))
        for cell in self.cells:
            before, last = last, cell(before, last)
        return self.classifier(jax.nn.relu(last).mean(axis=(1, 2)))


def nasnet_step(config: NASNetConfig, *, batch: int, dtype: DType = "float32") -> InferenceStep:
    """The inference step of a configuration on `batch` square images.

    Raises:
        InputError: a batch that is not possible, or an unknown `dtype`.
    """
    check_size("batch", batch)
    shapes = {"images": ((batch, config.image, config.image, RGB), "float32")}
    return inference_step(
        lambda rngs: NASNet(config, rngs=rngs),
        lambda model, given: model(given["images"]),
        shapes,
        dtype=dtype,
    )


def nasnet_large(batch: int = 1, dtype: DType = "float32") -> Target:
    """NASNet-A (6 @ 4032) on ImageNet."""
    return nasnet_step(NASNET_LARGE, batch=batch, dtype=dtype).target


def nasnet_small(batch: int = 2, dtype: DType = "float32") -> Target:
    """One normal cell between reductions, on 32x32 images, for tests."""
    return nasnet_step(TINY, batch=batch, dtype=dtype).target
