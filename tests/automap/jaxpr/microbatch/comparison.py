"""A step in microbatches beside the step itself."""

import jax
from jax import numpy as jnp
import numpy as np


def bits_free(leaf):
    """A leaf as a numpy array, a random key as its words, in float64 if it is a short float."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    return array.astype(np.float64) if jnp.issubdtype(leaf.dtype, jnp.inexact) else array


def assert_close(got, want, *, rtol, atol):
    """Equal trees, types and shapes; integers and keys equal, floats close."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(bits_free(a), bits_free(b), rtol=rtol, atol=atol)
