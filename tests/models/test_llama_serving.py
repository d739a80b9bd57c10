"""Serving steps give the logits of the whole model, whatever was read before."""

import jax
import jax.numpy as jnp
import numpy as np

from models.llama import TINY, Llama
from models.llama_serving import serving_tiny


def test_prefill_and_decode_give_the_logits_of_the_whole_model():
    from flax import nnx

    model = Llama(TINY, rngs=nnx.Rngs(0))
    state = {"params": nnx.to_pure_dict(nnx.state(model, nnx.Param))}
    tokens = np.random.default_rng(0).integers(0, TINY.vocab, (8, 6)).astype(np.int32)
    expected = model(jnp.asarray(tokens), None)
    prefill, (_, shapes, _) = serving_tiny(tokens=4)
    decode, _ = serving_tiny()
    caches = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    batch = {"tokens": tokens[:, :4], "position": np.int32(0)}
    logits, caches = prefill(state, caches, batch)
    np.testing.assert_allclose(logits, expected[:, 3], rtol=2e-4, atol=2e-4)
    for place in (4, 5):
        batch = {"tokens": tokens[:, place : place + 1], "position": np.int32(place)}
        logits, caches = decode(state, caches, batch)
        np.testing.assert_allclose(logits, expected[:, place], rtol=2e-4, atol=2e-4)
