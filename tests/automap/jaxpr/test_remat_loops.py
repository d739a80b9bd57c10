"""In which order the dimensions lie of what loops keep in the host's memory."""

from itertools import permutations
import math

from hypothesis import given, strategies as st
import jax
from jax import lax
from jax.extend import core
from jax.extend.core import jaxpr_as_fun
import jax.numpy as jnp
import numpy as np

from automap.jaxpr.again import Choice
from automap.jaxpr.blocks import block_groups
from automap.jaxpr.flatten import equations, flatten
from automap.jaxpr.remat_loops import _host_order, _in_tiles, _loaded, _stored
from automap.jaxpr.rematerialize import rematerialized


@given(st.lists(st.integers(1, 3000), max_size=5))
def test_orders_in_host_memory_leave_no_more_gaps_than_the_arrays_own(shape):
    order, own = _host_order(shape), tuple(range(len(shape)))
    assert sorted(order) == list(own)
    if len(shape) < 2:
        return
    gaps = {last: _in_tiles(shape, last) for last in permutations(own, 2)}
    # By brute force: the array's own order where it is good enough, else one of the best.
    is_kept = gaps[own[-2:]] <= 1.5 * math.prod(shape)
    assert (order == own) if is_kept else gaps[order[-2:]] == min(gaps.values())


def test_narrow_heads_are_not_last_in_host_memory():
    assert _host_order((8, 1024, 768)) == (0, 1, 2)
    # 64 numbers would lie in 128, 12 heads in 16.
    assert _host_order((8, 1024, 12, 64)) == (0, 2, 3, 1)


def test_typed_keys_wait_in_any_order():
    shape = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 3))
    (key,) = jax.make_jaxpr(lambda key: key)(shape).jaxpr.invars
    assert [eqn.primitive.name for eqn in _stored(key, "one order")] == ["device_put"]
    assert [eqn.primitive.name for eqn in _loaded(key, "one order")] == ["device_put"]
    array = core.Var(jax.core.ShapedArray((3, 4), "float32"))
    assert [eqn.primitive.name for eqn in _stored(array, "one order")] == [
        "layout_constraint",
        "device_put",
    ]


def test_what_stays_on_the_device_beside_has_one_order_too():
    def loss(weights, x):
        def layer(x, w):
            return jnp.tanh(jnp.sin(x @ w)), None

        return lax.scan(layer, x, weights)[0].sum()

    args = (jnp.full((3, 8, 8), 0.1), jnp.ones((2, 4, 8)))
    traced = jax.jit(jax.grad(loss)).trace(*args).jaxpr
    flat = flatten(traced, {})
    (block,) = (b for group in block_groups(flat) for b in group.blocks if b.outer is not None)
    products = {
        v for v, (n, _) in block.number.items() if block.equations[n].eqn.primitive.name != "sin"
    }
    orders = {}
    for hosted in (frozenset(), frozenset(block.carries)):
        choice = Choice(block, frozenset(products), hosted, "one order")
        changed = rematerialized(flat, [choice])
        names = [e.eqn.primitive.name for e in equations(flatten(changed, {}))]
        orders[bool(hosted)] = names.count("layout_constraint")
        for got, expected in zip(
            jaxpr_as_fun(changed)(*args), [jax.grad(loss)(*args)], strict=True
        ):
            np.testing.assert_allclose(got, expected, rtol=1e-5)
    # The carry, there and back, and as often what is stacked on the device; else nothing.
    assert orders[False] == 0 and orders[True] > 2 and orders[True] % 2 == 0
