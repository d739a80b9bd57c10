"""Products of matrices and vectors: what libtpu 0.0.51 gives steps of little else."""

import jax
import jax.numpy as jnp
import pytest

from automap.topology import get_topology
from scripts.compare_measured import predicted_alone


TOPOLOGY = get_topology("v5e:1x1")


def _given(vector, matrix):
    return vector @ matrix


def _layers(x, up, down):
    def layer(x, w):
        return x + jnp.tanh(x @ w[0]) @ w[1], None

    return jax.lax.scan(layer, x, (up, down))[0]


def _decoded(query, keys, values):
    def layer(q, cache):
        keys, values = cache
        score = jnp.einsum("bhd,bshd->bhs", q, keys).astype(jnp.float32)
        share = jax.nn.softmax(score, -1).astype(q.dtype)
        return q + jnp.einsum("bhs,bshd->bhd", share, values), None

    return jax.lax.scan(layer, query, (keys, values))[0]


def _tokens(state, queries, keys, values):
    def token(state, at):
        query, key, value = at
        wrong = value - jnp.einsum("bhkv,bhk->bhv", state, key)
        state = state + jnp.einsum("bhk,bhv->bhkv", key, wrong)
        return state, jnp.einsum("bhkv,bhk->bhv", state, query)

    return jax.lax.scan(token, state, (queries, keys, values))[1]


WIDE = ((6, 1024, 4096), (6, 4096, 1024))
CACHES = ((6, 8, 1024, 16, 128),) * 2
TOKENS = ((32, 8, 16, 128),) * 3
# Microseconds in float32 and in bfloat16 (v5e, cycles by the clock, 2026-12-01).
COMPILED = {
    "given": (_given, ((8192,), (8192, 4096)), (402.7, 311.9)),
    "one row": (_given, ((1, 8192), (8192, 4096)), (402.7, 314.9)),
    "layers of one row": (_layers, ((1, 1024), *WIDE), (631.0, 502.5)),
    "one query": (_decoded, ((8, 16, 128), *CACHES), (2553.5, 2057.8)),
}


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_steps_of_vectors_take_what_the_compiler_says(name, dtype):
    step, shapes, microseconds = COMPILED[name]
    arrays = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    predicted = predicted_alone(step, arrays, TOPOLOGY).step_seconds * 1e6
    assert predicted == pytest.approx(microseconds[dtype == "bfloat16"], rel=0.1)


def test_states_of_matrices_are_summed_in_every_trip():
    """1,740 us as compiled, 100 of them slices that are not predicted; 525 before."""
    arrays = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((8, 16, 128, 128), *TOKENS)]
    predicted = predicted_alone(_tokens, arrays, TOPOLOGY).step_seconds * 1e6
    assert 1300 < predicted < 1740
