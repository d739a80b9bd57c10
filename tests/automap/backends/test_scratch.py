"""What operations need besides, against what compilers allocated (libtpu 0.0.51 and jax 0.10.2, one
device; `scripts.memory_steps`).
"""

import jax
import jax.numpy as jnp
import pytest

from automap.backends import backend_for
from automap.config import Options
from automap.planner.sharding import find
from automap.program import trace_step
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from scripts.halves import is_held_out
from scripts.memory_steps import STEPS


MACHINES = {"tpu": "v5e:1x1", "cuda": "1xh100"}
STEP_BY_NAME = {step.__name__: step for step in STEPS}


def _peak(step, args, platform):
    workload = trace_step(step, args, platform=platform)
    options = Options(mesh=Mesh(("data",), (1,)), strategy="greedy")
    return find(workload, get_topology(MACHINES[platform]), options).best.estimate.peak_bytes


# (step, GiB that the TPU's and the GPU's compiler allocated), all of the half that rules come from.
ALLOCATED = [
    ("top_k_of_rows", 2.016, 3.016),
    ("sorted_rows", 2.000, 1.500),
    ("sorted_columns", 1.500, 1.500),
    ("cumulative_first", 3.000, 2.066),
    ("scatter_wide", 2.672, 2.672),
    ("scatter_to_zeros", 2.703, 0.766),
    ("edge_messages", 3.389, None),
    ("embedding", 5.849, None),
    ("recurrence", 1.203, 1.317),
    ("cross_entropies", 1.734, 1.733),
]


@pytest.mark.parametrize(
    ("name", "platform", "gib"),
    [
        (name, platform, gib)
        for name, tpu, gpu in ALLOCATED
        for platform, gib in (("tpu", tpu), ("cuda", gpu))
        if gib is not None
    ],
)
def test_the_peak_is_what_the_compiler_allocated(name, platform, gib):
    assert not is_held_out(f"scripts.memory_steps:{name}")
    step, args = STEP_BY_NAME[name]()
    assert _peak(step, args, platform) / 2**30 == pytest.approx(gib, rel=0.06)


def test_stacks_of_the_same_values_are_one():
    def step(x, both):
        def cell(h, x):
            h = jnp.tanh(h + x)
            return h, (h, h) if both else (h,)

        return [y.sum() for y in jax.lax.scan(cell, jnp.zeros(x.shape[1:]), x)[1]]

    x = jax.ShapeDtypeStruct((64, 1024, 128), jnp.float32)
    peaks = [_peak(lambda x, both=both: step(x, both), (x,), "cuda") for both in (False, True)]
    assert peaks[1] == pytest.approx(peaks[0], rel=0.02)


def _recurrent_layers(count):
    """A training step of layers that are no loop, each computed again with its loop over time."""

    @jax.checkpoint
    def layer(x, w):
        def cell(h, x):
            h = jnp.tanh(h * w + x[:, :, None] * x[:, None, :])
            return h, h.sum(-1)

        return x + 0.1 * jax.lax.scan(cell, jnp.zeros((256, 32, 32)), x)[1]

    def step(weights, x):
        def loss(weights):
            y = x
            for number in range(count):
                y = layer(y, weights[number])
            return (y**2).mean()

        value, gradients = jax.value_and_grad(loss)(weights)
        return weights - 0.1 * gradients, value

    shapes = (count, 32, 32), (1024, 256, 32)
    return step, tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)


def test_zeros_of_all_loops_are_there_before_the_first_on_gpus():
    # The GPU compiler allocated 7.157 and 13.409 GiB: two layers more take their six stacks more,
    # of 1 GiB each. Since jax 0.12 a tanh keeps one value for its gradient, not two.
    # A TPU's compiler zeroes the stacks of each loop by themselves.
    kept = len(jax.tree.leaves(jax.vjp(jnp.tanh, jnp.zeros(1))[1]))
    more = {
        platform: _peak(*_recurrent_layers(4), platform) - _peak(*_recurrent_layers(2), platform)
        for platform in ("cuda", "tpu")
    }
    assert more["cuda"] / 2**30 == pytest.approx(13.409 - 7.157 - 2 * (2 - kept), rel=0.02)
    assert more["tpu"] / 2**30 < 0.5


@pytest.mark.parametrize(("space", "count"), [("Device", 1), ("Host", 0)])
def test_stacks_in_host_memory_have_no_zeros_on_gpus(space, count):
    def layers(x, weights):
        def layer(x, w):
            return jnp.tanh(x @ w), jax.device_put(jnp.sin(x), jax.memory.Space[space])

        return jax.lax.scan(layer, x, weights)

    def step(first, second, x):
        x, kept = layers(x, first)
        return layers(x, second)[1], kept

    args = (jnp.ones((3, 8, 8)), jnp.ones((3, 8, 8)), jnp.ones((4, 8)))
    graph = trace_step(jax.jit(step), args, platform="cuda").problem.graph
    assert len(list(backend_for("cuda").scratch(graph))) == count
