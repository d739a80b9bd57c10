"""What processes are told of results that lie as XLA chose, in one process: it is what they are."""

import jax
from jax import numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P, SingleDeviceSharding
import numpy as np
import pytest

from automap.runtime.pipeline.compiled import BroadcastShardings


@pytest.mark.parametrize(
    "spec", [P(), P(("b", "a")), P(("a", "b"), None), P(None, "b"), P("b", None, "a")]
)
def test_the_axes_of_each_dimension_are_told_in_their_order(spec):
    devices = jax.devices()[:8]
    mesh = jax.sharding.Mesh(np.array(devices).reshape(4, 2), ("a", "b"))
    chosen = NamedSharding(mesh, spec)
    x = jax.device_put(jnp.zeros((8, 8, 8)), chosen)
    broadcast = BroadcastShardings(jax.jit(lambda x: (x + 1, x.sum())), mesh, devices)
    made, total = broadcast(x)
    assert made.sharding.is_equivalent_to(chosen, 3)
    assert [s.is_equivalent_to(chosen, 3) for s in broadcast._shardings[:1]] == [True]
    assert broadcast._shardings[1].is_equivalent_to(total.sharding, 0)


def test_what_has_no_axes_is_made_whole():
    device = jax.devices()[0]
    mesh = jax.sharding.Mesh(np.array([device]), ("a",))
    run = jax.jit(lambda x: x + 1, out_shardings=SingleDeviceSharding(device))
    made = BroadcastShardings(run, mesh, [device])(jnp.zeros(4))
    assert made.sharding == NamedSharding(mesh, P())
    np.testing.assert_array_equal(made, np.ones(4))
