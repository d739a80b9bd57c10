"""A step of qwix: a kernel of the user's on arrays that qwix quantizes."""

import jax
from jax.experimental import pallas as pl
import jax.numpy as jnp
import qwix.pallas as qpl

from tests.corpus.interpreted import for_device


def quantized():
    """Inference: two layers whose products are of eight bits, with a scale a channel."""
    keys = jax.random.split(jax.random.key(0), 3)

    def body(x, w, o):
        @pl.when(pl.program_id(2) == 0)
        def _():
            o[...] = jnp.zeros_like(o)

        o[...] += qpl.dot(x, w)

    def product(x, w):
        n = 128
        return qpl.pallas_call(
            body,
            jax.ShapeDtypeStruct((x.shape[0], w.shape[1]), jnp.float32),
            grid=(x.shape[0] // n, w.shape[1] // n, x.shape[1] // n),
            in_specs=[
                pl.BlockSpec((n, n), lambda i, j, k: (i, k)),
                pl.BlockSpec((n, n), lambda i, j, k: (k, j)),
            ],
            out_specs=pl.BlockSpec((n, n), lambda i, j, k: (i, j)),
        )(
            qpl.quantize(x, jnp.int8, channelwise_axes=[0]),
            qpl.quantize(w, jnp.int8, channelwise_axes=[1]),
        )

    @jax.jit
    @for_device("tpu")
    def step(x, up, down):
        return jnp.tanh(product(jax.nn.relu(product(x, up)), down))

    x, up, down = (
        jax.random.normal(key, shape) / 8
        for key, shape in zip(keys, [(1024, 256), (256, 512), (512, 256)])
    )
    return step, (x, up, down)
