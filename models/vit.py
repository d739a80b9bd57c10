"""ViT: an image classifier by a transformer over patches (Dosovitskiy et al. 2021), sizes B and L.

Images are cut into patches, embedded linearly, given a class token and learned positions, and run
through a pre-norm encoder; the class is read off the class token. Departures: the classifier of
ImageNet's 1000 classes is one linear layer, where the paper pre-trains with a hidden layer; AdamW
where the paper uses Adam with an L2 penalty; dropout is off unless asked for, and is applied to the
embedded patches and to the output of each attention and each feed-forward, not inside the latter.
"""

from dataclasses import dataclass, replace

from flax import nnx
import jax
from jax import numpy as jnp

from models.flash import AttentionBy
from models.layers import (
    Attention,
    AttentionConfig,
    FeedForward,
    Layers,
    apply_layers,
    dropout,
    make_layers,
    split_key,
)
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
class VitConfig:
    """Sizes of a ViT; `patch` is the side of a square patch, d_ff is 4 * d_model."""

    depth: int
    d_model: int
    heads: int
    image: int = 224
    patch: int = 16
    classes: int = 1000
    dropout: float = 0.0
    layers: Layers = "unrolled"
    attention: AttentionBy = "written"


VIT_B16 = VitConfig(depth=12, d_model=768, heads=12)
VIT_L16 = VitConfig(depth=24, d_model=1024, heads=16)
TINY = VitConfig(depth=2, d_model=64, heads=8, image=32, patch=8, classes=16)


class Block(nnx.Module):
    """One pre-norm layer."""

    def __init__(self, config: VitConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        d_head = config.d_model // config.heads
        attention = AttentionConfig(
            d_model=config.d_model,
            heads=config.heads,
            d_head=d_head,
            scale=d_head**-0.5,
            use_bias=True,
            by=config.attention,
        )
        self.dropout = config.dropout
        self.attention_norm = nnx.LayerNorm(config.d_model, rngs=rngs)
        self.attention = Attention(attention, rngs=rngs)
        self.mlp_norm = nnx.LayerNorm(config.d_model, rngs=rngs)
        self.mlp = FeedForward(
            config.d_model, 4 * config.d_model, activation=jax.nn.gelu, use_bias=True, rngs=rngs
        )

    def __call__(self, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """[B, S, d_model] -> [B, S, d_model]; `key`, if any, draws what is dropped."""
        attention_key, mlp_key = split_key(key, 2)
        y = self.attention_norm(x)
        x = x + dropout(self.attention(y, y), attention_key, self.dropout)
        return x + dropout(self.mlp(self.mlp_norm(x)), mlp_key, self.dropout)


class Vit(nnx.Module):
    """Patch embedding, `depth` blocks, a final norm, and a classifier."""

    def __init__(self, config: VitConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        patch = (config.patch, config.patch)
        length = (config.image // config.patch) ** 2 + 1
        normal = nnx.initializers.normal(0.02)
        self.dropout = config.dropout
        self.patches = nnx.Conv(RGB, config.d_model, kernel_size=patch, strides=patch, rngs=rngs)
        self.class_token = nnx.Param(jnp.zeros((1, 1, config.d_model)))
        self.positions = nnx.Param(normal(rngs.params(), (length, config.d_model)))
        self.layers = make_layers(
            lambda rngs: Block(config, rngs=rngs), config.depth, config.layers, rngs
        )
        self.norm = nnx.LayerNorm(config.d_model, rngs=rngs)
        self.classifier = nnx.Linear(config.d_model, config.classes, rngs=rngs)

    def __call__(self, images: jax.Array, key: jax.Array | None) -> jax.Array:
        """Logits [B, classes] of images [B, H, W, RGB]; `key`, if any, draws what is dropped."""
        patches = self.patches(images)
        batch, *_, d_model = patches.shape
        token = jnp.broadcast_to(self.class_token[...], (batch, 1, d_model))
        x = jnp.concatenate([token, patches.reshape(batch, -1, d_model)], axis=1)
        patches_key, layers_key = split_key(key, 2)
        x = dropout(x + self.positions[...], patches_key, self.dropout)
        x = apply_layers(self.layers, x, key=layers_key)
        return self.classifier(self.norm(x[:, 0]))


def loss(model: Vit, batch: Batch) -> jax.Array:
    """Mean cross-entropy of the labels."""
    return cross_entropy(model(batch["images"], batch.get("rng")), batch["labels"]).mean()


def vit(config: VitConfig, *, batch: int, dtype: DType = "float32") -> TrainStep:
    """The train step of a configuration on `batch` square images; with dropout it takes a key.

    Raises:
        InputError: a batch that is not possible, or an unknown `layers` or `dtype`.
    """
    check_size("batch", batch)
    shapes = {
        "images": ((batch, config.image, config.image, RGB), "float32"),
        "labels": ((batch,), "int32"),
    }
    if config.dropout:
        shapes["rng"] = ((), "key")
    return train_step(lambda rngs: Vit(config, rngs=rngs), loss, shapes, dtype=dtype)


def init(config: VitConfig, rng: jax.Array) -> State:
    """Concrete parameters and optimizer state."""
    return vit(config, batch=1).init(rng)


def vit_b16(
    batch: int = 4096,
    layers: Layers = "unrolled",
    dtype: DType = "float32",
    attention: AttentionBy = "written",
) -> Target:
    """ViT-B/16 on ImageNet, with the batch of its paper."""
    return vit(
        replace(VIT_B16, layers=layers, attention=attention), batch=batch, dtype=dtype
    ).target


def vit_l16(
    batch: int = 4096,
    layers: Layers = "unrolled",
    dtype: DType = "float32",
    attention: AttentionBy = "written",
) -> Target:
    """ViT-L/16 on ImageNet, with the batch of its paper."""
    return vit(
        replace(VIT_L16, layers=layers, attention=attention), batch=batch, dtype=dtype
    ).target


def vit_tiny(
    batch: int = 16,
    layers: Layers = "unrolled",
    dtype: DType = "float32",
    attention: AttentionBy = "written",
) -> Target:
    """Two layers over 16 patches and the class token, features divisible by 8, for tests."""
    return vit(replace(TINY, layers=layers, attention=attention), batch=batch, dtype=dtype).target
