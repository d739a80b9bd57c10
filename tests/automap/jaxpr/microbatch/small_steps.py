"""What small steps `(w, x, y) -> (w, outputs)` are made of.

x [8, 6] float32 are samples, y [8] int32 their labels below 6, w [6, 6] float32 the parameters.
"""

import jax
from jax import numpy as jnp


BATCH, WIDTH = 8, 6
X = jax.random.normal(jax.random.key(1), (BATCH, WIDTH))
Y = jax.random.randint(jax.random.key(2), (BATCH,), 0, WIDTH)
W = jax.random.normal(jax.random.key(3), (WIDTH, WIDTH)) / 2
ARGS = W, X, Y
TABLE = jnp.linspace(0.5, 1.5, WIDTH)
SAMPLE_WEIGHTS = jnp.linspace(0.1, 1.0, 4 * BATCH)


def trained(cases):
    """Decorator: the case is a loss; it becomes a step with one update by its gradient."""

    def register(loss):
        def step(w, x, y):
            value, gradient = jax.value_and_grad(loss)(w, x, y)
            return w - 0.1 * gradient, value

        cases[loss.__name__] = step
        return loss

    return register


def plain(cases):
    """Decorator: the case is a step itself."""

    def register(step):
        cases[step.__name__] = step
        return step

    return register


def cross_entropy(z, y):
    return -jnp.take_along_axis(jax.nn.log_softmax(z), y[:, None], 1)[:, 0]
