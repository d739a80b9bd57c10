"""cuDNN's attention on each device's own batches and heads: with JAX's own computation in the place
of the library's it equals one device; and a step with it is exported where there is no GPU.
"""

import re

import jax
from jax.extend import core
from jax.extend.core import jaxpr_as_fun
from jax.interpreters import mlir
import jax.numpy as jnp
import numpy as np
import pytest

import automap
from automap.errors import PlanError
from automap.jax_compat import rebuild_jaxpr
from automap.jaxpr.flatten import equations, flatten
from automap.jaxpr.kernels import attention_per_device, is_attention
from automap.step.step import traced_call
from automap.verify.program import planned_program
from models.llama import llama_tiny


B, T, H, D = 4, 16, 8, 8
F32, BF16 = jnp.float32, jnp.bfloat16
# Heads of keys, and the shape of a bias, of which the library takes gradients.
FORMS = {
    "plain": (H, (0,)),
    "grouped heads": (2, (0,)),
    "grouped heads and a bias of all of them": (2, (B, 1, T, T)),
    "grouped heads and a bias of all samples": (2, (1, H, T, T)),
    "one head of keys": (1, (0,)),
    "bias of all samples": (H, (1, H, T, T)),
    "bias of all heads": (H, (B, 1, T, T)),
    "bias of each": (H, (B, H, T, T)),
}


def _forward(q, k, v, bias, *lengths, scale):
    """The result and its statistics."""
    k, v = (jnp.repeat(x.astype(F32), q.shape[2] // k.shape[2], axis=2) for x in (k, v))
    scores = jnp.einsum("btnh,bsnh->bnts", q.astype(F32), k) * scale
    scores += bias.astype(F32) if bias.size else 0
    scores += jnp.where(jnp.arange(T) < lengths[1][:, None, None, None], 0, -1e9)
    y = jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores), v)
    return [y.astype(q.dtype), jax.nn.logsumexp(scores, -1)]


def _backward(q, k, v, bias, *rest, scale):
    _, pull = jax.vjp(lambda *x: _forward(*x, *rest[:2], scale=scale)[0], q, k, v, bias)
    return list(pull(rest[-1]))[: 4 if bias.size else 3]


def _computed_by_jax(eqn):
    is_backward = "bwd" in eqn.primitive.name

    def run(*operands, scale, **_):
        return (_backward if is_backward else _forward)(*operands, scale=float(scale))

    primitive = core.Primitive(eqn.primitive.name)
    primitive.multiple_results = True
    primitive.def_abstract_eval(
        lambda *avals, **params: list(
            jax.make_jaxpr(lambda *x: run(*x, **params))(*avals).out_avals
        )
    )
    mlir.register_lowering(primitive, mlir.lower_fun(run, multiple_results=True))
    return eqn.replace(primitive=primitive)


def _attention(form):
    """The two equations of a form of attention."""
    key_heads, bias = FORMS[form]

    def step(q, k, v, bias, lengths):
        def loss(q, k, v, bias):
            y = jax.nn.dot_product_attention(
                q,
                k,
                v,
                bias if bias.size else None,
                implementation="cudnn",
                query_seq_lengths=lengths,
                key_value_seq_lengths=lengths,
            )
            return y.astype(F32).sum()

        return jax.grad(loss, (0, 1, 2, 3))(q, k, v, bias)

    key = jax.ShapeDtypeStruct((B, T, key_heads, D), BF16)
    args = (
        jax.ShapeDtypeStruct((B, T, H, D), BF16),
        key,
        key,
        jax.ShapeDtypeStruct(bias, BF16),
        jax.ShapeDtypeStruct((B,), jnp.int32),
    )
    flat = flatten(traced_call(step, args).jaxpr, {})
    return [_computed_by_jax(e.eqn) for e in equations(flat) if is_attention(e.eqn)]


def _run(eqn, operands):
    closed = rebuild_jaxpr(jax.make_jaxpr(lambda: ())(), [], [], eqn.outvars, [eqn], eqn.invars)
    return jax.jit(jaxpr_as_fun(closed))(*operands)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "axes",
    [
        (("data",), ()),
        ((), ("model",)),
        (("data",), ("model",)),
        # Where there are two heads of keys the second axis splits the queries of each.
        ((), ("data", "model")),
        ((), ("model", "data")),
    ],
)
def test_it_equals_one_device(form, axes):
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    batch, heads = axes
    rng = np.random.default_rng(0)
    forward, backward = _attention(form)
    assert len(backward.outvars) == (4 if FORMS[form][1] != (0,) else 3)
    for eqn in (forward, backward):
        operands = [
            rng.integers(T // 2, T, a.aval.shape, np.int32)
            if a.aval.dtype == jnp.int32
            else jnp.asarray(rng.normal(size=a.aval.shape), a.aval.dtype)
            for a in eqn.invars
        ]
        mapped = attention_per_device(eqn, mesh, (batch, (), heads, ()))
        for whole, parts in zip(_run(eqn, operands), _run(mapped, operands), strict=True):
            assert whole.shape == parts.shape
            # Gradients of a bias and of one head of keys are added up in bfloat16.
            np.testing.assert_allclose(whole.astype(F32), parts.astype(F32), rtol=0.02, atol=0.02)


def test_positions_are_not_split():
    mesh = jax.sharding.AbstractMesh((2,), ("data",))
    with pytest.raises(PlanError, match="allowed: batch and heads"):
        attention_per_device(_attention("plain")[0], mesh, ((), ("data",), (), ()))


@pytest.mark.parametrize(("form", "parts"), [("grouped heads", 4), ("plain", 16)])
def test_devices_have_query_heads_of_whole_key_heads_or_of_one(form, parts):
    mesh = jax.sharding.AbstractMesh((parts,), ("model",))
    with pytest.raises(PlanError, match=rf"split over model={parts}; allowed: axes that divide"):
        attention_per_device(_attention(form)[1], mesh, ((), (), ("model",), ()))


@pytest.mark.parametrize("preset", ["data-parallel", "megatron", "zero-3"])
def test_a_step_with_it_is_exported_with_each_devices_part(preset):
    batch, seq = 8, 128
    step, args = llama_tiny(batch=batch, seq=seq, dtype="bfloat16", attention="flash")
    plan = automap.plan(
        step, args, topology="4xh100", preset=preset, mesh={"data": 2, "model": 2}, levers="none"
    )
    program = planned_program(plan, traced_call(step, args))
    text = jax.export.deserialize(bytearray(program.exported("cuda").artifact)).mlir_module()
    calls = re.findall(r"@__cudnn\$fmhaSoftmax\(.*?: \(tensor<([0-9x]+)xbf16>", text, re.DOTALL)
    heads = 16 // (2 if preset == "megatron" else 1)
    parts = 2 if preset == "megatron" else 4
    assert {tuple(map(int, dims.split("x")))[::2] for dims in calls} == {(batch // parts, heads)}
    assert not [w for w in plan.warnings if "custom-call" in w]
