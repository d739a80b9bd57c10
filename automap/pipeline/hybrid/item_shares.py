"""Which items the incidences of an edge table belong to: those of the ops that gather before they
run, or sum after it.

An edge row stands for incidences that run `trips` times each; an item has its share of the row's
trips. An op of an unrolled loop belongs to the items of all its trips alike; one of the update to
none.
"""

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from automap.cost.edges import Edges
from automap.pipeline.profile.profile import Profile
from hlo_tools.analyses.phases import Phase


@dataclass(frozen=True)
class ItemShares:
    """Sparse [items, edges]: shares of an edge's times in each pass, and how many tensors of an
    edge an item reads.
    """

    forward: sparse.csr_matrix
    backward: sparse.csr_matrix
    copies: sparse.csr_matrix


def item_shares(profile: Profile, edges: Edges) -> ItemShares:
    """The owners of an edge table's rows."""
    problem, items = profile.timing.problem, profile.anatomy.items
    backward = profile.anatomy.backward
    total = np.bincount(edges.incidences[:, 0], edges.incidences[:, 4], len(edges.count))
    shares: dict[bool, list[tuple[int, int, float]]] = {False: [], True: []}
    read: set[tuple[int, int, int]] = set()
    loops = [(loop.enter, loop.leave) for loop in items.loops]
    for row, value, op, _, trips in edges.incidences.tolist():
        is_forward = problem.phases[op] is Phase.FORWARD or any(a <= op <= b for a, b in loops)
        if op not in backward.span and not is_forward:
            continue
        first, last = backward.span.get(op) or items.span(op)
        share = trips / total[row] / (last - first + 1)
        for item in range(first, last + 1):
            shares[op in backward.span].append((item, row, share))
            read.add((item, row, value))
    shape = (profile.n_items, len(edges.count))
    copies = [(item, row, 1.0) for item, row, _ in read]
    return ItemShares(*(_matrix(rows, shape) for rows in (shares[False], shares[True], copies)))


def _matrix(rows: list[tuple[int, int, float]], shape: tuple[int, int]) -> sparse.csr_matrix:
    item, edge, share = np.array(rows, float).reshape(-1, 3).T
    return sparse.csr_matrix((share, (item.astype(int), edge.astype(int))), shape=shape)
