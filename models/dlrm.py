"""DLRM: a click-through-rate model with large embedding tables (Naumov et al. 2019).

A bottom MLP turns 13 dense features into a vector, every categorical feature looks one up in its
own table, and the dot products of all pairs of these vectors join the dense one as the input of the
top MLP. Nearly all parameters are in the tables. Kaggle has the tables and MLPs of the paper's code
for the Criteo Kaggle data, large those of MLPerf for the Criteo Terabyte data (tables cut at 40
million rows). Departures: Kaggle's four tables of less than 16 rows get 16, 32 rows more in all;
all tables of large are rounded up to a multiple of 1024 rows, so that they can be sharded; one
index per feature; AdamW with dense gradients of the tables where the paper's code uses SGD with
sparse ones. The linear layers' initialization is Flax's.
"""

from dataclasses import dataclass

from flax import nnx
import jax
from jax import numpy as jnp
import numpy as np
import optax

from models.layers import Embedding
from models.training import (
    SMALLEST_VOCABULARY,
    Batch,
    DType,
    State,
    Target,
    TrainStep,
    check_size,
    train_step,
)


DENSE_FEATURES = 13

# Distinct values of each categorical feature.
KAGGLE_VALUES = (
    *(1460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5683, 8_351_593, 3194),
    *(27, 14_992, 5_461_306, 10, 5652, 2173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572),
)
TERABYTE_VALUES = (
    *(39_884_406, 39_043, 17_289, 7420, 20_263, 3, 7120, 1543, 63, 38_532_951, 2_953_546),
    *(403_346, 10, 2208, 11_938, 155, 4, 976, 14, 39_979_771, 25_641_295, 39_664_984, 585_935),
    *(12_972, 108, 36),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DlrmConfig:
    """Sizes of a DLRM: the rows of each table, the layers of the MLPs.

    The last of `bottom` is the width of the tables; `top` is without its single output.
    """

    tables: tuple[int, ...]
    bottom: tuple[int, ...]
    top: tuple[int, ...]


KAGGLE = DlrmConfig(
    tables=tuple(max(rows, SMALLEST_VOCABULARY) for rows in KAGGLE_VALUES),
    bottom=(512, 256, 64, 16),
    top=(512, 256),
)
LARGE = DlrmConfig(
    tables=tuple(-(-rows // 1024) * 1024 for rows in TERABYTE_VALUES),
    bottom=(512, 256, 128),
    top=(1024, 1024, 512, 256),
)
TINY = DlrmConfig(tables=(64, 128, 64, 96), bottom=(32, 16), top=(32, 16))


class Dlrm(nnx.Module):
    """Bottom MLP, tables, interaction and top MLP."""

    def __init__(self, config: DlrmConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        width = config.bottom[-1]
        vectors = 1 + len(config.tables)
        pairs = vectors * (vectors - 1) // 2
        # Uniform within rows**-0.5, as in the paper's code.
        init = nnx.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
        self.bottom = _linears((DENSE_FEATURES, *config.bottom), rngs)
        self.tables = nnx.List(
            Embedding(rows, width, init=init, rngs=rngs) for rows in config.tables
        )
        self.top = _linears((width + pairs, *config.top, 1), rngs)

    def __call__(self, dense: jax.Array, sparse: jax.Array) -> jax.Array:
        """Logits [B] of a click, from dense [B, 13] and sparse [B, tables], an index per table."""
        x = dense
        for linear in self.bottom:
            x = jax.nn.relu(linear(x))
        rows = [table(sparse[:, i]) for i, table in enumerate(self.tables)]
        x = jnp.concatenate([x, interactions(jnp.stack([x, *rows], axis=1))], axis=1)
        *hidden, last = self.top
        for linear in hidden:
            x = jax.nn.relu(linear(x))
        return last(x)[:, 0]


def interactions(vectors: jax.Array) -> jax.Array:
    """Dot products [B, F * (F - 1) / 2] of all pairs of the F different vectors [B, F, width]."""
    products = jnp.einsum("bfw,bgw->bfg", vectors, vectors)
    row, column = np.tril_indices(vectors.shape[1], -1)
    return products[:, row, column]


def loss(model: Dlrm, batch: Batch) -> jax.Array:
    """Mean binary cross-entropy of `clicks`."""
    logits = model(batch["dense"], batch["sparse"]).astype(jnp.float32)
    clicks = batch["clicks"].astype(jnp.float32)
    return optax.sigmoid_binary_cross_entropy(logits, clicks).mean()


def dlrm(config: DlrmConfig, *, batch: int, dtype: DType = "float32") -> TrainStep:
    """The train step of a configuration on `batch` impressions.

    Raises:
        InputError: a batch that is not possible, or an unknown `dtype`.
    """
    check_size("batch", batch)
    shapes = {
        "dense": ((batch, DENSE_FEATURES), "float32"),
        "sparse": ((batch, len(config.tables)), "int32"),
        "clicks": ((batch,), "bool"),
    }
    return train_step(lambda rngs: Dlrm(config, rngs=rngs), loss, shapes, dtype=dtype)


def init(config: DlrmConfig, rng: jax.Array) -> State:
    """Concrete parameters and optimizer state."""
    return dlrm(config, batch=1).init(rng)


def dlrm_kaggle(batch: int = 2048, dtype: DType = "float32") -> Target:
    """DLRM on Criteo Kaggle; the tables are 16 wide."""
    return dlrm(KAGGLE, batch=batch, dtype=dtype).target


def dlrm_large(batch: int = 65_536, dtype: DType = "float32") -> Target:
    """DLRM on Criteo Terabyte; the tables are 128 wide."""
    return dlrm(LARGE, batch=batch, dtype=dtype).target


def dlrm_tiny(batch: int = 16, dtype: DType = "float32") -> Target:
    """Four tables, everything but the inputs of both MLPs divisible by 8, for tests."""
    return dlrm(TINY, batch=batch, dtype=dtype).target


def _linears(sizes: tuple[int, ...], rngs: nnx.Rngs) -> nnx.List:
    return nnx.List(
        nnx.Linear(d_in, d_out, rngs=rngs) for d_in, d_out in zip(sizes, sizes[1:], strict=False)
    )
