"""A step of pallas-forge: its three kernels, of products, a fused norm and a gated layer."""

import jax
import jax.numpy as jnp
from pallas_forge.kernels import fused_rmsnorm_residual, fused_swiglu, tiled_matmul

from tests.corpus.interpreted import for_device


def feed_forward():
    """Inference: a block's feed-forward part in kernels alone."""
    keys = jax.random.split(jax.random.key(0), 5)
    shapes = {"gate": (128, 256), "up": (128, 256), "down": (256, 128)}
    params = {n: jax.random.normal(k, s) / 16 for k, (n, s) in zip(keys, shapes.items())}
    params["norm"] = jnp.ones(128)

    @jax.jit
    @for_device("tpu")
    def step(x, params, residual):
        y, residual = fused_rmsnorm_residual(x, residual, params["norm"])
        y = fused_swiglu(y, params["gate"], params["up"])
        y = tiled_matmul(y.reshape(-1, 256), params["down"], block_m=64)
        return y.reshape(x.shape), residual

    x, residual = (jax.random.normal(key, (8, 64, 128)) for key in keys[3:])
    return step, (x, params, residual)
