"""The compilers of accelerators, without one: every GPU that is described, TPU slices, a refusal
for memory.
"""

from dataclasses import replace
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import pytest

import automap
from automap.api.verification import PipelineVerification
from automap.verify.gpu_targets import GPU_TARGETS
from models.llama import TINY, llama
from models.nmt import nmt
from models.vit import vit_b16
from tests.automap.runtime.pipeline import running as pipeline_steps
from tests.steps import decoder, mlp


TIMEOUT_SECONDS = 550
needs_tpu = [
    pytest.mark.tpu_compiler,
    pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu is not installed (extra tpu)"),
]
needs_gpu = [
    pytest.mark.gpu_compiler,
    pytest.mark.skipif(
        find_spec("jax_cuda12_plugin") is None or find_spec("nvidia") is None,
        reason="ptxas or the CUDA plugin is not installed (extra gpu-compiler)",
    ),
]


def _verified(target, topology, tmp_path, **options):
    step, args = target
    plan = automap.plan(step, args, topology=topology, **options)
    return automap.verify(
        plan, step, args, cache_dir=tmp_path, numerics=False, timeout=TIMEOUT_SECONDS
    )


def _sum_of_products(size):
    def step(x):
        return jnp.sum(jnp.sin(x @ x.T), axis=0)

    return step, (jax.ShapeDtypeStruct((size, size), "float32"),)


@pytest.mark.parametrize("gpu", [pytest.param(name, marks=needs_gpu) for name in GPU_TARGETS])
def test_xla_compiles_for_every_gpu(gpu, tmp_path):
    try:
        verified = _verified(
            mlp(batch=64, width=256, hidden=512), f"2x4x{gpu}", tmp_path, preset="zero-3"
        )
    except automap.TopologyError:
        pytest.skip(f"{gpu} is not in the catalogue of topologies")
    assert verified.fits and verified.witness.compiler == "gpu"
    assert verified.comparison.rows is not None
    assert all("?" not in row.axes for row in verified.comparison.rows)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs_tpu) for name in ("v5e:2x4", "v5p:2x2x1", "v6e:2x4")]
)
def test_xla_compiles_for_slices(name, tmp_path):
    verified = _verified(decoder(), name, tmp_path, preset="megatron")
    assert verified.fits and verified.witness.compiler == "tpu"
    assert verified.witness.memory is not None and verified.witness.memory.generated_code > 0
    rows = {(row.kind, row.axes): row for row in verified.comparison.rows or ()}
    assert any(kind == "all-reduce" for kind, _ in rows)


@pytest.mark.parametrize("name", [pytest.param("v5p:2x2x1", marks=needs_tpu)])
def test_what_the_runtime_cannot_load_is_read_all_the_same(name, tmp_path):
    """SparseCores gather the rows of embeddings here, in calls of a form that XLA refuses to read
    back.
    """
    target = nmt(batch=64, steps="scanned")
    verified = _verified(target, name, tmp_path, preset="data-parallel")
    assert verified.witness.program is not None
    assert {row.kind for row in verified.comparison.rows or ()} >= {"all-reduce"}


@pytest.mark.parametrize("name", [pytest.param("v5e:2x2", marks=needs_tpu)])
def test_a_refusal_for_memory_is_a_result(name, tmp_path):
    verified = _verified(
        _sum_of_products(80_000), name, tmp_path, memory_limit=1000.0, preset="data-parallel"
    )
    assert not verified.fits
    assert verified.witness.memory is None and "emory" in verified.witness.refusal
    assert verified.witness.peak_bytes is not None and verified.witness.peak_bytes > 15 * 2**30
    assert "DOES NOT FIT" in verified.explain()


@pytest.mark.parametrize(
    "topology", [pytest.param("4xh100", marks=needs_gpu), pytest.param("v5e:2x2", marks=needs_tpu)]
)
def test_a_pipeline_is_compiled_stage_by_stage(topology, tmp_path):
    step, args = pipeline_steps.mlp(depth=8, width=256, batch=64)
    plan = automap.plan(step, args, topology=topology, space="pipeline", stages=4, microbatches=8)
    verified = automap.verify(plan, step, args, cache_dir=tmp_path, timeout=TIMEOUT_SECONDS)
    assert isinstance(verified, PipelineVerification)
    assert verified.fits and verified.is_verdict
    # Of four stages of two layers the two in the middle are equal.
    assert verified.compiled_count < verified.program_count
    bounds = [
        sum(
            stage.compiled.forward_seconds
            + stage.compiled.backward_seconds
            + stage.compiled.weights_seconds
            for stage in verified.stages
        ),
        max(
            8 * (stage.compiled.forward_seconds + stage.compiled.backward_seconds)
            for stage in verified.stages
        ),
    ]
    # No schedule is faster than one microbatch through all stages, or than the slowest stage.
    assert verified.compiled_step_seconds >= max(bounds) * (1 - 1e-9)


@pytest.mark.parametrize("topology", [pytest.param("v5e:2x4", marks=needs_tpu)])
def test_stages_of_four_chips_in_a_line_are_compiled(topology, tmp_path):
    """The compiler ends with an internal error where these are a part of the slice."""
    step, args = pipeline_steps.mlp(depth=8, width=256, batch=64)
    plan = automap.plan(step, args, topology=topology, space="pipeline", stages=2, microbatches=8)
    assert plan.pipeline is not None
    assert {stage.devices for stage in plan.pipeline.stages} == {(0, 1, 2, 3), (4, 5, 6, 7)}
    verified = automap.verify(plan, step, args, cache_dir=tmp_path, timeout=TIMEOUT_SECONDS)
    assert isinstance(verified, PipelineVerification)
    assert verified.fits and verified.is_verdict


@pytest.mark.parametrize("key_heads", [pytest.param(n, marks=needs_gpu) for n in (1, 8)])
def test_gradients_of_a_single_head_of_keys_are_summed_as_predicted(key_heads, tmp_path):
    config = replace(TINY, attention="flash", key_heads=key_heads)
    target = llama(config, batch=16, seq=128, dtype="bfloat16").target
    options = {"preset": "megatron", "mesh": {"model": 4}, "levers": "none"}
    verified = _verified(target, "4xh100", tmp_path, **options)
    rows = {row.kind: row for row in verified.comparison.rows or ()}
    assert rows["all-reduce"].compiled_bytes == rows["all-reduce"].predicted_bytes
    # Of a head of keys for each device none is.
    assert ("reduce-scatter" in rows) == (key_heads == 1)
    assert "reduce-scatter" not in rows or rows["reduce-scatter"].agrees


@pytest.mark.parametrize("batch", [pytest.param(256, marks=needs_gpu)])
def test_matmuls_that_triton_has_no_tiles_for_are_compiled_without(batch, tmp_path):
    target = vit_b16(batch=batch, layers="scanned")
    assert _verified(target, "8xh100", tmp_path, preset="data-parallel").fits
