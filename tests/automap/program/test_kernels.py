"""Steps with kernels of Pallas: planned from their calls, run on each device's own part, and named
where they are not split.
"""

from functools import partial

import jax
from jax.experimental import pallas as pl
import jax.numpy as jnp
import numpy as np
import pytest

from automap.api.plan import Plan
from automap.config import Options
from automap.planner.records import build_plan
from automap.planner.sharding import find
from automap.program import trace_step
from automap.step.rules import user_rules
from automap.topology import get_topology
from automap.topology.mesh import Mesh


def _per_head(body, *arrays, n_results=1):
    """A kernel with one program for each batch element and head of [b, h, ...]."""
    specs = [
        pl.BlockSpec((None, None, *a.shape[2:]), lambda b, h, n=a.ndim: (b, h, *(0,) * (n - 2)))
        for a in arrays
    ]
    made = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays[:n_results]]
    return pl.pallas_call(
        body,
        out_shape=made,
        grid=arrays[0].shape[:2],
        in_specs=specs,
        out_specs=specs[:n_results],
        interpret=True,
        name="attend" if n_results == 1 else "attend_backward",
    )(*arrays)


@jax.custom_vjp
def attend(q, k, v):
    return _forward(q, k, v)[0]


def _attention(q, k, v):
    return jax.nn.softmax(q @ k.T) @ v


def _forward(q, k, v):
    def body(q, k, v, o):
        o[...] = _attention(q[...], k[...], v[...])

    return _per_head(body, q, k, v)[0], (q, k, v)


def _backward(kept, do):
    def body(q, k, v, do, dq, dk, dv):
        _, pullback = jax.vjp(_attention, q[...], k[...], v[...])
        dq[...], dk[...], dv[...] = pullback(do[...])

    return tuple(_per_head(body, *kept, do, n_results=3))


attend.defvjp(_forward, _backward)


def _layer(x, weights):
    b, s, _ = x.shape
    q, k, v = (
        (x @ w).reshape(b, s, 4, -1).transpose(0, 2, 1, 3) for w in (weights["q"], *weights["kv"])
    )
    y = attend(q, k, v).transpose(0, 2, 1, 3).reshape(b, s, -1)
    return jnp.tanh(x + y @ weights["o"])


def train_step(params, x):
    def loss_of(params):
        body = jax.checkpoint(lambda x, weights: (_layer(x, weights), None))
        return jnp.mean(jax.lax.scan(body, x, params)[0] ** 2)

    loss, grads = jax.value_and_grad(loss_of)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def _arguments():
    random = np.random.default_rng(0)

    def array(*shape):
        return jnp.asarray(random.normal(size=shape) * 0.2, jnp.float32)

    params = {"q": array(2, 8, 16), "kv": [array(2, 8, 16), array(2, 8, 16)], "o": array(2, 16, 8)}
    return params, array(8, 4, 8)


@pytest.mark.parametrize("preset", ["data-parallel", "megatron"])
def test_numbers_are_those_of_one_device(preset):
    args = _arguments()
    options = Options(mesh=Mesh(("data", "model"), (2, 4)), preset=preset)
    record = build_plan(find(trace_step(train_step, args), get_topology("cpu:8"), options))
    plan = Plan.from_record(record)
    assert plan.warnings == ()
    made = {c.at: c.spec for c in plan.constraints if ":made" in c.at and "custom-call" in c.value}
    # Forward, forward again under remat, and backward with three results.
    assert len(made) == 5
    want = (("data",), ("model",)) if preset == "megatron" else (("data", "model"), None)
    assert {spec[:2] for spec in made.values()} == {want}
    got, whole = plan.jit(train_step)(*args), jax.jit(train_step)(*args)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


def numbered(x):
    def body(x, y):
        y[...] = x[...] * (1 + pl.program_id(0))

    spec = pl.BlockSpec((2, 8), lambda i: (i, 0))
    kernel = partial(pl.pallas_call, grid=(8,), in_specs=[spec], out_specs=spec, interpret=True)
    return kernel(body, out_shape=x, name="numbered")(x)


def inference(w, x):
    return numbered(x @ w) @ w


SQUARES = (jnp.eye(8), jnp.ones((16, 8)))


def test_a_kernel_that_is_not_split_is_named_with_the_reason():
    problem = trace_step(inference, SQUARES).problem
    (sentence,) = problem.unknown
    assert "kernel 'numbered' (1 times" in sentence
    assert "axis 0 of its grid (8,): the body reads its program_id" in sentence
    assert "--rule numbered=" in sentence


def test_a_rule_of_the_users_comes_before_the_call():
    rules = user_rules([("numbered", "ab->ab replicate=b flops=7ab")])
    problem = trace_step(inference, SQUARES, rules=rules).problem
    assert problem.unknown == problem.warnings == ()
    (rule,) = [rule for rule in problem.linkage.rules if rule.work is not None]
    # Along the grid's steps, of two rows each.
    assert str(rule) == "(ab)c->(ad)e replicate=b,c,d,e"
    assert rule.work is not None and rule.work.flops == 7 * 16 * 8


def reversed_rows(x):
    def body(x, y):
        y[...] = 2 * x[...]

    given, made = (pl.BlockSpec((2, 16), at) for at in (lambda i: (i, 0), lambda i: (7 - i, 0)))
    return pl.pallas_call(
        body,
        out_shape=x,
        grid=(8,),
        in_specs=[given],
        out_specs=made,
        interpret=True,
        name="reversed_rows",
    )(x)


@pytest.mark.parametrize(
    ("kernel", "rules", "expected"),
    [
        (reversed_rows, [], "result 0 does not hand it on in whole blocks); no rule can, as rules"),
        (
            reversed_rows,
            [("reversed_rows", "ab->ab replicate=b")],
            "whole blocks); your rule was not used to split it: no rule can, as rules count",
        ),
        (
            numbered,
            [("numbered", "ab->ab replicate=a,b")],
            "the body reads its program_id); your rule passes along none of the steps of its grid",
        ),
        (
            numbered,
            [("numbered", "ab->ba")],
            "reads its program_id); your rule 'ab->ba' does not fit its arrays, [16, 8]->[16, 8]",
        ),
        (
            numbered,
            [("numbered", "ab->ba")],
            "the rule of 'numbered' was not used: 'ab->ba' does not fit its arrays, [16, 8]->",
        ),
    ],
)
def test_a_rule_that_splits_nothing_is_said_to(kernel, rules, expected):
    argument = jax.ShapeDtypeStruct((16, 8), "float32")
    if kernel is reversed_rows:
        argument = jax.ShapeDtypeStruct((16, 16), "float32")
    warnings = trace_step(kernel, (argument,), rules=user_rules(rules)).problem.warnings
    assert any(expected in warning for warning in warnings), warnings
    assert not any("a rule can" in warning for warning in warnings)
