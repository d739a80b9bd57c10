"""Collectives that the step itself has, in what it runs under `shard_map`: which, over which axes,
with how many bytes.

The program says groups of devices, numbered row-major over the user's mesh; a collective is over
the axes along which the members of a group, or the source and target of a permute, differ
                                                                              -> in: `_axes`
Bytes are the full buffer on one device, as in `automap.cost.collectives`: the result of an
all-gather, else the operand.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
import math

import numpy as np

from hlo_tools.graph import Graph, Op
from hlo_tools.opcodes import ALL_GATHER, ALL_TO_ALL, COLLECTIVE_PERMUTE, JOINS_DEVICES


@dataclass(frozen=True, slots=True)
class OwnCollective:
    """`kind` is HLO's name, `axes` are positions in the user's mesh."""

    kind: str
    axes: tuple[int, ...]
    n_bytes: int


# Those that are priced as another kind.
_LIKE = {"ragged-all-to-all": ALL_TO_ALL, "collective-broadcast": COLLECTIVE_PERMUTE}


def own_collectives(graph: Graph, sizes: Sequence[int]) -> Mapping[int, OwnCollective]:
    """Collectives by op; `sizes` are those of the mesh that the step's `shard_map`s are on, () if
    there are none.
    """
    by_op = {}
    for index in sorted(graph.local_ops) if sizes else ():
        op = graph.ops[index]
        axes = _axes(op, sizes) if op.opcode in JOINS_DEVICES else ()
        if axes:
            kind = _LIKE.get(op.opcode, op.opcode)
            measured = op.outputs if kind == ALL_GATHER else op.inputs
            n_bytes = sum(graph.values[value].n_bytes for value in measured)
            by_op[index] = OwnCollective(kind, axes, n_bytes)
    return by_op


def _axes(op: Op, sizes: Sequence[int]) -> tuple[int, ...]:
    # A permute's pairs are read as groups of two: along the axes in which they differ.
    groups = op.instruction.attributes.groups or (tuple(range(math.prod(sizes))),)
    places = np.stack(np.unravel_index(np.arange(math.prod(sizes)), tuple(sizes)), axis=-1)
    varies = [(places[list(group)] != places[group[0]]).any(axis=0) for group in groups]
    return tuple(np.flatnonzero(np.any(varies, axis=0)).tolist())
