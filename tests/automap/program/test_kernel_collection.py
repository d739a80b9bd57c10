"""Kernels that come with JAX, planned by what their calls say and run in Pallas' interpreter on
eight devices: equal to one device.
"""

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas.ops.gpu import attention as gpu_attention, layer_norm, softmax
from jax.experimental.pallas.ops.tpu import flash_attention as flash
from jax.experimental.pallas.ops.tpu.megablox import gmm
from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel as splash,
    splash_attention_mask as masks,
)
import jax.numpy as jnp
import numpy as np
import pytest

from automap.api.plan import Plan
from automap.config import Options
from automap.planner.records import build_plan
from automap.planner.sharding import find
from automap.program import trace_step
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from hlo_tools.rules import FactorKind


pytestmark = pytest.mark.slow
LENGTH, FEATURES = 256, 128


def _flash(q, k, v):
    names = (
        "block_q block_k_major block_k block_q_major_dkv block_k_major_dkv block_k_dkv block_q_dkv "
        "block_k_major_dq block_k_dq block_q_dq"
    )
    blocks = flash.BlockSizes(block_b=1, **dict.fromkeys(names.split(), 128))
    return flash.flash_attention(q, k, v, causal=True, block_sizes=blocks)


def _splash(q, k, v):
    mask = masks.MultiHeadMask([masks.CausalMask((LENGTH, LENGTH))] * q.shape[1])
    return jax.vmap(splash.make_splash_mha(mask, head_shards=1, q_seq_shards=1))(q, k, v)


def _grouped(x, weights):
    sizes = jnp.array([32, 96, 0, 128], jnp.int32)
    return gmm(x, weights, sizes, preferred_element_type=jnp.float32)


def _triton(q, k, v):
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    return gpu_attention.mha(q, k, v, segment_ids=None, causal=True)


def _paged(q, keys, values):
    lengths = jnp.array([32, 5, 64, 17], jnp.int32)
    pages = jnp.arange(16, dtype=jnp.int32).reshape(4, 4)
    return paged_attention(q, keys, values, lengths, pages, pages_per_compute_block=2)


def _heads(n):
    return (4, n, LENGTH, FEATURES)


# Kernel -> shapes of its arguments, and along how many factors each of its calls can be split.
CASES = {
    "flash": (_flash, [_heads(2)] * 3, [2, 2, 2]),
    "splash": (_splash, [_heads(2)] * 3, [2, 2, 2]),
    "splash, grouped heads": (_splash, [_heads(4), _heads(2), _heads(2)], [2, 3, 3]),
    "megablox": (_grouped, [(256, 256), (4, 256, 512)], [1, 1, 2]),
    "paged": (_paged, [(4, 8, 128), (2, 16, 16, 128), (2, 16, 16, 128)], [0]),
    "triton": (_triton, [_heads(2)] * 3, [2, 2, 3]),
    "layer norm": (layer_norm.layer_norm, [(8, 64, 128), (128,), (128,)], [0, 1, 2]),
    "softmax": (softmax.softmax, [(8, 128)], [1]),
}
FORWARD_ONLY = ("paged", "softmax")  # of inference: no gradient
FOR_GPUS = ("triton", "layer norm", "softmax")


@pytest.fixture(autouse=True)
def interpreter(monkeypatch):
    made = pl.pallas_call
    monkeypatch.setattr(
        pl, "pallas_call", lambda *args, **options: made(*args, **options | {"interpret": True})
    )
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_those_of_one_device(name):
    kernel, shapes, batches = CASES[name]
    random = np.random.default_rng(0)
    args = [jnp.asarray(random.normal(size=shape) * 0.3, jnp.float32) for shape in shapes]

    def step(*args):
        if name in FORWARD_ONLY:
            return kernel(*args)
        return jax.grad(lambda a: (kernel(*a).astype(jnp.float32) ** 2).sum())(args)

    workload = trace_step(step, args)
    assert workload.reemitter is not None
    rules = [stand_in.rule for stand_in in workload.reemitter.kernels.values()]
    kinds = [[factor.kind for factor in rule.factors] for rule in rules]
    assert sorted(each.count(FactorKind.PASSTHROUGH) for each in kinds) == batches
    options = Options(mesh=Mesh(("x", "y"), (4, 2)), strategy="greedy")
    plan = Plan.from_record(build_plan(find(workload, get_topology("cpu:8"), options)))
    got, want = plan.jit(step)(*args), jax.jit(step)(*args)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
