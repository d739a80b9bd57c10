"""Pipelines for tests: records of stages, steps, and a pipelined step beside the single-device
step.
"""

from collections.abc import Sequence
from typing import Any

import jax
from jax import numpy as jnp
import numpy as np

from automap.jaxpr.flatten import flatten
from automap.plan.pipeline import PipelineRecord, StageRecord
from automap.runtime.pipeline.assembly import Assembly
from automap.runtime.pipeline.runner import run_step
from automap.runtime.pipeline.step import assemble
from automap.step.step import traced_call


def record(devices, cuts, microbatches=4, schedule="1f1b", seconds=None) -> PipelineRecord:
    """Stages on groups of as many `devices`, that end after `cuts`; `seconds` are (forward,
    backward) of each, of which a weight pass has the half where it is apart.
    """
    apart, stages = schedule == "zero-bubble", len(cuts) + 1
    ends = np.cumsum([0, *devices])
    groups = [tuple(range(ends[g], ends[g + 1])) for g in range(len(devices))]
    seconds = seconds or [(1.0, 2.0)] * stages
    return PipelineRecord(
        schedule=schedule,
        microbatches=microbatches,
        stages=tuple(
            StageRecord(
                devices=groups[s % len(groups)],
                cut_after=cut,
                layers="",
                forward_seconds=f,
                backward_seconds=b / 2 if apart else b,
                weights_seconds=b / 2 if apart else 0.0,
                reduce_seconds=0.0,
                sent_bytes=0,
                peak_bytes=0,
            )
            for s, (cut, (f, b)) in enumerate(zip((*cuts, None), seconds, strict=True))
        ),
    )


def even_cuts(step, args, stages: int) -> list[str]:
    """Sites that divide the products of the forward pass evenly."""
    products = [
        equation.path
        for equation in flatten(traced_call(step, args).jaxpr, {}).equations
        if equation.eqn.primitive.name in ("dot_general", "conv_general_dilated")
        and "transpose(" not in str(equation.eqn.source_info.name_stack)
    ]
    return [products[len(products) * s // stages - 1] for s in range(1, stages)]


class Running:
    """A step divided among stages, called like it."""

    def __init__(self, step, args, pipeline: PipelineRecord) -> None:
        call = traced_call(step, args)
        self.assembly: Assembly = assemble(call, pipeline, jax.devices())
        self.tree = jax.tree.structure(call.result)
        self.jobs = []

    def __call__(self, *args):
        self.jobs = []
        leaves = run_step(self.assembly, jax.tree.leaves(args), self.jobs.append)
        return jax.tree.unflatten(self.tree, leaves)


def devices_of(tree) -> list[set[int]]:
    """Numbers of the devices of every leaf."""
    return [{device.id for device in leaf.devices()} for leaf in jax.tree.leaves(tree)]


def assert_same(got, want, *, rtol: float, atol: float) -> None:
    """Equal trees of arrays, within tolerances."""
    pairs = zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True)
    for (path, a), b in pairs:
        np.testing.assert_allclose(
            np.asarray(a), np.asarray(b), rtol=rtol, atol=atol, err_msg=jax.tree_util.keystr(path)
        )


def assert_trained_alike(optimizer: str, steps: int, mine: Any, theirs: Any) -> None:
    """Equal states after some steps of "sgd" or "adamw"."""
    if optimizer == "sgd":
        # A gradient's sum over 48 samples in another order, times the rate, three times.
        assert_same(mine, theirs, rtol=1e-5, atol=3e-6)
    else:
        assert_same(mine["opt"][0].mu, theirs["opt"][0].mu, rtol=1e-3, atol=1e-6)
        assert_same(mine["params"], theirs["params"], rtol=0, atol=4 * 3e-4 * steps)


def mlp(depth: int = 4, width: int = 16, batch: int = 16):
    """Momentum with clipping by the global norm, a step counter, and a mean loss; biases are not
    zero.
    """
    keys = jax.random.split(jax.random.key(0), 2 * depth + 2)
    layers = [
        {
            "w": jax.random.normal(keys[2 * n], (width, width)) * 0.3,
            "b": jax.random.normal(keys[2 * n + 1], (width,)),
        }
        for n in range(depth)
    ]

    def loss(layers, batch):
        x = batch["x"]
        for layer in layers:
            x = jnp.tanh(x @ layer["w"] + layer["b"])
        return ((x - batch["y"]) ** 2).mean()

    def step(state, batch):
        value, gradient = jax.value_and_grad(loss)(state["params"], batch)
        norm = jnp.sqrt(sum((g * g).sum() for g in jax.tree.leaves(gradient)))
        rate = 0.5 / (state["count"] + 1)
        momentum = jax.tree.map(
            lambda m, g: 0.9 * m + g / jnp.maximum(norm, 0.1), state["momentum"], gradient
        )
        params = jax.tree.map(lambda p, m: p - rate * m, state["params"], momentum)
        new = {"params": params, "momentum": momentum, "count": state["count"] + 1}
        return new, {"loss": value, "norm": norm}

    state = {
        "params": layers,
        "momentum": jax.tree.map(jnp.zeros_like, layers),
        "count": jnp.int32(0),
    }
    data = {
        "x": jax.random.normal(keys[-1], (batch, width)),
        "y": jax.random.normal(keys[-2], (batch, width)),
    }
    return step, (state, data)


def three_steps(run, step, state, batches: Sequence, *, rtol: float, atol: float):
    """Three steps of both, on the states that each makes itself; the pipeline's last state."""
    single = jax.jit(step.__wrapped__ if hasattr(step, "__wrapped__") else step)
    mine, theirs = jax.tree.map(jnp.copy, state), state
    for batch in batches:
        mine, results = run(mine, batch)
        theirs, wanted = single(theirs, batch)
        assert_same((mine, results), (theirs, wanted), rtol=rtol, atol=atol)
    return mine
