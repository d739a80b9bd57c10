"""The zoo's models under every kind of plan compute what they compute on one device, and
communicate what the plan says, tensor by tensor.

Sums over eight devices associate differently, so gradients carry relative errors of float32
roundings (2^-24 = 6e-8 each, some hundred terms a sum): the first moments, as one vector, must
agree to 1e-5. Adam divides by the root of the second moment: where a gradient is zero but for
rounding (the bias of the keys in attention; its first moment is some 1e-10), be it in one of the
steps, its noise decides the update, at most a learning rate of 3e-4 a step. Other parameters may
differ by a third of one such update after two steps.
"""

from dataclasses import replace
from functools import cache
import importlib
from itertools import product
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap.api.plan import Plan
from automap.backends import backend_for
from automap.config import Options
from automap.planner.records import build_plan
from automap.planner.sharding import find
from automap.program import trace_step
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from models.training import random_batch
from scripts.transfers import compiled_transfers, predicted_transfers


TOPOLOGY = get_topology("cpu:8")
AXES = ("replica", "data", "model")
SEARCHED = None
# With inception's batch of seed 0 a value is at a kink (a ReLU's, a pool's), on either side by how
# sums associate: a program that splits the first convolution's features agrees to 1e-6 from one
# state and to 1e-3 from another.
BATCH_SEEDS = {"inception": 1}
# First moments that are rounding and no more; those of parameters that matter are 1e-5 and above.
NOISE = 1e-8
_PLANS = ["data-parallel", "zero-3", "megatron", SEARCHED]
# What presets do is the same in all transformers: one of them has them all, the others one each.
_MORE_CASES = [
    *product(["t5", "bert", "vgg"], _PLANS, [(4, 2)]),
    *product(["gpt", "t5", "bert", "vgg"], _PLANS, [(2, 2, 2)]),
    *product(["vgg", "alexnet"], ["one-weird-trick"], [(8,), (4, 2)]),
    *product(["moe"], ["expert-parallel", "zero-3"], [(8,), (4, 2)]),
    ("inception", SEARCHED, (4, 2)),
    *product(["resnet", "dlrm"], ["zero-3"], [(4, 2)]),
    *product(["bert:scanned", "t5:scanned", "moe"], ["sequence-parallel"], [(4, 2)]),
    ("rnnlm", "megatron", (4, 2)),
    ("t5:scanned", "megatron", (4, 2)),
]
CASES = [
    *product(["gpt"], _PLANS, [(4, 2)]),
    *product(["t5"], [SEARCHED], [(4, 2)]),
    *product(["bert"], ["megatron", SEARCHED], [(4, 2)]),
    *product(["vgg"], ["data-parallel", SEARCHED], [(4, 2)]),
    *product(["gpt"], ["zero-3", "megatron", SEARCHED], [(2, 2, 2)]),
    ("t5", SEARCHED, (2, 2, 2)),
    *product(["gpt:scanned"], ["zero-3", "megatron", SEARCHED], [(4, 2)]),
    *product(["t5:scanned"], ["zero-3", SEARCHED], [(4, 2)]),
    *product(["gpt", "llama", "gpt:scanned"], ["sequence-parallel"], [(4, 2)]),
    *product(["moe"], ["expert-parallel", "zero-3"], [(4, 2)]),
    ("moe", "expert-parallel", (8,)),
    ("vgg", "one-weird-trick", (8,)),
    *product(["alexnet", "mamba", "vit:scanned"], ["one-weird-trick"], [(4, 2)]),
    *product(["resnet", "dlrm"], [SEARCHED], [(4, 2)]),
]
SLOW_CASES = [
    pytest.param(*case, marks=pytest.mark.slow) for case in _MORE_CASES if case not in CASES
]


@cache
def _single_device(model):
    """(step, workload, initial state, batch, states and loss after two steps)."""
    name, _, layers = model.partition(":")
    module = importlib.import_module(f"models.{name}")
    build = getattr(module, f"{name}_tiny")
    step, args = build(layers=layers) if layers else build()
    config = replace(module.TINY, layers=layers) if layers else module.TINY
    state, batch = (
        module.init(config, jax.random.key(0)),
        random_batch(args[1], BATCH_SEEDS.get(name, 0)),
    )
    return step, trace_step(step, args), state, batch, _two_steps(step, state, batch)


def _two_steps(step, state, batch):
    """The states after each of two steps, and the loss of the second."""
    state, states = jax.tree.map(jnp.copy, state), []
    for _ in range(2):
        state, metrics = step(state, batch)
        states.append(jax.device_get(state))
    return states, jax.device_get(metrics["loss"])


def _norm(tree):
    return math.sqrt(
        sum(float(np.sum(np.square(x, dtype=np.float64))) for x in jax.tree.leaves(tree))
    )


@pytest.mark.parametrize(("model", "preset", "sizes"), CASES + SLOW_CASES)
def test_two_donated_steps_equal_the_single_device_step(model, preset, sizes):
    step, workload, state, batch, ((first, want), want_loss) = _single_device(model)
    mesh = Mesh(AXES[-len(sizes) :], sizes)
    outcome = find(workload, TOPOLOGY, Options(mesh=mesh, preset=preset, budget_seconds=2))
    planned = Plan.from_record(build_plan(outcome)).jit(step)
    (_, got), loss = _two_steps(planned, state, batch)
    np.testing.assert_allclose(loss, want_loss, rtol=1e-6)
    np_diff = lambda a, b: np.asarray(a) - np.asarray(b)  # noqa: E731
    error = jax.tree.map(np_diff, got, want)
    moments, moment_errors = want["opt"][0].mu, error["opt"][0].mu
    assert _norm(moment_errors) <= 1e-5 * _norm(moments)
    beyond_noise = jax.tree.map(
        lambda e, *both: np.where(np.minimum(*np.abs(both)) > NOISE, np.abs(e), 0).max(),
        error["params"],
        first["opt"][0].mu,
        moments,
    )
    assert max(jax.tree.leaves(beyond_noise)) <= 1e-4
    text = planned.lower(state, batch).compile().as_text()
    assert predicted_transfers(outcome, backend_for("cpu")) == compiled_transfers(text, mesh)
