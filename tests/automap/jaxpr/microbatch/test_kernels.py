"""Kernels in microbatches: those whose programs have a sample each compute what they compute on the
whole batch; those that may mix samples are refused with the reason.
"""

from functools import partial

import jax
from jax import lax, numpy as jnp
from jax.experimental import pallas as pl
from jax.extend.core import jaxpr_as_fun
import numpy as np
import pytest

from automap.errors import NotSeparableError
from automap.jaxpr.accumulate import accumulated
from automap.jaxpr.flatten import equations, flatten
from automap.step.step import traced_call
from models.llama import llama_tiny


BATCH, LENGTH, WIDTH = 8, 4, 16


def _scaled(x_ref, s_ref, o_ref):
    o_ref[...] = jnp.tanh(x_ref[...]) * s_ref[...]


def _per_sample(x, s, samples=1):
    """tanh(x) s of x [B, LENGTH, WIDTH] and s [LENGTH, WIDTH], in blocks of so many samples."""
    block = pl.BlockSpec((samples, 2, WIDTH), lambda b, t: (b, t, 0))
    return pl.pallas_call(
        _scaled,
        grid=(x.shape[0] // samples, LENGTH // 2),
        in_specs=[block, pl.BlockSpec((2, WIDTH), lambda b, t: (t, 0))],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        interpret=True,
    )(x, s)


@jax.custom_vjp
def _kernel(x, s):
    return _per_sample(x, s)


def _backward(kept, g):
    x, s = kept
    # d tanh(x) s = g s (1 - tanh(x)^2); the kernel again gives tanh(x) of a scale of ones.
    t = _per_sample(x, jnp.ones_like(s))
    return g * s * (1 - t**2), (g * t).sum(0)


_kernel.defvjp(lambda x, s: (_per_sample(x, s), (x, s)), _backward)


def _numbered(x_ref, o_ref):
    o_ref[...] = x_ref[...] * pl.program_id(0)


def _summed(x_ref, o_ref):
    @pl.when(pl.program_id(0) == 0)
    def _():
        o_ref[...] = jnp.zeros_like(o_ref)

    o_ref[...] += x_ref[...]


def _call(body, x, out_map, shape):
    return pl.pallas_call(
        body,
        grid=(x.shape[0],),
        in_specs=[pl.BlockSpec((1, LENGTH, WIDTH), lambda b: (b, 0, 0))],
        out_specs=pl.BlockSpec((1, LENGTH, WIDTH), out_map),
        out_shape=jax.ShapeDtypeStruct(shape, x.dtype),
        interpret=True,
    )(x)


def _train(loss):
    @jax.jit
    def step(params, x):
        value, gradients = jax.value_and_grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    rng = np.random.default_rng(0)
    w, s, x = (
        jnp.asarray(rng.normal(0, 0.5, shape), jnp.float32)
        for shape in ((WIDTH, WIDTH), (LENGTH, WIDTH), (BATCH, LENGTH, WIDTH))
    )
    return step, ({"w": w, "s": s}, x)


def _with_kernel(params, x):
    return (_kernel(x @ params["w"], params["s"]) ** 2).mean()


def _in_a_loop(params, x):
    layer = jax.checkpoint(lambda h, _: (_kernel(h @ params["w"], params["s"]), None))
    return (lax.scan(layer, x, length=3)[0] ** 2).mean()


@pytest.mark.parametrize("loss", [_with_kernel, _in_a_loop])
@pytest.mark.parametrize("microbatches", [2, 4])
def test_a_kernel_whose_programs_have_a_sample_each(loss, microbatches):
    step, args = _train(loss)
    jaxpr = accumulated(traced_call(step, args, {}), microbatches)
    kernels = [e for e in equations(flatten(jaxpr, {})) if e.eqn.primitive.name == "pallas_call"]
    assert {e.eqn.invars[0].aval.shape[0] for e in kernels} == {BATCH // microbatches}
    got = jax.jit(jaxpr_as_fun(jaxpr))(*jax.tree.leaves(args))
    for a, b in zip(got, jax.tree.leaves(step(*args)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=5e-6)


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        (partial(_per_sample, s=jnp.ones((LENGTH, WIDTH)), samples=2), "several samples"),
        (lambda x: _call(_numbered, x, lambda b: (b, 0, 0), x.shape), "may mix the samples"),
        (lambda x: _call(_summed, x, lambda b: (0, 0, 0), (1, *x.shape[1:])), "may mix the sam"),
    ],
)
def test_a_kernel_that_may_mix_samples_is_refused(kernel, why):
    def loss(params, x):
        # Of parameters too: what is made of data alone may be computed whole before the loop.
        return ((x @ params["w"]) * kernel(x @ lax.stop_gradient(params["w"]))).mean()

    step, args = _train(loss)
    with pytest.raises(NotSeparableError, match=f"pallas_call.*{why}"):
        accumulated(traced_call(step, args, {}), 2)


def test_a_grid_of_one_sample_is_refused():
    step, args = _train(_with_kernel)
    with pytest.raises(NotSeparableError, match="its grid for one sample is not known"):
        accumulated(traced_call(step, args, {}), BATCH)


def test_the_choice_by_platform_stays():
    """Pallas' kernel on TPUs, cuDNN's on GPUs, of half of the samples."""
    step, args = llama_tiny(batch=8, seq=128, dtype="bfloat16", attention="flash")
    flat = flatten(accumulated(traced_call(step, args, {}), 2), {})
    choices = [e.eqn for e in equations(flat) if e.eqn.params.get("branches_platforms")]
    assert {eqn.params["branches_platforms"] for eqn in choices} == {(("tpu",), ("cuda",), None)}
    samples = {
        e.eqn.primitive.name: e.eqn.invars[0].aval.shape[0]
        for e in equations(flat)
        if e.eqn.primitive.name.startswith(("pallas_call", "dot_product_attention"))
    }
    assert samples == dict.fromkeys(
        (
            "pallas_call",
            "dot_product_attention_fwd_wrapper",
            "dot_product_attention_bwd_wrapper",
        ),
        4,
    )
