"""The collectives that shardings imply: what each operation must gather first, and what it must do
with its result.

`automap.cost.traffic.flows`  what happens at all edges at once, and how it is listed
"""

from automap.cost.traffic.step import Collectives, collectives


__all__ = ["Collectives", "collectives"]
