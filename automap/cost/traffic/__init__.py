"""The collectives that shardings imply: what each operation must gather first, and what it must do
with its result.

`automap.cost.traffic.flows`        what happens at all edges at once, and how it is listed
`automap.cost.traffic.lane_copies`  copies beside collectives along the last dimension
"""

from automap.cost.traffic.step import Collectives, collectives


__all__ = ["Collectives", "collectives"]
