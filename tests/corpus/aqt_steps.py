"""A step of AQT: its quantized tensors in a kernel of the user's."""

import aqt.jax.v2.pallas as aqt_pl
import jax
from jax.experimental import pallas as pl
import jax.numpy as jnp

from tests.corpus.interpreted import for_device


def quantized():
    """Inference: a product of eight bits, as AQT's own test of its calls."""
    n = 128

    def body(x, w, o):
        @pl.when(pl.program_id(2) == 0)
        def _():
            o[...] = jnp.zeros_like(o)

        o[...] += aqt_pl.dot_general(
            aqt_pl.load_qtensor(x), aqt_pl.load_qtensor(w), (((1,), (0,)), ((), ()))
        )

    @jax.jit
    @for_device("tpu")
    def step(x, w):
        y = aqt_pl.pallas_call(
            body,
            grid=(x.shape[0] // n, w.shape[1] // n, x.shape[1] // n),
            in_specs=[
                pl.BlockSpec((n, n), lambda i, j, k: (i, k)),
                pl.BlockSpec((n, n), lambda i, j, k: (k, j)),
            ],
            out_specs=pl.BlockSpec((n, n), lambda i, j, k: (i, j)),
            out_shape=jax.ShapeDtypeStruct((x.shape[0], w.shape[1]), jnp.float32),
        )(
            aqt_pl.quant(x, n_bits=8, calibration_axes=(1,)),
            aqt_pl.quant(w, n_bits=8, calibration_axes=(0,)),
        )
        return jnp.tanh(y)

    x, w = (
        jax.random.normal(jax.random.key(number), shape) / 8
        for number, shape in enumerate([(1024, 256), (256, 256)])
    )
    return step, (x, w)
