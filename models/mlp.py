"""MLP: equal linear layers with ReLU and a softmax, the smallest model worth parallelizing.

Its plans can be written down by hand. With kernels [width, width] and batch B, data parallelism
all-reduces 4 * width^2 bytes of gradient per layer; splitting columns and rows by turns all-reduces
4 * B * width bytes of activation per two layers, forward and again backward.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpConfig:
    """Sizes of an MLP; `depth` counts the hidden layers, all kernels but the last are square."""

    depth: int
    width: int
    classes: int


MLP = MlpConfig(depth=8, width=8192, classes=1024)
TINY = MlpConfig(depth=2, width=64, classes=16)


class Mlp(nnx.Module):
    """`depth` hidden layers and an output layer."""

    def __init__(self, config: MlpConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        init = nnx.initializers.he_normal()
        self.hidden = nnx.List(
            nnx.Linear(config.width, config.width, kernel_init=init, rngs=rngs)
            for _ in range(config.depth)
        )
        self.output = nnx.Linear(config.width, config.classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits [B, classes] from x [B, width]."""
        for linear in self.hidden:
            x = jax.nn.relu(linear(x))
        return self.output(x)


def loss(model: Mlp, batch: Batch) -> jax.Array:
    """Mean cross-entropy of the labels."""
    return cross_entropy(model(batch["features"]), batch["labels"]).mean()


def mlp_step(config: MlpConfig, *, batch: int, dtype: DType = "float32") -> TrainStep:
    """The train step of a configuration on [batch, width] features.

    Raises:
        InputError: a batch that is not possible, or an unknown `dtype`.
    """
    check_size("batch", batch)
    shapes = {"features": ((batch, config.width), "float32"), "labels": ((batch,), "int32")}
    return train_step(lambda rngs: Mlp(config, rngs=rngs), loss, shapes, dtype=dtype)


def init(config: MlpConfig, rng: jax.Array) -> State:
    """Concrete parameters and optimizer state."""
    return mlp_step(config, batch=1).init(rng)


def mlp(batch: int = 1024, dtype: DType = "float32") -> Target:
    """Eight hidden layers of width 8192: 545M parameters."""
    return mlp_step(MLP, batch=batch, dtype=dtype).target


def mlp_tiny(batch: int = 16, dtype: DType = "float32") -> Target:
    """Two hidden layers, everything divisible by 8, for tests."""
    return mlp_step(TINY, batch=batch, dtype=dtype).target
