"""LeNet-5: a small convolutional classifier of handwritten digits (LeCun et al. 1998).

Two 5x5 convolutions with tanh, each followed by a 2x2 mean-pool, then three fully connected layers.
The first convolution keeps the size of a 28x28 image, which is the paper's 32x32 with its border.
Departures: the poolings have no parameters; the second convolution sees all channels of the first;
the output is linear with cross-entropy, not radial basis functions; tanh is not scaled; AdamW where
the paper uses a stochastic Levenberg-Marquardt method.
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


GREY = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LeNetConfig:
    """Sizes of a LeNet; `channels` are those of the two convolutions."""

    image: int
    channels: tuple[int, int]
    hidden: tuple[int, ...]
    classes: int


LENET_5 = LeNetConfig(image=28, channels=(6, 16), hidden=(120, 84), classes=10)
TINY = LeNetConfig(image=32, channels=(8, 16), hidden=(64, 32), classes=16)


class LeNet(nnx.Module):
    """Two convolutions with pooling, and a classifier."""

    def __init__(self, config: LeNetConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        first, second = config.channels
        self.first = nnx.Conv(GREY, first, kernel_size=(5, 5), rngs=rngs)
        self.second = nnx.Conv(first, second, kernel_size=(5, 5), padding="VALID", rngs=rngs)
        side = (config.image // 2 - 4) // 2
        sizes = (side**2 * second, *config.hidden, config.classes)
        self.classifier = nnx.List(
            nnx.Linear(d_in, d_out, rngs=rngs)
            for d_in, d_out in zip(sizes, sizes[1:], strict=False)
        )

    def __call__(self, images: jax.Array) -> jax.Array:
        """Logits [B, classes] of images [B, H, W, GREY]."""
        x = images
        for convolution in (self.first, self.second):
            x = jax.nn.tanh(convolution(x))
            x = nnx.avg_pool(x, window_shape=(2, 2), strides=(2, 2))
        x = x.reshape(x.shape[0], math.prod(x.shape[1:]))
        *hidden, last = self.classifier
        for linear in hidden:
            x = jax.nn.tanh(linear(x))
        return last(x)


def loss(model: LeNet, batch: Batch) -> jax.Array:
    """Mean cross-entropy of the labels."""
    return cross_entropy(model(batch["images"]), batch["labels"]).mean()


def lenet_step(config: LeNetConfig, *, batch: int, dtype: DType = "float32") -> TrainStep:
    """The train step of a configuration on `batch` square grey images.

    Raises:
        InputError: a batch that is not possible, or an unknown `dtype`.
    """
    check_size("batch", batch)
    shapes = {
        "images": ((batch, config.image, config.image, GREY), "float32"),
        "labels": ((batch,), "int32"),
    }
    return train_step(lambda rngs: LeNet(config, rngs=rngs), loss, shapes, dtype=dtype)


def init(config: LeNetConfig, rng: jax.Array) -> State:
    """Concrete parameters and optimizer state."""
    return lenet_step(config, batch=1).init(rng)


def lenet(batch: int = 128, dtype: DType = "float32") -> Target:
    """LeNet-5 on digits; its labels are below 10."""
    return lenet_step(LENET_5, batch=batch, dtype=dtype).target


def lenet_tiny(batch: int = 16, dtype: DType = "float32") -> Target:
    """A variant on 32x32 images, all features but GREY divisible by 8, for tests."""
    return lenet_step(TINY, batch=batch, dtype=dtype).target
