"""A diffusion U-Net that predicts noise: DDPM's CIFAR-10 model (Ho et al. 2020).

Residual blocks with group norm, swish and dropout go down through the resolutions and up again; on
the way up every block also sees the output of its counterpart on the way down. A sinusoidal
embedding of the timestep is added in every block, and single-head self-attention follows the blocks
at one resolution. The loss is the mean squared error of the predicted noise. The CIFAR-10
configuration has 35,746,307 parameters. Departures: AdamW where the paper uses Adam; no moving
average of the parameters; the output kernel of an attention does not start at zero.
"""

from dataclasses import dataclass
import itertools

from flax import nnx
import jax
from jax import numpy as jnp
import numpy as np

from models.layers import Attention, AttentionConfig, dropout
from models.training import Batch, DType, State, Target, TrainStep, check_size, train_step


RGB = 3
TIMESTEPS = 1000
# The share of signal variance that is left at each timestep, under the paper's linear schedule.
SIGNAL = np.cumprod(1 - np.linspace(1e-4, 0.02, TIMESTEPS)).astype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnetConfig:
    """Sizes of a U-Net; a level has `channels` times its multiplier, and half the resolution.

    `depth` counts the residual blocks of a level on the way down (one more on the way up),
    `attention` is the resolution with self-attention.
    """

    image: int
    channels: int
    multipliers: tuple[int, ...]
    depth: int
    attention: int
    groups: int
    dropout: float


CIFAR = UnetConfig(
    image=32, channels=128, multipliers=(1, 2, 2, 2), depth=2, attention=16, groups=32, dropout=0.1
)
TINY = UnetConfig(
    image=16, channels=8, multipliers=(1, 2), depth=1, attention=8, groups=4, dropout=0.1
)


class Residual(nnx.Module):
    """Two 3x3 convolutions around a shortcut, with the timestep added between them."""

    def __init__(self, c_in: int, c_out: int, config: UnetConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.dropout = config.dropout
        self.first_norm = nnx.GroupNorm(c_in, num_groups=config.groups, rngs=rngs)
        self.first = nnx.Conv(c_in, c_out, kernel_size=(3, 3), rngs=rngs)
        self.time = nnx.Linear(4 * config.channels, c_out, rngs=rngs)
        self.second_norm = nnx.GroupNorm(c_out, num_groups=config.groups, rngs=rngs)
        zeros = nnx.initializers.zeros_init()
        self.second = nnx.Conv(c_out, c_out, kernel_size=(3, 3), kernel_init=zeros, rngs=rngs)
        self.shortcut = None if c_in == c_out else nnx.Linear(c_in, c_out, rngs=rngs)

    def __call__(self, x: jax.Array, time: jax.Array, key: jax.Array) -> jax.Array:
        """[B, H, W, channels in] -> [B, H, W, channels out]; time [B, 4 * channels]."""
        y = self.first(jax.nn.swish(self.first_norm(x)))
        y = y + self.time(jax.nn.swish(time))[:, None, None]
        y = dropout(jax.nn.swish(self.second_norm(y)), key, self.dropout)
        return self.second(y) + (x if self.shortcut is None else self.shortcut(x))


class PixelAttention(nnx.Module):
    """Self-attention over all pixels, around a shortcut."""

    def __init__(self, channels: int, config: UnetConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        sizes = AttentionConfig(
            d_model=channels, heads=1, d_head=channels, scale=channels**-0.5, use_bias=True
        )
        self.norm = nnx.GroupNorm(channels, num_groups=config.groups, rngs=rngs)
        self.attention = Attention(sizes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, H, W, C] -> [B, H, W, C]."""
        batch, height, width, channels = x.shape
        y = self.norm(x).reshape(batch, height * width, channels)
        return x + self.attention(y, y).reshape(x.shape)


class Block(nnx.Module):
    """A residual block, and attention at the resolution that has it."""

    def __init__(self, c_in: int, c_out: int, side: int, config: UnetConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`; `side` is the height of the image here."""
        self.residual = Residual(c_in, c_out, config, rngs=rngs)
        attends = side == config.attention
        self.attention = PixelAttention(c_out, config, rngs=rngs) if attends else None

    def __call__(self, x: jax.Array, time: jax.Array, key: jax.Array) -> jax.Array:
        """[B, H, W, channels in] -> [B, H, W, channels out]; time [B, 4 * channels]."""
        x = self.residual(x, time, key)
        return x if self.attention is None else self.attention(x)


class Down(nnx.Module):
    """Halves the resolution by a strided convolution."""

    def __init__(self, channels: int, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.conv = nnx.Conv(channels, channels, kernel_size=(3, 3), strides=2, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, H, W, C] -> [B, H/2, W/2, C]."""
        return self.conv(x)


class Up(nnx.Module):
    """Doubles the resolution by repeating pixels, then a convolution."""

    def __init__(self, channels: int, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.conv = nnx.Conv(channels, channels, kernel_size=(3, 3), rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, H, W, C] -> [B, 2H, 2W, C]."""
        return self.conv(x.repeat(2, axis=1).repeat(2, axis=2))


class Unet(nnx.Module):
    """Levels down, a middle, and levels up whose blocks take one output of the way down each."""

    def __init__(self, config: UnetConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.channels = width = config.channels
        self.time_first = nnx.Linear(width, 4 * width, rngs=rngs)
        self.time_second = nnx.Linear(4 * width, 4 * width, rngs=rngs)
        self.inputs = nnx.Conv(RGB, width, kernel_size=(3, 3), rngs=rngs)
        self.down, skips = nnx.List([]), [width]
        levels = [
            (config.channels * multiplier, config.image // 2**level)
            for level, multiplier in enumerate(config.multipliers)
        ]
        for level, (channels, side) in enumerate(levels):
            if level > 0:
                self.down.append(Down(width, rngs=rngs))
                skips.append(width)
            for _ in range(config.depth):
                self.down.append(Block(width, channels, side, config, rngs=rngs))
                width = channels
                skips.append(width)
        self.middle = Block(width, width, config.attention, config, rngs=rngs)
        self.middle_last = Residual(width, width, config, rngs=rngs)
        self.up = nnx.List([])
        for level, (channels, side) in reversed(list(enumerate(levels))):
            for _ in range(config.depth + 1):
                self.up.append(Block(width + skips.pop(), channels, side, config, rngs=rngs))
                width = channels
            if level > 0:
                self.up.append(Up(width, rngs=rngs))
        self.norm = nnx.GroupNorm(width, num_groups=config.groups, rngs=rngs)
        zeros = nnx.initializers.zeros_init()
        self.outputs = nnx.Conv(width, RGB, kernel_size=(3, 3), kernel_init=zeros, rngs=rngs)

    def __call__(self, images: jax.Array, timesteps: jax.Array, key: jax.Array) -> jax.Array:
        """Noise [B, H, W, RGB] in images [B, H, W, RGB] at timesteps [B]; `key` draws dropout."""
        keys = (jax.random.fold_in(key, block) for block in itertools.count())
        time = time_embedding(timesteps, self.channels).astype(images.dtype)
        time = self.time_second(jax.nn.swish(self.time_first(time)))
        x = self.inputs(images)
        skips = [x]
        for part in self.down:
            x = part(x) if isinstance(part, Down) else part(x, time, next(keys))
            skips.append(x)
        x = self.middle(x, time, next(keys))
        x = self.middle_last(x, time, next(keys))
        for part in self.up:
            if isinstance(part, Up):
                x = part(x)
            else:
                x = part(jnp.concatenate([x, skips.pop()], axis=-1), time, next(keys))
        return self.outputs(jax.nn.swish(self.norm(x)))


def time_embedding(timesteps: jax.Array, features: int) -> jax.Array:
    """[B, features] float32: sines and cosines of timesteps [B] at falling frequencies."""
    half = features // 2
    frequencies = jnp.exp(-jnp.log(10_000.0) * jnp.arange(half) / (half - 1))
    angles = timesteps[:, None] * frequencies
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def loss(model: Unet, batch: Batch) -> jax.Array:
    """Mean squared error of the noise predicted from images mixed with it."""
    images, noise = batch["images"], batch["noise"]
    signal = jnp.take(SIGNAL, batch["timesteps"])[:, None, None, None]
    noisy = jnp.sqrt(signal) * images + jnp.sqrt(1 - signal) * noise
    predicted = model(noisy.astype(images.dtype), batch["timesteps"], batch["rng"])
    return jnp.square((predicted - noise).astype(jnp.float32)).mean()


def unet(config: UnetConfig, *, batch: int, dtype: DType = "float32") -> TrainStep:
    """The train step of a configuration on `batch` square images, timesteps below `TIMESTEPS`.

    Raises:
        InputError: a batch that is not possible, or an unknown `dtype`.
    """
    check_size("batch", batch)
    images = ((batch, config.image, config.image, RGB), "float32")
    shapes = {
        "images": images,
        "noise": images,
        "timesteps": ((batch,), "int32"),
        "rng": ((), "key"),
    }
    return train_step(lambda rngs: Unet(config, rngs=rngs), loss, shapes, dtype=dtype)


def init(config: UnetConfig, rng: jax.Array) -> State:
    """Concrete parameters and optimizer state."""
    return unet(config, batch=1).init(rng)


def unet_cifar(batch: int = 128, dtype: DType = "float32") -> Target:
    """DDPM on CIFAR-10, with the batch of its paper."""
    return unet(CIFAR, batch=batch, dtype=dtype).target


def unet_tiny(batch: int = 16, dtype: DType = "float32") -> Target:
    """Two levels on 16x16 images, everything but RGB divisible by 8, for tests."""
    return unet(TINY, batch=batch, dtype=dtype).target
