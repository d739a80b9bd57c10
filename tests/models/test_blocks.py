"""What the blocks of the zoo compute: stacks of layers, dropout, grouped attention and experts."""

from dataclasses import replace
from functools import partial

from flax import nnx
import jax
from jax import numpy as jnp
import pytest

from models import llama, moe
from models.experts import combine_tensor
from models.layers import causal_bias, dropout
from models.training import adamw, random_batch


def _losses(built, params):
    """Losses of the first two steps from given parameters, on one batch."""
    state = {"params": jax.tree.map(jnp.copy, params), "opt": adamw().init(params)}
    batch, losses = random_batch(built.args[1], 0), []
    for _ in range(2):
        state, metrics = built.step(state, batch)
        losses.append(float(metrics["loss"]))
    return losses


@pytest.mark.slow
def test_recomputed_unrolled_layers_drop_and_compute_the_same_as_scanned_ones():
    config = replace(llama.TINY, dropout=0.2, remat="layer")
    scanned = replace(config, layers="scanned", remat="none")
    params = jax.jit(partial(llama.init, config))(jax.random.key(0))["params"]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params["layers"].values())
    expected = _losses(llama.llama(config, batch=2, seq=8), params)
    found = _losses(llama.llama(scanned, batch=2, seq=8), params | {"layers": stacked})
    assert found == pytest.approx(expected, rel=1e-5)


def test_layers_are_recomputed_only_if_asked_for():
    for remat in ("none", "layer"):
        step, args = llama.llama_tiny(remat=remat)
        assert ("remat" in str(step.trace(*args).jaxpr)) == (remat == "layer")


def test_dropout_keeps_the_mean_and_drops_by_its_key():
    x = jnp.ones((64, 64))
    y = dropout(x, jax.random.key(0), 0.25)
    assert jnp.allclose(jnp.unique(y), jnp.array([0, 4 / 3]))
    assert float(y.mean()) == pytest.approx(1, abs=0.05)
    assert (dropout(x, jax.random.key(1), 0.25) != y).any()
    assert dropout(x, None, 0.25) is x


def test_experts_with_room_for_all_tokens_compute_the_same_in_both_dispatches():
    config = replace(moe.TINY, depth=2, room=moe.TINY.experts / 2)
    params = jax.jit(partial(moe.init, config))(jax.random.key(0))["params"]
    steps = [
        moe.moe(replace(config, dispatch=dispatch), batch=2, seq=16)
        for dispatch in ("einsum", "sorted")
    ]
    assert _losses(steps[0], params) == pytest.approx(_losses(steps[1], params), rel=1e-5)


def test_a_full_expert_takes_first_choices_before_second_ones_and_cuts_the_rest():
    chosen = jnp.array([[1, 0, 0]]), jnp.array([[0, 1, 1]])
    masks = tuple(jax.nn.one_hot(expert, 2) for expert in chosen)
    weights = jnp.array([[0.6, 0.7, 0.8]]), jnp.array([[0.4, 0.3, 0.2]])
    # [token, expert, place]: expert 0 is full of tokens 1 and 2, expert 1 has place for one more.
    expected = [[[0, 0], [0.6, 0]], [[0.7, 0], [0, 0.3]], [[0, 0.8], [0, 0]]]
    assert jnp.allclose(combine_tensor(masks, weights, 2)[0], jnp.array(expected))


def test_attention_with_grouped_heads_equals_attention_with_repeated_keys():
    grouped = replace(llama.TINY, key_heads=4)
    full = replace(grouped, key_heads=grouped.heads)
    few = llama.GroupedAttention(grouped, rngs=nnx.Rngs(0))
    many = llama.GroupedAttention(full, rngs=nnx.Rngs(0))
    for name in ("k", "v"):
        kernel = getattr(few, name).kernel[...].reshape(grouped.d_model, grouped.key_heads, -1)
        repeated = kernel.repeat(grouped.heads // grouped.key_heads, axis=1)
        getattr(many, name).kernel[...] = repeated.reshape(grouped.d_model, -1)
    for name in ("q", "o"):
        getattr(many, name).kernel[...] = getattr(few, name).kernel[...]
    x = jax.random.normal(jax.random.key(1), (2, 8, grouped.d_model))
    angles = llama.rotary_angles(8, few.d_head, grouped.theta)
    assert jnp.allclose(few(x, causal_bias(8), angles), many(x, causal_bias(8), angles), atol=1e-5)


def test_scores_of_rotated_heads_depend_on_the_distance_only():
    q, k = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 8))
    angles = llama.rotary_angles(6, 8, 500_000.0)
    q, k = (llama.rotate(y.repeat(6, axis=1), angles)[0, :, 0] for y in (q, k))
    scores = q @ k.T
    assert jnp.allclose(scores[1:, 1:], scores[:-1, :-1], atol=1e-5)
    assert not jnp.allclose(scores[0, 0], scores[0, 1], atol=1e-3)
