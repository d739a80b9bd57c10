"""Edges: every place where a tensor meets an operation, folded to distinct rows.

`automap.cost.edges.halos`     what devices exchange with their neighbours before a window slides
                               over an image that is split
`automap.cost.edges.operands`  where operations read tensors, and the copies that gathering makes
`automap.cost.edges.results`   where operations make tensors, and what is summed there
`automap.cost.edges.sums`      sums that backends do not reduce where the plan makes them
"""

from automap.cost.edges.table import (
    CHOOSING_OPCODES,
    Copies,
    Edges,
    Partials,
    gathered_bytes,
    highest_rank,
    majors,
)


__all__ = [
    "CHOOSING_OPCODES",
    "Copies",
    "Edges",
    "Partials",
    "gathered_bytes",
    "majors",
    "highest_rank",
]
