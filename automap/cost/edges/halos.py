"""Halos: what devices exchange with their neighbours before a window slides over an image that is
split.

An op that splits the factor of a window's dimension d over P = the product of its axes first makes
its operand split alike, n_d / P elements to a device, and then receives l elements from before and
h from after its part (`hlo_tools.rules.window`). Each side is one collective-permute to the next
device, and one more for every whole part beyond. Dimensions are exchanged one after the other, the
second with what the first has brought, which are `overlap` elements. Convolutions of one image that
need the same of it exchange it once.
"""

from dataclasses import dataclass

import numpy as np

from automap.cost.edges.table import Edges
from hlo_tools.rules.window import Halos, halos, neighbours, overlap


@dataclass(frozen=True)
class Windows:
    """Windows of operand edges. Arrays are [windows] unless said.

    `place` counts those of one edge from 0. `repeats` [pairs, 2]: (window, one of another
    convolution on the same dimension of the same tensor before it).
    """

    edge: np.ndarray
    factor: np.ndarray
    size: np.ndarray
    place: np.ndarray
    repeats: np.ndarray
    halos: Halos


@dataclass(frozen=True)
class Exchanges:
    """Permutes by window and size, [exchanges], and `grown` [edges]: the operand with its halos
    over that without."""

    edge: np.ndarray
    mask: np.ndarray
    n_bytes: np.ndarray
    times: np.ndarray
    grown: np.ndarray


def build_windows(edges: Edges) -> Windows:
    """All windows of the edges."""
    each = [(e, n, w) for e, own in enumerate(edges.windows) for n, w in enumerate(own)]
    rows = np.array([(e, w.factor, w.size, n) for e, n, w in each], np.int64).reshape(-1, 4)
    # Only convolutions share what they exchange: (edge, dimension) -> window.
    number = {(e, w.dim): i for i, (e, _, w) in enumerate(each) if w.is_convolution}
    repeats = [
        (number[later, dim], number[earlier, dim])
        for later, earlier in edges.repeats.tolist()
        for dim in {w.dim for w in edges.windows[later]}
        if (later, dim) in number and (earlier, dim) in number
    ]
    return Windows(
        *rows.T,
        repeats=np.array(repeats, np.int64).reshape(-1, 2),
        halos=halos([w.halo for _, _, w in each]),
    )


def halo_exchanges(
    windows: Windows,
    edges: Edges,
    factor_of_axis: np.ndarray,
    sizes: tuple[int, ...],
    local: np.ndarray,
) -> Exchanges:
    """What is exchanged under a plan; `factor_of_axis` as in `Shardings`, `local` [edges]: bytes of
    an operand split as its op runs."""
    op_row = edges.op_row[windows.edge]
    mask, parts = np.zeros(len(op_row), np.int64), np.ones(len(op_row), np.int64)
    for axis, size in enumerate(sizes):
        is_split = factor_of_axis[op_row, axis] == windows.factor
        mask |= np.where(is_split, 1 << axis, 0)
        parts *= np.where(is_split, size, 1)
    # Elements along the dimension on each device, and how the operand grows with its halos.
    share = windows.size / parts
    growth = np.where(parts > 1, 1 + overlap(windows.halos, parts) / share, 1.0)
    grown = np.ones(len(local))
    # Bytes of one element along the window's dimension: those of a slab across all others, which
    # windows of the same edge before it have widened already.
    slab = np.empty(len(op_row))
    for place in range(int(windows.place.max(initial=-1)) + 1):
        now = windows.place == place
        slab[now] = (local[windows.edge] * grown[windows.edge] / share)[now]
        grown[windows.edge[now]] *= growth[now]
    columns = []
    later, earlier = windows.repeats.T
    alike = (mask[later] == mask[earlier]) & (slab[later] == slab[earlier])
    # Once for what comes from before, and once from after.
    for received in neighbours(windows.halos, parts):
        is_repeat = alike & (received[later] == received[earlier])
        received[later[is_repeat]] = 0
        is_sent = (received > 0) & (parts > 1)
        # A halo wider than a part comes from several devices away: a whole part in each hop, and
        # the rest in one more.
        whole, rest = np.divmod(received, np.maximum(share.astype(np.int64), 1))
        for elements, times in ((share, whole), (rest, np.minimum(rest, 1))):
            which = np.flatnonzero(is_sent & (times > 0))
            columns.append(
                (windows.edge[which], mask[which], (slab * elements)[which], times[which])
            )
    return Exchanges(*(np.concatenate(column) for column in zip(*columns)), grown=grown)
