"""Plans on a real GPU: what they compute is what the step computes without one, levers need less
memory there, and streams run.

    JAX_PLATFORMS=cuda,cpu python -m pytest -m gpu tests/automap/test_on_gpu.py
"""

from dataclasses import replace

import jax
from jax import numpy as jnp
import numpy as np
import pytest

import automap
from models import gpt, inception, squeezenet
from models.training import DType, random_batch


pytestmark = pytest.mark.gpu

CONFIG = gpt.GptConfig(depth=6, d_model=512, heads=8, positions=512, vocab=4096, layers="scanned")
NETWORKS = {"inception": inception.inception_v3_forward, "squeezenet": squeezenet.squeezenet}


@pytest.fixture(autouse=True, scope="module")
def on_gpu():
    if jax.default_backend() != "gpu":
        pytest.skip("JAX shows no GPU; JAX_PLATFORMS=cuda,cpu asks for it")


def written(config, dtype: DType = "float32"):
    return gpt.gpt(config, batch=16, seq=512, dtype=dtype).target


def losses(step, config, args, steps=4):
    state = gpt.init(config, jax.random.key(0))
    batch, found = random_batch(args[1], 0), []
    for _ in range(steps):
        state, metrics = step(state, batch)
        found.append(float(metrics["loss"]))
    return np.array(found), state


@pytest.mark.parametrize("attention", ["written", "flash"])
def test_a_decorated_step_computes_what_the_step_computes(attention):
    config = replace(CONFIG, attention=attention)
    step, args = written(config, "bfloat16")
    plain, _ = losses(step, config, args)
    planned, _ = losses(automap.parallelize(step), config, args)
    assert plain[-1] < plain[0]
    assert planned == pytest.approx(plain, rel=2e-3)
    # Two ways to compute attention.
    other, _ = losses(written(CONFIG, "bfloat16")[0], CONFIG, args)
    assert planned == pytest.approx(other, rel=2e-2)


@pytest.mark.parametrize("levers", ["remat", "accumulate", "offload"])
def test_levers_need_less_memory_and_compute_the_same(levers):
    step, args = written(CONFIG)
    whole = automap.plan(step, args, topology="local", levers="none")
    limit = whole.predicted.peak_bytes * (0.97 if levers == "offload" else 0.6) / 2**30
    plan = automap.plan(step, args, topology="local", levers=levers, memory_limit=limit)
    plain, _ = losses(step, CONFIG, args)
    leveled, state = losses(plan.jit(step), CONFIG, args)
    assert leveled == pytest.approx(plain, rel=1e-3)
    for each in (whole, plan):
        needed = compiled_bytes(each.jit(step), args)
        assert each.predicted.peak_bytes == pytest.approx(needed, rel=0.05)
    assert plan.predicted.peak_bytes <= limit * 2**30 < whole.predicted.peak_bytes
    if levers == "offload":
        kinds = {leaf.sharding.memory_kind for leaf in jax.tree.leaves(state["opt"])}
        assert "pinned_host" in kinds


def compiled_bytes(step, args):
    usage = step.lower(*args).compile().memory_analysis()
    device = usage.argument_size_in_bytes + usage.output_size_in_bytes - usage.alias_size_in_bytes
    return device + usage.temp_size_in_bytes


@pytest.mark.parametrize("name", NETWORKS)
def test_streams_compute_what_the_step_computes(name):
    step, args = NETWORKS[name]()
    plan = automap.plan(step, args, topology="local", space="streams", strategy="dos")
    arrays = jax.tree.map(
        lambda leaf: jax.random.normal(jax.random.key(1), leaf.shape, leaf.dtype) * 0.05, args
    )
    plain, planned = (jax.tree.leaves(run(*arrays)) for run in (jax.jit(step), plan.jit(step)))
    for a, b in zip(plain, planned, strict=True):
        scale = float(jnp.abs(a).max())
        assert np.asarray(b) == pytest.approx(np.asarray(a), abs=5e-3 * scale)
