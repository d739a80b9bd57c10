"""A point of the space: a mesh shape and, for each mesh axis, an ordered list of classes.

The list is the axis's order of precedence. A tensor gives the axis to the first listed class that
stands on one of its dimensions; an op gives it to the first listed class that stands on one of its
factors. So one axis can serve different classes in different regions of the graph (the batch in the
convolutions, the features in the fully connected layers), and every conflict has a stated outcome.

Compute classes come before storage classes: a leaf's storage takes what computation leaves over.
"""

from dataclasses import dataclass
from enum import IntEnum

from automap.topology.mesh import Mesh


class StorageLevel(IntEnum):
    """How far a leaf class is stored split along an axis."""

    REPLICATED = 0
    OPTIMIZER = 1  # gradient and optimizer state (ZeRO-1, ZeRO-2)
    FULL = 2  # the parameter too (ZeRO-3)


@dataclass(frozen=True, slots=True)
class Point:
    """Decisions on one mesh.

    `compute[a]` lists compute classes of axis a in order of precedence; `storage[a][k]` is the
    level of leaf class k along axis a. A class in `last_dim_classes` splits the last
    of a tensor's dimensions that hold it, any other class the first. Of a class in
    `small_whole_classes` the small tensors stay whole (`automap.program.problem`).
    """

    mesh: Mesh
    compute: tuple[tuple[int, ...], ...]
    storage: tuple[tuple[StorageLevel, ...], ...]
    last_dim_classes: frozenset[int] = frozenset()
    small_whole_classes: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class SplitClasses:
    """The classes that each mesh axis splits, in order of precedence: a point whose storage levels
    have become storage classes, which is what an evaluation needs.
    """

    mesh: Mesh
    classes: tuple[tuple[int, ...], ...]
    last_dim_classes: frozenset[int] = frozenset()
    small_whole_classes: frozenset[int] = frozenset()
