"""Attention by each platform's kernel: the same numbers and gradients, one step for all of them."""

from functools import partial
import re

import jax
from jax.experimental import pallas as pl
import jax.numpy as jnp
import numpy as np
import pytest

from automap.errors import InputError
from automap.program import trace_step
from models import flash
from models.gpt import gpt_tiny
from models.llama import llama_tiny


@pytest.mark.parametrize("is_causal", [pytest.param(True, marks=pytest.mark.slow), False])
def test_the_kernel_of_tpus_computes_what_is_written_out(monkeypatch, is_causal):
    made = pl.pallas_call
    monkeypatch.setattr(
        pl, "pallas_call", lambda *args, **options: made(*args, **options | {"interpret": True})
    )
    random = np.random.default_rng(0)
    q, do = (jnp.asarray(random.normal(size=(2, 256, 4, 16)), jnp.float32) for _ in range(2))
    k, v = (jnp.asarray(random.normal(size=(2, 256, 2, 16)), jnp.float32) for _ in range(2))
    written = partial(flash._written, is_causal=is_causal)
    want = written(q, k, v)
    got = flash._pallas(q, k, v, is_causal=is_causal)
    _, pullback = jax.vjp(lambda *args: written(*args)[0], q, k, v)
    for gradients in (flash._written_gradients, flash._pallas_gradients):
        pairs = zip(gradients(q, k, v, *want, do, is_causal=is_causal), pullback(do), strict=True)
        for a, b in (*pairs, *zip(got, want, strict=True)):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("model", [gpt_tiny, llama_tiny])
def test_each_platform_has_its_kernel(model):
    seq = 128 if model is llama_tiny else 16
    step, args = model(batch=2, seq=seq, dtype="bfloat16", attention="flash", layers="scanned")
    calls = {}
    for platform in ("tpu", "cuda", "cpu"):
        problem = trace_step(step, args, platform=platform).problem
        assert problem.warnings == ()
        targets = {op.instruction.attributes.custom_call_target for op in problem.graph.ops}
        calls[platform] = {re.sub("@.*", "", target) for target in targets if target}
    # GPT's sixteen positions are no block of the kernel's.
    kernels = {f"_flash_attention_{part}kernel" for part in ("", "dkv_", "dq_")}
    assert calls["tpu"] == (kernels if model is llama_tiny else set())
    assert calls["cuda"] >= {"__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"}
    assert calls["cpu"] == set()


def test_an_unknown_way_is_refused():
    with pytest.raises(InputError, match="attention"):
        llama_tiny(attention="flashy")  # pyright: ignore[reportArgumentType]
