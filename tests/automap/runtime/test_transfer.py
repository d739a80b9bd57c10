"""Transfers between devices that no process sees all of: what arrives is what was sent, from any
sharding to any other.
"""

import random

import jax
from jax import numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np
import pytest

from automap.runtime.transfer import carry, plan_route


SPECS = {
    0: [()],
    1: [(), ("a",), (("b", "a"),)],
    2: [(), ("a",), (None, "b"), ("a", "b"), (("a", "b"),)],
    3: [(), ("b", None, "a"), (None, ("a", "b")), (None, None, "b")],
}
GRIDS = [(1, 1), (2, 1), (1, 2), (3, 1), (2, 2), (2, 3), (4, 2)]
TYPES = ["float32", "int32", "bool", "bfloat16", "uint8"]


def some_sharding(choose: random.Random, ndim: int) -> NamedSharding:
    """On some devices in some order, split or whole."""
    grid = choose.choice(GRIDS)
    devices = choose.sample(jax.devices(), grid[0] * grid[1])
    mesh = Mesh(np.array(devices).reshape(grid), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    return NamedSharding(mesh, PartitionSpec(*choose.choice(SPECS[ndim])))


@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 90), marks=pytest.mark.slow)])
def test_an_array_arrives_as_it_was(seeds):
    for seed in seeds:
        choose = random.Random(seed)
        ndim = seed % 4
        # What all grids divide.
        shape = (24,) * ndim
        values = np.arange(np.prod(shape, dtype=int)).reshape(shape) % 251
        array = values.astype(jnp.dtype(choose.choice(TYPES)))
        source, to = some_sharding(choose, ndim), some_sharding(choose, ndim)
        got = carry(jax.device_put(array, source), to)
        assert (got.sharding, got.dtype, got.shape) == (to, array.dtype, array.shape)
        for shard in got.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), array[shard.index])


def sharding(first: int, last: int, *spec) -> NamedSharding:
    mesh = Mesh(np.array(jax.devices()[first:last]), ("a",), axis_types=(AxisType.Auto,))
    return NamedSharding(mesh, PartitionSpec(*spec))


@pytest.mark.parametrize(
    ("source", "to", "rounds", "moves"),
    [
        # Each its own part.
        (sharding(0, 4, "a"), sharding(4, 8, "a"), 1, 4),
        # Two parts to each of two devices; from one to four, one after the other.
        (sharding(0, 4, "a"), sharding(4, 6, "a"), 2, 4),
        (sharding(0, 1, "a"), sharding(4, 8, "a"), 4, 4),
        # Whole: who has it passes it on, to 1, 2 and 4 more.
        (sharding(0, 1), sharding(1, 8), 3, 7),
        (sharding(0, 4), sharding(4, 8), 1, 4),
        # Nothing moves to who has it.
        (sharding(0, 4), sharding(0, 4), 0, 0),
        (sharding(0, 4), sharding(0, 6), 1, 2),
        # All parts to each of two, of which one has one.
        (sharding(0, 4, "a"), sharding(3, 5), 4, 8),
    ],
)
def test_as_few_rounds_as_devices_allow(source, to, rounds, moves):
    route = plan_route((8, 2), source, to)
    assert (len(route.rounds), sum(len(r.moves) for r in route.rounds)) == (rounds, moves)
    for each in route.rounds:
        assert len({m.source for m in each.moves}) == len(each.moves)
        assert len({m.to for m in each.moves}) == len(each.moves)
