"""The links between stages on consecutive devices, as seconds per byte.

Devices stand in the topology's order, U *units* of `unit_devices` each; a stage has units [d, e).
So placing stages is choosing device cuts on a line (Auto-MAP section 4.4: the hierarchical topology
as a linear model that starts from the first device).

    reduce[d, e]       seconds per byte of gradients that the stage's replicas sum, by the
                       evaluator's collectives on the levels that the range spans (hierarchical), in
                       messages that the backend merges                -> in: `_reduce`, `_group`
    transfer[d, e, f]  seconds per byte of what stage [d, e) sends to stage [e, f)
        adjacent       (Auto-MAP section 4.4) over one link of the level between e - 1 and e
        matched        every device sends the examples that another one needs straight to it: the
                       busiest link decides. A message uses the outermost level between its ends;
                       the devices behind one port share it, on rings and lines those of one line
                       share its border                                      -> in: `_matched`
    latency[e]         of that level
    back[r]            seconds per byte from the last r units to the first r, where interleaved
                       stages go on at the first group of devices           -> in: `_back`
"""

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul
from typing import Final, Literal

import numpy as np

from automap.backends import backend_for
from automap.cost.collectives import CollectiveKind, group_cost
from automap.numba_jit import Array, compiled
from automap.topology.model import Topology
from automap.topology.spans import Span


Transfers = Literal["matched", "adjacent"]
# The transfer table has (U + 1)^3 entries, and the solvers' time grows with U^2.
MAX_UNITS: Final = 64


@dataclass(frozen=True)
class Fabric:
    """Arrays by unit boundaries: `reduce_seconds_per_byte` [U + 1, U + 1],
    `transfer_seconds_per_byte` [U + 1, U + 1, U + 1], `latency_seconds` [U + 1];
    `back_seconds_per_byte` [U + 1] by units of each of the two groups.

    `boundary_level[e]` is the level of the links between units e - 1 and e, -1 at both ends: 0 is
    the innermost.
    """

    n_units: int
    unit_devices: int
    transfers: Transfers
    reduce_seconds_per_byte: np.ndarray
    transfer_seconds_per_byte: np.ndarray
    latency_seconds: np.ndarray
    boundary_level: np.ndarray
    back_seconds_per_byte: np.ndarray

    @property
    def back_latency_seconds(self) -> float:
        """From the last group of units to the first: of the outermost level."""
        return float(self.latency_seconds[int(self.boundary_level.argmax())])


def pipeline_fabric(topology: Topology, transfers: Transfers = "matched") -> Fabric:
    """The links of a topology; more than `MAX_UNITS` devices stand in equal units."""
    devices = topology.device_count
    unit = next(u for u in range(1, devices + 1) if devices % u == 0 and devices // u <= MAX_UNITS)
    n = devices // unit
    levels = _boundary_levels(topology, unit, n)
    latency = np.zeros(n + 1)
    adjacent = np.zeros(n + 1)
    for e in range(1, n):
        level = topology.levels[levels[e]]
        latency[e] = level.latency_seconds
        # A ring's or line's devices have two links each: one way there is half of their bandwidth.
        adjacent[e] = (1 if level.kind == "switch" else 2) / level.bytes_per_s
    transfer = np.broadcast_to(adjacent[None, :, None], (n + 1,) * 3)
    if transfers == "matched" and topology.levels:
        transfer = _matched_table(topology, unit, n)
    return Fabric(
        n_units=n,
        unit_devices=unit,
        transfers=transfers,
        reduce_seconds_per_byte=_reduce(topology, unit, n),
        transfer_seconds_per_byte=np.ascontiguousarray(transfer),
        latency_seconds=latency,
        boundary_level=levels,
        back_seconds_per_byte=_back(topology, transfers, unit, n),
    )


def _inner_sizes(topology: Topology) -> list[int]:
    """p_l: devices in one place of level l."""
    return [*accumulate((level.size for level in topology.levels), mul, initial=1)]


def _boundary_levels(topology: Topology, unit: int, n: int) -> np.ndarray:
    # The last level whose places begin at a boundary is the outermost that has its ends apart.
    boundary_level = np.full(n + 1, -1)
    for e in range(1, n):
        for index, inner in enumerate(_inner_sizes(topology)[:-1]):
            if e * unit % inner == 0:
                boundary_level[e] = index
    return boundary_level


def _reduce(topology: Topology, unit: int, n: int) -> np.ndarray:
    result = np.zeros((n + 1, n + 1))
    # Most ranges of a regular machine look alike to a collective: a few dozen different groups.
    known: dict[tuple[Span, ...], float] = {}
    message_bytes = backend_for(topology.platform).combine_bytes
    for d in range(n):
        for e in range(d + 1, n + 1):
            group = _group(topology, d * unit, e * unit)
            if group not in known:
                cost = group_cost(CollectiveKind.ALL_REDUCE, topology.platform, group)
                known[group] = float(cost.seconds(message_bytes)) / message_bytes
            result[d, e] = known[group]
    return result


def _group(topology: Topology, first: int, end: int) -> tuple[Span, ...]:
    """The spans of devices first .. end - 1, innermost level first: the most places that they have
    in one.
    """
    group = []
    sizes = _inner_sizes(topology)
    for level, inner, outer in zip(topology.levels, sizes, sizes[1:]):
        ranks = 0
        for start in range(first // outer * outer, end, outer):
            low, high = max(first, start), min(end, start + outer)
            ranks = max(ranks, (high - 1) // inner - low // inner + 1)
        # Devices of the range behind one port, which their messages share.
        sharing = max(
            min(end, start + level.shared_by) - max(first, start)
            for start in range(first // level.shared_by * level.shared_by, end, level.shared_by)
        )
        if ranks > 1:
            group.append(Span(level=replace(level, shared_by=sharing), ranks=ranks))
    return tuple(group)


def _back(topology: Topology, transfers: Transfers, unit: int, n: int) -> np.ndarray:
    """back[r]: as `matched` and `adjacent`, of groups of the same size, which meet no boundary."""
    result = np.zeros(n + 1)
    sizes = _inner_sizes(topology)
    for r in (r for r in range(1, n // 2 + 1) if topology.levels):
        count, load = r * unit, defaultdict[tuple[int, int, int], float](float)
        for a in range(count):
            source, target = (n - r) * unit + a, a
            number = next(x for x, p in enumerate(sizes[1:]) if source // p == target // p)
            level = topology.levels[number]
            is_switch = level.kind == "switch"
            share = (1.0 if transfers == "adjacent" else 1.0 / count) / level.bytes_per_s
            for side, device in enumerate((source, target)):
                port = device // level.shared_by
                if not is_switch:
                    port = device // sizes[number + 1] * sizes[number + 1] + device % sizes[number]
                load[side, number, port] += share if is_switch else 2 * share
            if transfers == "adjacent":
                break
        result[r] = max(load.values())
    return result


def _matched_table(topology: Topology, unit: int, n: int) -> np.ndarray:
    levels = topology.levels
    return _matched(
        n,
        unit,
        np.array(_inner_sizes(topology), np.int64),
        np.array([level.shared_by for level in levels], np.int64),
        np.array([level.kind != "switch" for level in levels], np.bool_),
        np.array([level.bytes_per_s / (1 if level.kind == "switch" else 2) for level in levels]),
    )


@compiled
def _matched(
    n: int, unit: int, inner: Array, shared_by: Array, is_line: Array, bytes_per_s: Array
) -> np.ndarray:
    """transfer[d, e, f]: of one byte, spread evenly over the examples."""
    result = np.zeros((n + 1, n + 1, n + 1))
    load = np.zeros((2, len(shared_by), n * unit))
    for d in range(n):
        for e in range(d + 1, n):
            for f in range(e + 1, n + 1):
                senders, receivers = (e - d) * unit, (f - e) * unit
                load[:] = 0.0
                worst = 0.0
                # Examples are counted in parts of 1 / (senders * receivers), in their order: each
                # device sends to one or more, and receives from one or more, next to each other.
                a = b = done = 0
                while a < senders and b < receivers:
                    end_a, end_b = (a + 1) * receivers, (b + 1) * senders
                    share = (min(end_a, end_b) - done) / (senders * receivers)
                    done = min(end_a, end_b)
                    source, target = d * unit + a, e * unit + b
                    level = 0
                    while source // inner[level + 1] != target // inner[level + 1]:
                        level += 1
                    for side in range(2):
                        device = source if side == 0 else target
                        port = device // shared_by[level] * shared_by[level]
                        if is_line[level]:
                            port = device // inner[level + 1] * inner[level + 1]
                            port += device % inner[level]
                        load[side, level, port] += share / bytes_per_s[level]
                        worst = max(worst, load[side, level, port])
                    a, b = a + (end_a <= end_b), b + (end_b <= end_a)
                result[d, e, f] = worst
    return result
