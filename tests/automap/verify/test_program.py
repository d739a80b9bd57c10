"""Exported steps: the same program has the same digest wherever its code stands; tags lead to
lines.
"""

import jax
from jax.experimental import pallas as pl
import jax.numpy as jnp
from jax.sharding import AbstractMesh, PartitionSpec
import pytest

import automap
from automap.jaxpr.reemit import Reemitter
from automap.step.step import traced_call
from automap.verify.program import planned_program
from tests.steps import images, mlp


def _program(step, args, **options):
    plan = automap.plan(step, args, topology="cpu:8", **options)
    return planned_program(plan, traced_call(step, args))


def test_the_digest_is_of_the_program_not_of_its_lines():
    step, args = mlp()
    first = _program(step, args, preset="zero-3").exported("cpu")
    again = _program(step, args, preset="zero-3").exported("cpu")
    assert first.sha256 == again.sha256
    others = [
        _program(step, args, preset="megatron", mesh={"model": 8}).exported("cpu"),
        _program(*mlp(hidden=128), preset="zero-3").exported("cpu"),
    ]
    assert len({first.sha256, *(other.sha256 for other in others)}) == 3


def test_a_layout_has_what_the_plan_says():
    program = _program(*mlp(), preset="zero-3")
    assert program.shardings.axes == program.plan.mesh.axes
    assert program.shardings.inputs == tuple(leaf.spec for leaf in program.plan.inputs)


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_convolutions_written_out_for_each_device_are_exported(platform):
    program = _program(
        *images(), mesh={"data": 2, "model": 4}, pin="[1]['images']=data,model,null,null"
    )
    assert program.exported(platform).artifact


def test_a_kernel_that_asks_for_its_tpu_is_exported_without_one():
    """Where a block has one dimension, Pallas asks which TPU it is lowered for."""

    def body(x, w, y):
        y[...] = x[...] * w[...]

    def step(x, w):
        rows, row = pl.BlockSpec((8, 128), lambda i: (i, 0)), pl.BlockSpec((128,), lambda i: (0,))
        return pl.pallas_call(body, out_shape=x, grid=(4,), in_specs=[rows, row], out_specs=rows)(
            x, w
        )

    args = jax.ShapeDtypeStruct((32, 128), "float32"), jax.ShapeDtypeStruct((128,), "float32")
    plan = automap.plan(step, args, topology="v5e:2x2", mesh={"data": 4}, strategy="greedy")
    artifact = planned_program(plan, traced_call(step, args)).exported("tpu").artifact
    assert b"tpu_custom_call" in artifact


def test_every_equation_is_found_in_its_line():
    def step(x):
        return jnp.sin(x) + 1

    call = traced_call(jax.jit(step), (jax.ShapeDtypeStruct((8,), "float32"),))
    reemitter = Reemitter(call.jaxpr)
    assert set(reemitter.source_by_path) == {site.path for site in reemitter.sites}
    assert all("test_program.py" in line for line in reemitter.source_by_path.values())


def test_tags_of_sites_stand_beside_constraints():
    step, args = mlp()
    program = _program(step, args, preset="megatron", mesh={"model": 8})
    constraints = {c.at: PartitionSpec() for c in program.plan.constraints}
    tagged = program.reemitter.constrained(constraints, AbstractMesh((8,), ("model",)), "sites")
    text = str(jax.make_jaxpr(tagged)(*program.call.jaxpr.in_avals))
    assert text.count("sharding_constraint") >= len(constraints)
