"""The collectives that shardings imply: what each operation must gather first, and what it must do
with its result.

`automap.cost.traffic.flows`   what happens at all edges at once, and how it is listed
`automap.cost.traffic.turned`  sums that are whole, and arrays in another order of dimensions
"""

from automap.cost.traffic.step import Collectives, collectives


__all__ = ["Collectives", "collectives"]
