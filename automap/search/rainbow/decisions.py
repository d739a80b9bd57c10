"""Decisions of an episode: at each the agent keeps the point as it is, or makes one of at most
`MOST_MOVES` moves.

candidates, most parameter bytes first: for each axis put there or take off, put beside those it
meets, or move to another axis axes: exchange all of two sides and small parts of classes storage:
all leaves of an axis, then the largest leaves one by one
"""

from automap.search.moves import Exchange, Join, Move, Part, StoreAll, StoreOne, Swap, Toggle, Turn
from automap.space.point import Level
from automap.space.space import Space
from automap.topology.mesh import Mesh


Decision = tuple[Move, ...]
MOST_MOVES = 4
# Leaf classes that are decided one by one.
_SINGLE_LEAVES = 8


def decisions(space: Space, mesh: Mesh) -> tuple[Decision, ...]:
    """All decisions on a mesh of at most three axes, in order."""
    axes = range(len(mesh.sizes))
    found: list[Decision] = []
    for group_class in space.candidates:
        for axis in axes:
            others = (Exchange(axis, other, group_class) for other in axes if other != axis)
            joins = (Join(axis, group_class),) if group_class in space.meeting else ()
            found.append((Toggle(axis, group_class), *joins, *others))
    found += [(Swap(first, second),) for first in axes for second in axes if first < second]
    found += [(Turn(group_class),) for group_class in space.repeated_classes]
    found += [(Part(group_class),) for group_class in space.small_part_classes]
    found += [tuple(StoreAll(axis, level) for level in Level) for axis in axes]
    for leaf in range(min(len(space.leaves), _SINGLE_LEAVES)):
        found += [tuple(StoreOne(axis, leaf, level) for level in Level) for axis in axes]
    return tuple(found)
