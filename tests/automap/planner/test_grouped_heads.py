"""Fewer heads of keys than devices: keys are split over one axis, the queries of each head of keys
over another one, in cuDNN's attention and in kernels of Pallas.
"""

from itertools import product
import re

import jax
from jax.experimental import pallas as pl
import jax.numpy as jnp
import numpy as np
import pytest

import automap
from automap.program import trace_step
from automap.search.factored.barriers import validity_barriers
from automap.search.factored.variables import mesh_variables
from automap.space.space import Space
from automap.step.step import traced_call
from automap.topology.mesh import Mesh
from automap.verify.program import planned_program


T, H, K, D = 16_384, 16, 4, 64


def _attention(key_heads=K):
    def step(scale, q, k, v):
        def loss(scale, q, k, v):
            y = jax.nn.dot_product_attention(
                q * scale, k, v, is_causal=True, implementation="cudnn"
            )
            return (y.astype(jnp.float32) ** 2).mean()

        value, grads = jax.value_and_grad(loss, (0, 1, 2, 3))(scale, q, k, v)
        return scale - grads[0], value, grads[1:]

    bf16 = lambda *shape: jax.ShapeDtypeStruct(shape, "bfloat16")  # noqa: E731
    keys = bf16(1, T, key_heads, D)
    return step, (bf16(D), bf16(1, T, H, D), keys, keys)


def _specs(leaves):
    return {leaf.path: leaf.spec for leaf in leaves}


@pytest.mark.parametrize(
    "options",
    [
        {"budget": 10.0},
        {"mesh": {"data": 2, "model": 4}, "pin": ["[1]=null,null,model+data,null"]},
    ],
    ids=["searched", "pinned"],
)
def test_no_device_is_idle_with_fewer_key_heads_than_devices(options):
    step, args = _attention()
    plan = automap.plan(step, args, topology="8xh100", levers="none", **options)
    assert not [w for w in plan.warnings if "do the same work" in w]
    inner = [d for d in plan.decisions if d.group == "[1][2] in each of its 4 parts"]
    assert [(d.kind, d.covers) for d in inner] == [("compute", ("[1]",))]
    specs = _specs(plan.inputs)
    outer = specs["[2]"][2]
    assert specs["[2]"] == specs["[3]"] == (None, None, outer, None)
    # Key heads are major: a device has queries of one head of keys.
    assert specs["[1]"] == (None, None, (*outer, *inner[0].axes), None)
    assert np.prod([dict(plan.mesh.axes)[name] for name in outer]) == K

    program = planned_program(plan, traced_call(step, args))
    text = jax.export.deserialize(bytearray(program.exported("cuda").artifact)).mlir_module()
    shapes = re.findall(
        r"@__cudnn\$fmha\w*\(.*?: \(tensor<([0-9x]+)xbf16>, tensor<([0-9x]+)xbf16>",
        text,
        re.DOTALL,
    )
    assert shapes == [(f"1x{T}x{H // 8}x{D}", f"1x{T}x1x{D}")] * 2


def test_a_step_is_as_fast_as_with_a_key_head_for_each_device_but_for_the_sums():
    seconds = {
        key_heads: automap.plan(
            *_attention(key_heads), topology="8xh100", levers="none", budget=10.0
        ).predicted
        for key_heads in (K, H)
    }
    assert seconds[K].compute_seconds == pytest.approx(seconds[H].compute_seconds, rel=0.05)


@pytest.mark.parametrize("axes", ["model+data", "data+model"])
def test_a_kernel_of_pallas_computes_the_same(axes):
    length, width = 64, 16

    def body(q, k, o):
        scores = jnp.dot(q[...], k[...].T)
        o[...] = jnp.dot(jax.nn.softmax(scores, -1), k[...])

    def block(index_map):
        return pl.BlockSpec((None, None, length, width), index_map)

    def step(scale, q, k):
        y = pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
            grid=(1, H),
            in_specs=[
                block(lambda b, h: (b, h, 0, 0)),
                block(lambda b, h: (b, h // (H // K), 0, 0)),
            ],
            out_specs=block(lambda b, h: (b, h, 0, 0)),
            interpret=True,
            name="grouped",
        )(q * scale, k)
        return scale + y.mean((0, 1, 2)), y

    source = np.random.default_rng(0)
    args = tuple(
        source.normal(size=shape).astype(np.float32)
        for shape in ((width,), (1, H, length, width), (1, K, length, width))
    )
    plan = automap.plan(
        step,
        args,
        topology="cpu:8",
        levers="none",
        mesh={"data": 2, "model": 4},
        pin=[f"[1]=null,{axes},null,null"],
    )
    assert not [w for w in plan.warnings if "do the same work" in w]
    # Whatever the order of the pin, the kernel has key heads major.
    (made,) = [c.spec for c in plan.constraints if c.at.endswith(":made0")]
    assert made == (None, ("model", "data"), None, None)
    for got, want in zip(plan.jit(step)(*args), jax.jit(step)(*args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sizes", [(2, 4), (4, 4), (2, 2, 2), (8,), (2, 2, 4)])
def test_queries_are_split_where_key_heads_are_single(sizes):
    space = Space(trace_step(*_attention(), platform="cuda").problem)
    ((inside, (outside, n)),) = space.problem.outer_parts.items()
    mesh = Mesh(tuple("abcd"[: len(sizes)]), sizes)
    variables = mesh_variables(space, mesh)
    numbers = [space.candidates.index(c) for c in (inside, outside)]
    tables = list(validity_barriers(variables))
    n_valid = 0
    for masks in product(*(variables.masks[number] for number in numbers)):
        assignment = dict.fromkeys(range(len(space.candidates)), 0)
        for number, mask in zip(numbers, masks, strict=True):
            assignment[number] = variables.masks[number].index(mask)
        barred = any(
            np.isinf(table.values[tuple(assignment[v] for v in table.scope)]) for table in tables
        )
        compute = [
            [c for c, mask in zip((inside, outside), masks, strict=True) if mask >> axis & 1]
            for axis in range(len(sizes))
        ]
        is_valid = space.is_valid(space.point(mesh, compute))
        assert is_valid is not barred
        parts = [
            np.prod([s for a, s in enumerate(sizes) if mask >> a & 1], dtype=int) for mask in masks
        ]
        if masks[0]:
            assert is_valid == (parts[1] == n and not masks[0] & masks[1])
            n_valid += is_valid
    assert n_valid > 0 or sizes == (8,)
