"""Transfers between stages that hold their tensors in parts, as seconds per byte.

A *layout* says which part of the examples each device of a stage has: p parts, each on t = r / p
devices. Every receiver takes each piece of its part from one device that has it, and those that
have the same take turns; a message uses the outermost level between its ends, and the busiest port
decides, as in `automap.pipeline.fabric`, whose `matched` is the case t = 1. Forwards and backwards
the layouts change their parts; the slower way counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

import numpy as np

from automap.numba_jit import Array, compiled, inner
from automap.topology.model import Topology


@dataclass(frozen=True, slots=True)
class Layout:
    """The part that each device has, 0 .. p - 1, each as often as the others; in the devices'
    order.
    """

    part: tuple[int, ...]

    @property
    def n_parts(self) -> int:
        """p."""
        return max(self.part) + 1


def transfer_table(topology: Topology, layouts: Sequence[Layout], unit: int) -> np.ndarray:
    """Seconds per byte [L, L, U + 1] from a stage of one layout that ends at unit e to one of the
    other that begins there.

    Units are of `unit` devices; 0 where one of them has no room.
    """
    units, levels = topology.device_count // unit, topology.levels
    if not levels:
        return np.zeros((len(layouts), len(layouts), units + 1))
    most = max(len(layout.part) for layout in layouts)
    # Rows are filled up to the longest layout: numba takes rectangles. `holders` lists the devices
    # of part 0, then those of part 1, and so on.
    parts = np.zeros((len(layouts), most), np.int64)
    holders = np.zeros((len(layouts), most), np.int64)
    for row, layout in enumerate(layouts):
        parts[row, : len(layout.part)] = layout.part
        holders[row, : len(layout.part)] = np.argsort(layout.part, kind="stable")
    return _table(
        parts,
        holders,
        np.array([len(x.part) for x in layouts]),
        np.array([x.n_parts for x in layouts]),
        units,
        unit,
        np.array([*accumulate((level.size for level in levels), mul, initial=1)], np.int64),
        np.array([level.shared_by for level in levels], np.int64),
        np.array([level.kind != "switch" for level in levels], np.bool_),
        np.array([level.bytes_per_s / (1 if level.kind == "switch" else 2) for level in levels]),
    )


@compiled
def _table(
    parts: Array,
    holders: Array,
    devices: Array,
    n_parts: Array,
    units: int,
    unit: int,
    inside: Array,
    shared_by: Array,
    is_line: Array,
    bytes_per_s: Array,
) -> Array:
    n = len(devices)
    result = np.zeros((n, n, units + 1))
    load = np.zeros((2, len(shared_by), units * unit))
    for a in range(n):
        for b in range(n):
            for e in range(1, units):
                # The stages are next to each other: one ends, the other begins at this device.
                border = e * unit
                if border < devices[a] or border + devices[b] > units * unit:
                    continue
                first = border - devices[a]
                forwards = _seconds(
                    parts,
                    holders,
                    devices,
                    n_parts,
                    a,
                    first,
                    b,
                    border,
                    load,
                    inside,
                    shared_by,
                    is_line,
                    bytes_per_s,
                )
                backwards = _seconds(
                    parts,
                    holders,
                    devices,
                    n_parts,
                    b,
                    border,
                    a,
                    first,
                    load,
                    inside,
                    shared_by,
                    is_line,
                    bytes_per_s,
                )
                result[a, b, e] = max(forwards, backwards)
    return result


@inner
def _seconds(
    parts: Array,
    holders: Array,
    devices: Array,
    n_parts: Array,
    sender: int,
    from_: int,
    receiver: int,
    to: int,
    load: Array,
    inside: Array,
    shared_by: Array,
    is_line: Array,
    bytes_per_s: Array,
) -> float:
    """Seconds of one byte, spread evenly, from layout `sender` on devices from `from_` on to
    `receiver` from `to` on.
    """
    # `load` [2, levels, devices]: seconds that each port sends (0) and receives (1).
    p, q = n_parts[sender], n_parts[receiver]
    copies, again = devices[sender] // p, devices[receiver] // q
    load[:] = 0.0
    worst = 0.0
    for index in range(devices[receiver]):
        b = holders[receiver, index]
        part, turn = parts[receiver, b], index % again
        # Examples are counted in parts of 1 / (p q).
        done, end = part * p, (part + 1) * p
        while done < end:
            source_part = done // q
            until = min((source_part + 1) * q, end)
            share = (until - done) / (p * q)
            done = until
            source = from_ + holders[sender, source_part * copies + turn % copies]
            target = to + b
            level = 0
            while source // inside[level + 1] != target // inside[level + 1]:
                level += 1
            for side in range(2):
                device = source if side == 0 else target
                port = device // shared_by[level] * shared_by[level]
                if is_line[level]:
                    port = device // inside[level + 1] * inside[level + 1]
                    port += device % inside[level]
                load[side, level, port] += share / bytes_per_s[level]
                worst = max(worst, load[side, level, port])
    return worst
