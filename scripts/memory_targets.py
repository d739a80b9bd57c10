"""Steps of `scripts.memory_steps` in few words: abstract arrays, and a step of gradient descent."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


Target = tuple[Callable[..., Any], tuple[Any, ...]]


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """An abstract array."""
    return jax.ShapeDtypeStruct(shape, dtype)


def trained(loss: Callable[..., jax.Array], params: Any, *batch: Any) -> Target:
    """A step of gradient descent."""

    def step(params: Any, *batch: Any) -> tuple[Any, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(params, *batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g.astype(p.dtype), params, gradients), value

    return step, (params, *batch)
