"""The time of a collective over a group of mesh axes, as a function of its bytes."""

from automap.cost.collectives.costs import (
    CollectiveCost,
    collective_cost,
    group_cost,
    ring_scatter_cost,
)
from automap.cost.collectives.kinds import KINDS, CollectiveKind


__all__ = [
    "KINDS",
    "CollectiveCost",
    "CollectiveKind",
    "collective_cost",
    "group_cost",
    "ring_scatter_cost",
]
