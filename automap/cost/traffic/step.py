"""Collectives implied by shardings: what each op must gather first, and what it must do with its
result.

Operand edge, axis a: the tensor is split on dimension d, the op splits factor f.
    d's factor is f               nothing
    d split, op splits another of the tensor's dimensions      all-to-all
    d split, else                 all-gather
    d not split                   nothing (a slice costs no communication)
then what windows read of the neighbours' parts                            -> in: `automap.cost.edges.halos`

Result edge, axis a: the op splits factor f, the tensor is to be split on dimension d.
    f is d's factor               nothing
    f is summed over, d not split all-reduce;   d split: reduce-scatter, before any all-reduce
                                  (matmuls, reduces and scatters: one all-reduce for each dimension that is summed
                                  over; a reduce of several arrays at once, as argmax, gathers all
                                  partials; where any axis needs an all-reduce, nothing is scattered by a
                                  `reduce`, a convolution that is written out, nor where some axis is idle
                                  or splits d already)
    f another dimension's factor, d not split   all-gather;   d split: all-to-all

Each dimension of a tensor is gathered by a collective of its own.

Bytes follow `automap.cost.collectives`: the full buffer on one device. Axes that do the same thing
to the same tensor do it in one collective, so kinds are counted per set of axes, a bit mask. A
tensor that two ops want gathered over the same axes, or moved alike, is so once, and so is a sum
whose terms are all partial over the same axes reduced once, where the backend adds first
(`result_edges`).
"""

from dataclasses import dataclass

import numpy as np

from automap.cost.edges import Edges
from automap.cost.edges.halos import Windows
from automap.cost.shardings import Shardings
from automap.cost.traffic.flows import Entries, Flow
from automap.cost.traffic.operands import exchanged, operand_traffic
from automap.cost.traffic.results import result_traffic


@dataclass(frozen=True)
class Collectives(Entries):
    """One entry per (edge row, kind) that communicates; bytes are per execution on one device.

    `mask` has bit a set if axis a takes part; `edge` indexes the edge table named by `on_operand`.
    `is_repeat` [rows of `Edges.repeats`] says which operand edges find their tensor gathered
    already; `copied` [operand edges] is the bytes of the copy that an edge makes of its tensor.
    `scattered_again` [result edges] are the reduce-scatters of terms whose sum another one
    scatters.
    """

    on_operand: np.ndarray
    is_repeat: np.ndarray
    copied: np.ndarray
    scattered_again: Flow


def collectives(
    operands: Edges, windows: Windows, results: Edges, sharding: Shardings
) -> Collectives:
    """All collectives of one step, of its operand edges, their windows, and its result edges."""
    sizes = np.array(sharding.sizes)
    before, is_repeat = operand_traffic(operands, sharding, sizes)
    after, scattered_again = result_traffic(results, sharding, sizes)
    parts = [(before, True), (after, False)]
    copied = np.zeros(len(operands.count))
    np.maximum.at(copied, before.edge, before.n_bytes)
    if len(windows.edge):
        permutes, with_halos = exchanged(operands, windows, sharding)
        copied += with_halos
        parts.append((permutes, True))

    def column(name: str) -> np.ndarray:
        return np.concatenate([getattr(found, name) for found, _ in parts])

    return Collectives(
        kind=column("kind"),
        mask=column("mask"),
        n_bytes=column("n_bytes"),
        count=column("count"),
        phase=column("phase"),
        combinable=column("combinable"),
        edge=column("edge"),
        on_operand=np.repeat([on for _, on in parts], [len(found.edge) for found, _ in parts]),
        is_repeat=is_repeat,
        copied=copied,
        scattered_again=scattered_again,
    )
