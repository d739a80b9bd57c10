"""Parts of leaves cover each of them once, and an update has all that depends on its leaves."""

from hypothesis import given, strategies as st
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np
import pytest

from automap.jax_compat import open_jaxpr
from automap.jaxpr import in_parts
from automap.jaxpr.in_parts import PARTS, Cut, cut_leaf, hosted_updates, run_update


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=4), st.sampled_from([1, 2, 4, 8]))
def test_parts_are_whole_tiles_and_not_too_many(shape, itemsize):
    cut = cut_leaf(shape, itemsize)
    n_bytes = int(np.prod(shape)) * itemsize
    if cut is None:
        return
    assert n_bytes >= 2 * in_parts._PART_BYTES
    size = shape[cut.axis]
    assert 0 < cut.size < size
    assert -(-size // cut.size) <= PARTS
    # Behind the dimension that is cut there are whole rows.
    behind = len(shape) - cut.axis
    assert cut.size % {1: in_parts._LANES, 2: in_parts._ROWS}.get(behind, 1) == 0


def test_small_leaves_stay_whole():
    assert cut_leaf((48, 64), 4) is None
    assert cut_leaf((48, 1024, 4096), 4) == Cut(0, 3)
    # A part has a quarter of a megabyte at least, and whole tiles.
    assert cut_leaf((256, 1024), 4) == Cut(0, 64)
    assert cut_leaf((4, 256, 1024), 4) == Cut(1, 32)
    assert cut_leaf((1, 50257, 1024), 4) == Cut(1, 3168)


def _adam(p, m, v, g, rate):
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return p - rate * m / (jnp.sqrt(v) + 1e-8), m, v


def _step(p, m, v, x, rate):
    gradient = jax.grad(lambda p: jnp.tanh(x @ p).sum())(p).astype("bfloat16")
    return _adam(p, m, v, gradient.astype("float32"), rate)


def _given(rows=6, columns=4):
    rng = np.random.default_rng(0)
    p, m, v = (jnp.asarray(rng.uniform(0.1, 1, (rows, columns)), "float32") for _ in range(3))
    return p, m, v, jnp.asarray(rng.normal(size=(8, rows)), "float32"), jnp.float32(0.1)


def test_moments_are_updated_together_with_what_is_there_for_them_alone():
    jaxpr, _ = open_jaxpr(jax.make_jaxpr(_step)(*_given()))
    (update,) = hosted_updates(jaxpr, [1, 2])
    assert {jaxpr.invars.index(v) for v in update.arrays if v in jaxpr.invars} == {0, 1, 2}
    # The gradient comes in as it was made, and is cast in the loop.
    assert [v.aval.dtype for v in update.arrays if v not in jaxpr.invars] == ["bfloat16"]
    assert set(update.outputs) == set(jaxpr.outvars)
    assert update.scalars == (jaxpr.invars[4],)


@pytest.mark.parametrize(
    "after",
    [
        lambda m: m.sum(),
        lambda m: m / jnp.abs(m).max(),
        lambda m: m.T,
        lambda m: jnp.cumsum(m, axis=0),
    ],
)
def test_what_more_than_elements_depend_on_is_not_updated_in_parts(after):
    def step(p, m, v, x, rate):
        new = _step(p, m, v, x, rate)
        return *new, after(new[1])

    jaxpr, _ = open_jaxpr(jax.make_jaxpr(step)(*_given()))
    assert hosted_updates(jaxpr, [1, 2]) == []


@pytest.mark.parametrize("cut", [Cut(0, 1), Cut(0, 2), Cut(1, 2)])
@pytest.mark.parametrize("spec", [(), ("x",), (None, "x")])
def test_an_update_in_parts_is_the_update(cut, spec):
    args = _given()
    jaxpr, _ = open_jaxpr(jax.make_jaxpr(_step)(*args))
    (update,) = hosted_updates(jaxpr, [1, 2])
    values = dict(zip(jaxpr.invars, args, strict=True))
    gradient = next(v for v in update.arrays if v not in jaxpr.invars)
    values[gradient] = jnp.asarray(np.random.default_rng(1).normal(size=(6, 4)), "bfloat16")
    place = NamedSharding(Mesh(np.array(jax.devices()[:2]), "x"), PartitionSpec(*spec))
    starts = dict(zip(jaxpr.outvars, jaxpr.invars[:3], strict=True))
    read = [*update.arrays, *update.scalars]

    @jax.jit
    def run(given):
        values = dict(zip(read, given, strict=True))
        return run_update(update, values, starts, set(), place, cut)

    got = run([values[v] for v in read])
    expected = _adam(*args[:3], values[gradient].astype("float32"), args[4])
    for output, value in zip(jaxpr.outvars, expected, strict=True):
        np.testing.assert_allclose(got[update.outputs.index(output)], value, rtol=1e-6)
