"""Copies beside collectives along the last dimension, on machines whose memory holds tiles of 128
numbers side by side.

all-gather     parts of whole tiles are gathered where they belong; others one after the other, and then copied into their
               places (columns of DLRM's tables: 0.65 ms of a step on v5p:2x2x4)
all-to-all     what is exchanged stands apart, so that what moves from the last dimension, or to it, is copied before or
               after (a recurrent network's states, 1.3 us in each trip; tokens of experts move between other dimensions)

What is copied is read and written once more, at the speed of copies (libtpu 0.0.51)          -> in: `copy_seconds`
"""

from typing import Final

import numpy as np

from automap.cost.edges import Edges
from automap.cost.shardings import Shardings
from automap.cost.traffic.flows import ALL_GATHER, ALL_TO_ALL
from automap.cost.traffic.step import Collectives
from automap.topology.model import Device


_LANES: Final = 128


def copy_seconds(
    operands: Edges, results: Edges, sharding: Shardings, found: Collectives, device: Device
) -> np.ndarray:
    """Of the copy beside each entry of `found`, 0 where there is none; [entries]."""
    copied = np.zeros(len(found.kind))
    is_axis = found.mask[:, None] >> np.arange(len(sharding.sizes)) & 1 != 0
    for edges, on_operand in ((operands, True), (results, False)):
        entries = np.flatnonzero(
            np.isin(found.kind, (ALL_GATHER, ALL_TO_ALL)) & (found.on_operand == on_operand)
        )
        edge, axes = found.edge[entries], is_axis[entries]
        stored, made = _stored_last(edges, sharding)[edge], _made_last(edges, sharding)[edge]
        gathered = stored if on_operand else made
        part = edges.last_size[edge] / np.where(gathered, sharding.sizes, 1).prod(axis=1)
        is_copied = np.where(
            found.kind[entries] == ALL_GATHER,
            (gathered & axes).any(axis=1) & (part % _LANES != 0),
            ((stored | made) & axes).any(axis=1),
        )
        copied[entries] = np.where(is_copied, 2 * found.n_bytes[entries], 0.0)
    seconds = copied / device.memory_bytes_per_s("copy")
    return np.where(copied > 0, np.maximum(seconds, device.launch_seconds), 0.0)


def _stored_last(edges: Edges, sharding: Shardings) -> np.ndarray:
    """Whether an axis splits the last dimension of an edge's tensor, [edges, axes]."""
    dims = sharding.dim_of_axis[edges.value_row]
    return (dims == edges.last_dim[:, None]) & (dims >= 0)


def _made_last(edges: Edges, sharding: Shardings) -> np.ndarray:
    """Whether an axis splits the last dimension of what an edge's op reads or makes, [edges, axes]."""
    rows, factors = np.arange(len(edges.last_dim)), sharding.factor_of_axis[edges.op_row]
    last = np.where(edges.last_dim >= 0, edges.factor_of_dim[rows, edges.last_dim], -1)
    return (factors == last[:, None]) & (factors >= 0)
