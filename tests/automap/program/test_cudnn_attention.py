"""cuDNN's attention in every form of `jax.nn.dot_product_attention`, traced and lowered where there
is no cuDNN: its rule, and its work against a count of the pairs of positions.
"""

import importlib
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap import jax_compat
from automap.errors import InputError
from automap.jax_compat import lacks_cudnn
from automap.program import trace_step


B, T, H, K, D = 2, 64, 8, 2, 32
BF16 = jnp.bfloat16


def _abstract(*shape, dtype=BF16):
    return jax.ShapeDtypeStruct(shape, dtype)


QUERY, KEY = _abstract(B, T, H, D), _abstract(B, T, K, D)
LENGTHS = _abstract(B, dtype=jnp.int32)
# Options, further arguments by name, heads of keys.
FORMS = {
    "plain": ({}, {}, QUERY),
    "causal": ({"is_causal": True}, {}, QUERY),
    "grouped heads": ({"is_causal": True}, {}, KEY),
    "window": ({"is_causal": True, "local_window_size": (16, 0)}, {}, QUERY),
    "one head of keys": ({}, {}, _abstract(B, T, 1, D)),
    "bias": ({}, {"bias": _abstract(1, H, T, T)}, QUERY),
    "mask": ({}, {"mask": _abstract(B, 1, T, T, dtype=jnp.bool_)}, QUERY),
    "lengths": ({}, {"query_seq_lengths": LENGTHS, "key_value_seq_lengths": LENGTHS}, QUERY),
}


def _problem(form):
    options, named, key = FORMS[form]

    def step(q, k, v, named):
        def loss(q, k, v, named):
            y = jax.nn.dot_product_attention(q, k, v, implementation="cudnn", **options, **named)
            return y.astype(jnp.float32).sum()

        # A bias has a gradient of its own.
        wanted = (0, 1, 2, 3) if "bias" in named else (0, 1, 2)
        return jax.grad(loss, wanted)(q, k, v, named)

    return trace_step(step, (QUERY, key, key, named), platform="cuda").problem


def _pairs(options):
    t, s = np.arange(T)[:, None], np.arange(T)
    is_read = np.ones((T, T), bool)
    if options.get("is_causal"):
        is_read &= s <= t
    if "local_window_size" in options:
        is_read &= t - s <= options["local_window_size"][0]
    return int(is_read.sum())


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_split_by_batch_and_heads_and_counts_its_products(form):
    problem = _problem(form)
    assert problem.warnings == ()
    calls = [
        (op, rule)
        for op, rule in zip(problem.graph.ops, problem.linkage.rules, strict=True)
        if op.instruction.attributes.custom_call_target.startswith("__cudnn$fmha")
    ]
    assert len(calls) == 2
    for products, (op, rule) in zip((2, 5), calls, strict=True):
        assert rule.work is not None
        assert rule.work.flops == 2 * B * H * _pairs(FORMS[form][0]) * D * products
        queries, keys = (rule.operands[n] for n in range(2))
        # Batch and (key) heads are one factor each of queries, keys and the first result.
        for dim, result_dim in ((0, 0), (2, 1)) if form != "one head of keys" else ((0, 0),):
            assert queries[dim][:1] == keys[dim][:1] == rule.results[0][result_dim][:1] != ()
        assert len(queries[2]) == (2 if FORMS[form][2] is KEY else 1)
        assert op.outputs


@pytest.mark.parametrize(
    ("form", "shared"),
    [
        ("plain", {}),
        ("lengths", {}),
        ("one head of keys", {1: "heads", 2: "heads"}),
        ("grouped heads", {1: "queries of a key head", 2: "queries of a key head"}),
        ("bias", {3: "batch"}),
    ],
)
def test_gradients_of_what_is_shared_are_sums(form, shared):
    problem = _problem(form)
    forward, backward = (
        rule
        for op, rule in zip(problem.graph.ops, problem.linkage.rules, strict=True)
        if op.instruction.attributes.custom_call_target.startswith("__cudnn$fmha")
    )
    (batch,), _, heads, _ = backward.operands[0]
    factor = {"batch": batch, "heads": heads[0], "queries of a key head": heads[-1]}
    expected = {result: (factor[name],) for result, name in shared.items()}
    results = range(len(backward.results))
    assert {n: backward.summed_in(n) for n in results if backward.summed_in(n)} == expected
    assert not any(forward.summed_in(n) for n in range(len(forward.results)))


def test_a_step_that_fails_otherwise_says_its_own_error():
    def step(x):
        raise RuntimeError("cuDNN is fine, this is not")

    with pytest.raises(InputError, match="this is not"):
        trace_step(step, (QUERY,))


def test_outside_of_a_trace_cudnn_is_missing_as_before():
    _problem("plain")
    try:
        jax.eval_shape(
            lambda q: jax.nn.dot_product_attention(q, q, q, implementation="cudnn"), QUERY
        )
    except RuntimeError as error:
        assert lacks_cudnn(error)  # noqa: PT017 - with cuDNN there is nothing to raise


def test_the_plugin_without_the_library_is_as_neither(monkeypatch):
    """As with the CUDA plugin's wheel on a machine that has no cuDNN."""

    def version():
        raise RuntimeError("cuDNN not found.")

    versions = types.SimpleNamespace(cudnn_get_version=version)
    monkeypatch.setattr(importlib.import_module(jax_compat._CUDNN), "cuda_versions", versions)
    with jax_compat.cudnn_assumed():
        jax.eval_shape(
            lambda q: jax.nn.dot_product_attention(q, q, q, implementation="cudnn"), QUERY
        )
    assert lacks_cudnn(RuntimeError("cuDNN not found."))
