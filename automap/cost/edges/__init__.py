"""Edges: every place where a tensor meets an operation, folded to distinct rows.

`automap.cost.edges.loops`  the loop that each operation is in, and messages within its trips
`automap.cost.edges.sums`   sums that backends do not reduce where the plan makes them
"""

from automap.cost.edges.halos import Windows, build_windows, halo_exchanges
from automap.cost.edges.operands import operand_edges
from automap.cost.edges.results import result_edges
from automap.cost.edges.table import (
    CHOOSING_OPCODES,
    AtOnce,
    Copies,
    Edges,
    Partials,
    gathered_bytes,
    highest_rank,
    inners,
    majors,
)


__all__ = [
    "CHOOSING_OPCODES",
    "AtOnce",
    "Copies",
    "Edges",
    "Partials",
    "Windows",
    "build_windows",
    "gathered_bytes",
    "halo_exchanges",
    "highest_rank",
    "inners",
    "majors",
    "operand_edges",
    "result_edges",
]
