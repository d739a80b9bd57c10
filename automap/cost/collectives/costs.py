"""The time of a collective over a group of mesh axes, as a function of its bytes.

    t(B) = min over k of  alpha_k + beta_k B                 -> in: `CollectiveCost.seconds`

One line for every algorithm and protocol that the hardware's library can choose
(`automap.cost.collectives.algorithms`, `automap.backends.protocols`): a library that has several
takes the fastest for the size. A minimum of rising lines is rising and concave, so the bandwidth
B / t(B) rises with B: small messages ride a line with a low alpha, large ones one with a low beta.
Only lines that are lowest somewhere are kept                -> in: `_lowest`

Over all devices of some TPU slices a reduce-scatter is an all-reduce whose result is sliced
                                                                -> in: `_is_reduced`

B is the full buffer on one device (see `automap.cost.collectives.algorithms`). A bundle of m
messages with B bytes in all costs m t(B / m) = min over k of alpha_k m + beta_k B, also for a
fraction m.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from automap.backends import SentSpan, backend_for
from automap.cost.collectives.algorithms import LINES, Group, Line
from automap.cost.collectives.kinds import CollectiveKind as CollectiveKind
from automap.topology.device_order import device_order
from automap.topology.link_loads import permutation
from automap.topology.measured.collectives import (
    MeasuredCollectives,
    link_table,
    measured_collectives,
    measured_parts,
)
from automap.topology.model import Platform, Topology
from automap.topology.rings import ring_pairs, ring_step
from automap.topology.spans import Span, spans


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCost:
    """A collective over `ranks` of one level, read from a measurement of `measured_ranks`.

    The measurement's bytes are `byte_scale` times the own. Where `ranks` were not measured, `own`
    and `nearest` are the lines of both numbers of ranks, and their ratio scales the seconds.
    """

    table: MeasuredCollectives
    parts: tuple[str, ...]
    measured_ranks: int
    byte_scale: float
    own: tuple[Line, ...] = ()
    nearest: tuple[Line, ...] = ()

    def seconds(self, n_bytes: np.ndarray) -> np.ndarray:
        """The time of one message of `n_bytes`."""
        scaled = n_bytes * self.byte_scale
        seconds = sum(self.table.seconds(part, self.measured_ranks, scaled) for part in self.parts)
        if self.own:
            seconds = seconds * (
                _least(self.own, n_bytes, 1.0) / _least(self.nearest, n_bytes, 1.0)
            )
        return np.asarray(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCost:
    """The lower envelope of `lines`, which stand in the order of rising alpha and falling beta.

    With `measured` it is never less than that; without lines, that alone.
    """

    lines: tuple[Line, ...]
    measured: MeasuredCost | None = None

    def seconds(
        self, n_bytes: np.ndarray | float, messages: np.ndarray | float = 1.0
    ) -> np.ndarray | float:
        """The time of `messages` collectives that have `n_bytes` in all; arrays of one shape, or
        numbers.
        """
        if self.measured is None:
            return _least(self.lines, n_bytes, messages)
        # Of no message at all the bytes are 0 too.
        each = np.asarray(n_bytes, float) / np.maximum(messages, _FEWEST_MESSAGES)
        measured = self.measured.seconds(each) * messages
        if not self.lines:
            return measured
        return np.maximum(measured, _least(self.lines, n_bytes, messages))


_FEWEST_MESSAGES = 1e-9


def _least(
    lines: Sequence[Line], n_bytes: np.ndarray | float, messages: np.ndarray | float
) -> np.ndarray | float:
    costs = [line.alpha_seconds * messages + line.beta_seconds_per_byte * n_bytes for line in lines]
    # Two by two: there are few lines, and a stacked array would be made for each call.
    lowest = costs[0]
    for cost in costs[1:]:
        lowest = np.minimum(lowest, cost)
    return lowest


_FREE = CollectiveCost(lines=(Line(alpha_seconds=0.0, beta_seconds_per_byte=0.0),))


def collective_cost(
    kind: CollectiveKind, topology: Topology, mesh_shape: Sequence[int], axes: Sequence[int]
) -> CollectiveCost:
    """The cost of a collective over the group of mesh `axes`; a group of one rank is free.

    Raises `TopologyError` when the mesh does not fit the topology (see `spans`).
    """
    group = spans(topology, mesh_shape, axes)
    if kind is CollectiveKind.PERMUTE and len(group) > 1 and any(s.kind != "switch" for s in group):
        return _permute_cost(topology, mesh_shape, axes)
    if kind is CollectiveKind.REDUCE_SCATTER and _is_reduced(topology, group):
        kind = CollectiveKind.ALL_REDUCE
    return group_cost(kind, topology.platform, group)


def _is_reduced(topology: Topology, group: Group) -> bool:
    """Whether what is scattered over the group is reduced whole, as libtpu 0.0.51 does over all
    devices of squares of 4x4 and more and of slices of three dimensions. Dies count as a dimension;
    slices that have them were not compiled.
    """
    sides = [span.ranks for span in group if span.kind != "switch"]
    return (
        backend_for(topology.platform).slice_scatters == "all-reduces"
        and len(sides) == len(group)
        and prod(sides) == topology.device_count
        and (len(sides) > 2 or len(sides) == 2 and min(sides) == max(sides) > 2)
    )


def _permute_cost(
    topology: Topology, mesh_shape: Sequence[int], axes: Sequence[int]
) -> CollectiveCost:
    """To the next along several dimensions of a torus: over the links that the order of the devices
    uses.
    """
    pairs = ring_pairs(device_order(topology, mesh_shape), mesh_shape, axes)
    moved = permutation(topology, pairs)
    line = Line(alpha_seconds=moved.latency_seconds, beta_seconds_per_byte=moved.seconds_per_byte)
    return CollectiveCost(lines=(line,))


def ring_scatter_cost(
    topology: Topology, mesh_shape: Sequence[int], axes: Sequence[int]
) -> CollectiveCost:
    """A reduce-scatter whose shards are passed around the ring of a group of n devices, both ways
    at once: n / 2 rounds of the step of one shard each way (`automap.topology.device_order`).

        t(B) = n / 2 (h l + m B / (n b))

    with h, l, m and b of that step: m the most shards on a link. A compiler
    that multiplies meanwhile makes such a ring, whatever `collective_cost` says of the group.
    """
    devices = prod(mesh_shape[axis] for axis in axes)
    if devices == 1:
        return _FREE
    step = ring_step(topology, device_order(topology, mesh_shape), mesh_shape, axes)
    line = Line(
        alpha_seconds=devices / 2 * step.latency_seconds,
        beta_seconds_per_byte=step.seconds_per_byte / 2,
    )
    return CollectiveCost(lines=(line,))


def group_cost(kind: CollectiveKind, platform: Platform, group: Group) -> CollectiveCost:
    """The cost of a collective over ranks that lie as `group` says, innermost first; of none it is
    free.
    """
    if not group:
        return _FREE
    lines = _lines(kind, platform, group)
    inside = next((span for span in group if span.level.measured), None)
    measured = None if inside is None else _measured(kind, platform, inside)
    # A group that goes on beyond the measured links is never faster than its part on them.
    is_whole = measured is not None and len(group) == 1
    return CollectiveCost(lines=() if is_whole else lines, measured=measured)


def _lines(kind: CollectiveKind, platform: Platform, group: Group) -> tuple[Line, ...]:
    """What the algorithms and protocols of a platform's library make of a group."""
    lines = []
    for protocol in backend_for(platform).protocols:
        sent = [
            SentSpan(level=span.level, ranks=span.ranks, stride=span.stride, protocol=protocol)
            for span in group
        ]
        by_kind = LINES[protocol.algorithm]
        for line in by_kind[kind](sent) if kind in by_kind else ():
            # The start of the protocol comes once, whatever the steps of the algorithm.
            alpha = protocol.start_seconds + line.alpha_seconds
            lines.append(replace(line, alpha_seconds=alpha))
    return _lowest(lines)


def _measured(kind: CollectiveKind, platform: Platform, span: Span) -> MeasuredCost | None:
    """What was measured for the ranks of a span; None for a kind that was not measured."""
    row = link_table(span.level.measured)
    table = measured_collectives(row.measured)
    parts = measured_parts(row, kind.value)
    if not all(table.ranks(part) for part in parts):
        return None
    fewest, most = (pick(table.ranks(parts[0])) for pick in (min, max))
    nearest = min(max(span.ranks, fewest), most)
    is_measured = nearest == span.ranks
    like = replace(span, ranks=nearest)
    return MeasuredCost(
        table=table,
        parts=parts,
        measured_ranks=nearest,
        byte_scale=table.bytes_per_s / (span.level.bytes_per_s / span.level.shared_by),
        own=() if is_measured else _lines(kind, platform, (span,)),
        nearest=() if is_measured else _lines(kind, platform, (like,)),
    )


def _lowest(lines: Iterable[Line]) -> tuple[Line, ...]:
    """The lines that are lowest for some B >= 0, by rising alpha."""
    # The lower envelope of lines, as a stack: in the order of rising alpha each line has to be less
    # steep than the last, and takes those away that it makes useless.
    envelope: list[Line] = []
    for line in sorted(lines, key=lambda x: (x.alpha_seconds, x.beta_seconds_per_byte)):
        if envelope and line.beta_seconds_per_byte >= envelope[-1].beta_seconds_per_byte:
            continue
        # The last one is of no use if this one crosses the one before it sooner.
        while len(envelope) > 1 and (
            _crossing_bytes(envelope[-2], line) <= _crossing_bytes(*envelope[-2:])
        ):
            envelope.pop()
        envelope.append(line)
    return tuple(envelope)


def _crossing_bytes(early: Line, late: Line) -> float:
    """The bytes from which `late`, with the higher alpha and the lower beta, is the faster."""
    return (late.alpha_seconds - early.alpha_seconds) / (
        early.beta_seconds_per_byte - late.beta_seconds_per_byte
    )
