"""The generic decoder: its numerics beside written-out attention, and its operations."""

from dataclasses import replace
import math

import jax
from jax import numpy as jnp
import pytest

from automap.program import trace_step
from automap.step.rules import user_rules
from hlo_tools.analyses.flops import flops
from models import decoder_attention
from models.decoder import DecoderConfig, apply_decoder, parameter_shapes, train_step


TINY = DecoderConfig(
    depth=2, d_model=32, heads=4, kv_heads=2, d_head=8, d_ff=64, vocab=64, attention="written"
)
PLAIN = replace(TINY, gated=False, bias=True, tied=True, norm="layer", positions="learned")
EXPERTS = replace(TINY, experts=4, per_token=2, room=2.0)


def _heads(key, seq=8, dtype=jnp.float32):
    names = jax.random.split(key, 4)
    q, do = (jax.random.normal(k, (2, seq, 2, 3, 8), dtype) for k in names[:2])
    k, v = (jax.random.normal(k, (2, seq, 2, 8), dtype) for k in names[2:])
    return q, k, v, do


def test_the_kernels_are_what_written_attention_and_its_gradient_compute():
    q, k, v, do = _heads(jax.random.key(0))
    expected, transpose = jax.vjp(decoder_attention.written_attention, q, k, v)
    o, total = decoder_attention.forward(q, k, v)
    assert jnp.allclose(o, expected, atol=1e-5)
    found = decoder_attention.backward(q, k, v, o, total, do)
    for gradient, other in zip(found, transpose(do), strict=True):
        assert jnp.allclose(gradient, other, atol=1e-5)


def test_attention_is_softmax_of_what_came_before():
    """One head, by numpy's own loops."""
    q, k, v, _ = (x[:1, :, :1] for x in _heads(jax.random.key(1), seq=5))
    o = decoder_attention.written_attention(q, k, v)
    for t in range(5):
        for group in range(3):
            weights = [math.exp(float(q[0, t, 0, group] @ k[0, s, 0])) for s in range(t + 1)]
            mean = sum(w * v[0, s, 0] for s, w in enumerate(weights)) / sum(weights)
            assert jnp.allclose(o[0, t, 0, group], mean, atol=1e-5)


def _drawn(config, seq):
    shapes = parameter_shapes(config, seq)
    leaves, tree = jax.tree.flatten(shapes, is_leaf=lambda x: isinstance(x, tuple))
    keys = jax.random.split(jax.random.key(2), len(leaves))
    return tree.unflatten(
        [0.1 * jax.random.normal(k, s) for k, s in zip(keys, leaves, strict=True)]
    )


@pytest.mark.parametrize("config", [TINY, PLAIN, EXPERTS], ids=["llama", "gpt", "experts"])
def test_unrolled_and_scanned_layers_compute_the_same(config):
    params = _drawn(config, 8)
    tokens = jax.random.randint(jax.random.key(3), (2, 8), 0, config.vocab)
    expected = apply_decoder(config, params, tokens)
    layers = [jax.tree.map(lambda p, n=n: p[n], params["layers"]) for n in range(config.depth)]
    unrolled = replace(config, layers="unrolled")
    found = apply_decoder(unrolled, params | {"layers": layers}, tokens)
    assert jnp.allclose(found, expected, atol=1e-5)
    # No token sees those after it.
    later = apply_decoder(config, params, tokens.at[:, 5:].set(1))
    assert jnp.allclose(later[:, :5], expected[:, :5], atol=1e-5)


@pytest.mark.parametrize("remat", ["attention", "projections", "layer", "whole"])
def test_what_is_made_again_changes_no_gradient(remat):
    params = _drawn(PLAIN, 8)
    tokens = jax.random.randint(jax.random.key(3), (2, 8), 0, PLAIN.vocab)

    def gradient(config):
        return jax.grad(lambda p: (apply_decoder(config, p, tokens) ** 2).sum())(params)

    found, expected = gradient(replace(PLAIN, remat=remat)), gradient(PLAIN)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert jnp.allclose(a, b, rtol=1e-4, atol=1e-5)


# Products that the backward pass makes again, of the four of attention's sides, scores, values, up
# and down; "layer" does not need the last one's result, and "attention" not the values.
@pytest.mark.parametrize(
    ("remat", "again"),
    [("none", ""), ("attention", "s"), ("layer", "pspvu"), ("whole", "pspvud")],
)
def test_operations_of_a_step(remat, again):
    b, t, d, ff = 2, 16, 32, 128
    config = DecoderConfig(
        depth=3, d_model=d, heads=4, kv_heads=4, d_head=8, d_ff=ff, vocab=64, gated=False,
        remat=remat, attention="written",
    )  # fmt: skip
    step, args = train_step(config, batch=b, seq=t)
    problem = trace_step(step, args, platform="cuda").problem
    found = sum(
        op.trip_count * flops(problem.graph, op, rule)
        for op, rule in zip(problem.graph.ops, problem.linkage.rules, strict=True)
        if op.opcode == "dot"
    )
    tokens, scores = b * t, 2 * b * t * t * d
    # p: the half of the four square products; s, v: scores and values; u, d: up and down.
    each = {"p": 2 * tokens * 2 * d * d, "s": scores, "v": scores}
    each |= dict.fromkeys("ud", 2 * tokens * d * ff)
    forward = sum(each[name] for name in "ppsvud")
    logits = 3 * 2 * tokens * d * 64
    assert found == 3 * (3 * forward + sum(each[name] for name in again)) + logits


@pytest.mark.parametrize("remat", ["none", "whole"])
def test_the_kernels_of_attention_have_the_operations_of_their_rules(remat):
    config = replace(TINY, attention="kernel", remat=remat, layers="unrolled")
    step, args = train_step(config, batch=2, seq=16)
    rules = decoder_attention.attention_rules(0.5, 0.25)
    problem = trace_step(step, args, platform="tpu", rules=user_rules(rules.items())).problem
    found = [
        (op.instruction.attributes.custom_call_target, rule.work)
        for op, rule in zip(problem.graph.ops, problem.linkage.rules, strict=True)
        if op.opcode == "custom-call"
    ]
    whole = 2 * 16 * 16 * 4 * 8  # batch, t, s, heads, features
    kinds = {"attention_forward": (2, 0.5), "attention_backward": (5, 0.25)}
    for name, work in found:
        products, efficiency = kinds[name]
        assert (work.flops, work.efficiency) == (products * whole, efficiency)
    names = [name for name, _ in found]
    assert names.count("attention_forward") == 2 * (1 + (remat == "whole"))
    assert names.count("attention_backward") == 2


def test_experts_with_room_for_all_are_the_mean_of_two():
    """A router that has no preference, and equal experts, are one feed-forward."""
    params = _drawn(EXPERTS, 8)
    tokens = jax.random.randint(jax.random.key(3), (2, 8), 0, EXPERTS.vocab)
    layers = params["layers"]
    equal = {n: jnp.broadcast_to(layers[n][:, :1], layers[n].shape) for n in ("up", "down", "gate")}
    found = apply_decoder(EXPERTS, params | {"layers": layers | equal}, tokens)
    dense = replace(EXPERTS, experts=0)
    one = {n: layers[n][:, 0] for n in ("up", "down", "gate")}
    expected = apply_decoder(dense, params | {"layers": layers | one}, tokens)
    assert jnp.allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("changed", [{"depth": 0}, {"kv_heads": 3}, {"remat": "some"}])
def test_sizes_and_words_that_are_not_possible(changed):
    with pytest.raises(Exception, match=next(iter(changed))):
        replace(TINY, **changed)
