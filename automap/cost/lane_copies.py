"""Copies of what is gathered along its last dimension, on machines whose memory holds tiles of 128 numbers side by side.

Parts of whole tiles are gathered where they belong. Others are gathered one after the other and then copied into their
places: all that was gathered is read and written once more, at the speed of copies. So libtpu 0.0.51 does with columns of
DLRM's tables (0.65 ms of a step on v5p:2x2x4)                                  -> in: `copied_bytes`
"""

import numpy as np

from automap.cost.edges import Edges
from automap.cost.flows import ALL_GATHER
from automap.cost.shardings import Shardings
from automap.cost.tables import Tables
from automap.cost.traffic import Collectives


LANES = 128


def copied_bytes(tables: Tables, sharding: Shardings, found: Collectives) -> np.ndarray:
    """Bytes that are read and written to put in place what each entry of `found` gathers, [entries]."""
    result = np.zeros(len(found.kind))
    for edges, on_operand in ((tables.operands, True), (tables.results, False)):
        entries = np.flatnonzero((found.kind == ALL_GATHER) & (found.on_operand == on_operand))
        edge, mask = found.edge[entries], found.mask[entries]
        if not len(edge):
            continue
        is_last = _operands_last(edges, sharding) if on_operand else _results_last(edges, sharding)
        is_last = is_last[edge]
        bits = 1 << np.arange(len(sharding.sizes))
        is_gathered = (is_last & (mask[:, None] & bits != 0)).any(axis=1)
        part = edges.last_size[edge] / np.where(is_last, sharding.sizes, 1).prod(axis=1)
        moved = is_gathered & (part % LANES != 0)
        result[entries] = np.where(moved, 2 * found.n_bytes[entries], 0.0)
    return result


def _operands_last(edges: Edges, sharding: Shardings) -> np.ndarray:
    """Whether an axis splits the last dimension of an edge's tensor, [edges, axes]."""
    dims = sharding.dim_of_axis[edges.value_row]
    return (dims == edges.last_dim[:, None]) & (dims >= 0)


def _results_last(edges: Edges, sharding: Shardings) -> np.ndarray:
    """Whether an axis splits the last dimension of what an edge's op makes, [edges, axes]."""
    rows, factors = np.arange(len(edges.last_dim)), sharding.factor_of_axis[edges.op_row]
    last = np.where(edges.last_dim >= 0, edges.factor_of_dim[rows, edges.last_dim], -1)
    return (factors == last[:, None]) & (factors >= 0)
