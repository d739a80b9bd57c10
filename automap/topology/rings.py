"""The rings that a mesh axis makes of the devices of its groups, in a given order of the devices.

Each device sends to the one at the next place of its group, the last to the first. What that costs
follows from the links on the ways (`automap.topology.link_loads`): in one direction, as halos and
permutes go, or to the next and to the previous at once, as shards of a product go round
                                                                -> in: `ring_pairs`, `ring_step`
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from automap.topology.link_loads import Permutation, permutation
from automap.topology.model import Topology


Pair = tuple[int, int]


def ring_pairs(order: Sequence[int], mesh_shape: Sequence[int], axes: Sequence[int]) -> list[Pair]:
    """(device, the next one) of every group of mesh `axes`, from the last place to the first too.

    Places of a group are row-major over its axes, as a partitioner numbers them.
    """
    kept = [axis for axis in range(len(mesh_shape)) if axis not in axes]
    devices = np.asarray(order).reshape(mesh_shape).transpose((*kept, *sorted(axes)))
    groups = devices.reshape(-1, prod(mesh_shape[axis] for axis in axes))
    following = np.roll(groups, -1, axis=1)
    return list(zip(groups.ravel().tolist(), following.ravel().tolist(), strict=True))


def ring_step(
    topology: Topology, order: Sequence[int], mesh_shape: Sequence[int], axes: Sequence[int]
) -> Permutation:
    """A message from every device of a ring over mesh `axes` to the next, and one to the previous,
    all at once.
    """
    pairs = ring_pairs(order, mesh_shape, axes)
    return permutation(topology, [*pairs, *((after, before) for before, after in pairs)])
