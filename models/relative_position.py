"""T5's relative position bias: a learned number per head and bucket of distance.

With distance n = memory position - query position and N buckets, of which half are exact:

    bucket(n) = n                                              if n < N/2
              = N/2 + floor(log(n / (N/2)) / log(D / (N/2)) * N/2), at most N - 1, otherwise

where D is the distance from which on all share the last bucket -> in: `bucket()`. An encoder looks
both ways: N/2 buckets serve each side. A decoder looks back only, and n is replaced by max(-n, 0).
"""

import math
from typing import Literal

from flax import nnx
import jax
from jax import numpy as jnp

from models.layers import Embedding


BUCKETS = 32
LARGEST_DISTANCE = 128
Direction = Literal["both", "back"]


class RelativePosition(nnx.Module):
    """The table of one stack, [BUCKETS, heads]."""

    def __init__(self, heads: int, *, direction: Direction, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.direction: Direction = direction
        self.table = Embedding(BUCKETS, heads, rngs=rngs)

    def __call__(self, positions: jax.Array) -> jax.Array:
        """Bias [..., heads, T, T] float32 of each query (dim -2) and memory place (dim -1), from
        positions [..., T].
        """
        distance = positions[..., None, :] - positions[..., :, None]
        bias = self.table(bucket(distance, self.direction))
        return jnp.moveaxis(bias, -1, -3).astype(jnp.float32)


def bucket(distance: jax.Array, direction: Direction) -> jax.Array:
    """The bucket, int32 in [0, BUCKETS), of each signed distance."""
    if direction == "back":
        return _one_sided(jnp.maximum(-distance, 0), BUCKETS)
    ahead = jnp.where(distance > 0, BUCKETS // 2, 0)
    return ahead + _one_sided(jnp.abs(distance), BUCKETS // 2)


def _one_sided(distance: jax.Array, buckets: int) -> jax.Array:
    exact = buckets // 2
    # The logarithm of 0 is never used, but must not be taken.
    ratio = jnp.maximum(distance, exact).astype(jnp.float32) / exact
    fraction = jnp.log(ratio) / math.log(LARGEST_DISTANCE / exact)
    spread = exact + (fraction * (buckets - exact)).astype(jnp.int32)
    return jnp.where(distance < exact, distance, jnp.minimum(spread, buckets - 1))
