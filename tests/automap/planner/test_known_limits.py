"""What a plan says of operations that its compiler runs much longer than is predicted."""

import jax
from jax import numpy as jnp
import pytest

from automap import plan


def _table_step(dtype, rows, updates):
    @jax.jit
    def step(table, ids):
        return jax.grad(lambda t: jnp.take(t, ids, axis=0).astype("float32").sum())(table)

    return step, (
        jax.ShapeDtypeStruct((rows, 8), dtype),
        jax.ShapeDtypeStruct((updates,), jnp.int32),
    )


def _said(dtype, rows, updates, **options):
    step, args = _table_step(dtype, rows, updates)
    record = plan(step, args, **{"topology": "1xh100", "budget": 2, **options})
    return [text for text in record.warnings if "additions in" in text]


@pytest.mark.parametrize("space", ["sharding", pytest.param("placement", marks=pytest.mark.slow)])
def test_short_floats_that_meet_at_few_numbers_are_told_with_their_place(space):
    (said,) = _said("bfloat16", 32, 2**18, space=space)
    assert "test_known_limits.py" in said
    assert "8,192 additions in bf16 meet at each number of a table of 32x8" in said


@pytest.mark.parametrize(
    ("dtype", "rows", "updates", "topology"),
    [
        ("float32", 32, 2**18, "1xh100"),  # the memory adds it by itself
        ("bfloat16", 32_000, 2**18, "1xh100"),  # tokens
        ("bfloat16", 32, 2**18, "v5e:1x1"),  # no atomic additions there
    ],
)
def test_nothing_is_said_of_what_is_priced(dtype, rows, updates, topology):
    assert not _said(dtype, rows, updates, topology=topology)


@pytest.mark.parametrize(("topology", "is_told"), [("v5e:1x1", True), ("1xh100", False)])
def test_tpu_plans_tell_that_factorizations_are_not_priced(topology, is_told):
    @jax.jit
    def step(weights, batch):
        factor = jnp.linalg.cholesky(batch)
        # JAX has an expansion of it for TPUs, of many factorizations in one place.
        return weights + factor.sum(0) + jnp.linalg.eigh(batch[0])[1]

    args = tuple(jax.ShapeDtypeStruct(dims, jnp.float32) for dims in [(512, 512), (8, 512, 512)])
    record = plan(step, args, topology=topology, budget=2)
    told = [text for text in record.warnings if "factorizations of matrices" in text]
    assert len(told) == 2 * is_told
    assert all("test_known_limits.py" in text for text in told)
