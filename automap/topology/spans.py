"""Where the ranks of a collective lie: a group of mesh axes as spans of topology levels.

A mesh is laid row-major on the devices, so with shape (a_1, ..., a_m) axis j has the device stride
s_j = a_{j+1} ... a_m and runs over the device numbers' range [s_j, s_j a_j) in the multiplicative
sense. Level l has the range [p_l, p_l n_l) with p_l = n_0 ... n_{l-1}. The part of axis j in level
l is the intersection

    lo = max(s_j, p_l),  hi = min(s_j a_j, p_l n_l),  ranks = hi / lo,  stride = lo / p_l

and exists when hi > lo. Every quotient must be whole, else the mesh cuts across a level.
-> in: `spans`. Neighbouring pieces of one level are joined, all of a switch, where none is further
away than another -> in: `_join`.

How fast a span is, per device and in one direction -> in: `Span.bytes_per_s`: a level gives
bytes_per_s / shared_by, because the program is the same everywhere and all the devices that share a
link talk at once. What a protocol leaves of it is in `automap.backends.protocols`. On a ring or
line with stride t the t interleaved groups share the links and each neighbour is t hops away, so a
group gets 1/t. A span closes into a ring only when its level is one and the span reaches around it
(stride * ranks = n_l); otherwise it is a line, whose end devices have one of the two links: half.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from operator import mul

from automap.errors import TopologyError
from automap.topology.model import Level, LevelKind, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """`ranks` of a group along one level, `stride` places of the level apart."""

    level: Level
    ranks: int
    stride: int = 1

    @property
    def kind(self) -> LevelKind:
        """What the ranks form: a ring only if they reach around a ring."""
        if self.level.kind == "ring" and self.stride * self.ranks != self.level.size:
            return "line"
        return self.level.kind

    @property
    def bytes_per_s(self) -> float:
        """What one rank sends in one direction while every group does the same."""
        return self.rank_bytes_per_s(self.level.bytes_per_s / self.level.shared_by)

    def rank_bytes_per_s(self, share_bytes_per_s: float) -> float:
        """What one rank sends in one direction, of its device's share of the links."""
        # A port of a switch is the device's alone; links of a ring or line carry others' messages.
        if self.kind == "switch":
            return share_bytes_per_s
        return share_bytes_per_s / self.stride / (2 if self.kind == "line" else 1)

    @property
    def hop_seconds(self) -> float:
        """The latency from one rank to the next."""
        return self.hops * self.level.latency_seconds

    @property
    def hops(self) -> int:
        """The links between a rank and the next."""
        # Messages to a rank `stride` places on pass through the devices in between.
        return 1 if self.kind == "switch" else self.stride


def spans(topology: Topology, mesh_shape: Sequence[int], axes: Sequence[int]) -> tuple[Span, ...]:
    """The spans of the group formed by mesh `axes`, innermost first.

    `mesh_shape` lists axis sizes major to minor with product P, `axes` are indices into it, their
    order is of no meaning. Axes of size 1 give no span. Raises `TopologyError` when the mesh is not
    one of this topology.
    """
    _check_mesh(topology, mesh_shape, axes)
    # s_j, major to minor: the product of the axes after j, that of all left out.
    strides = [*accumulate(reversed(mesh_shape), mul, initial=1)][-2::-1]
    pieces = [
        piece
        for axis in sorted(axes, reverse=True)  # the last axis of the mesh is the innermost
        for piece in _pieces(topology, mesh_shape, axis, strides[axis])
    ]
    return tuple(_join(pieces))


def _pieces(topology: Topology, mesh_shape: Sequence[int], axis: int, start: int) -> Iterator[Span]:
    """One axis cut at the level boundaries, innermost first."""
    stop = start * mesh_shape[axis]
    inner = 1  # p_l
    for level in topology.levels:
        outer = inner * level.size
        low, high = max(start, inner), min(stop, outer)
        if high > low:
            # Begins and ends must be whole parts of the level and of the axis alike.
            quotients = (low, min(start, inner)), (max(stop, outer), high), (high, low)
            if any(whole % part for whole, part in quotients):
                sizes = [level.size for level in reversed(topology.levels)]
                raise TopologyError(
                    f"mesh: axis {axis} of {tuple(mesh_shape)} cuts across level {level.name!r} of "
                    f"{topology.name} (levels {sizes}, outermost first); allowed: axis sizes that "
                    "divide the levels they lie in"
                )
            yield Span(level=level, ranks=high // low, stride=low // inner)
        inner = outer


def _join(pieces: Sequence[Span]) -> Iterator[Span]:
    """Merge a piece into the one before it where it goes on in the same level."""
    pending: Span | None = None
    for piece in pieces:
        if pending and pending.level is piece.level and _follows(pending, piece):
            pending = replace(pending, ranks=pending.ranks * piece.ranks)
            continue
        if pending:
            yield pending
        pending = piece
    if pending:
        yield pending


def _follows(inner: Span, outer: Span) -> bool:
    # In a switch no device is farther than another, so strides are of no meaning there.
    return inner.kind == "switch" or outer.stride == inner.stride * inner.ranks


def _check_mesh(topology: Topology, mesh_shape: Sequence[int], axes: Sequence[int]) -> None:
    if any(size < 1 for size in mesh_shape) or prod(mesh_shape) != topology.device_count:
        raise TopologyError(
            f"mesh: got shape {tuple(mesh_shape)}; allowed: sizes >= 1 whose product is the "
            f"{topology.device_count} devices of {topology.name}"
        )
    if len(set(axes)) != len(axes) or any(not 0 <= axis < len(mesh_shape) for axis in axes):
        raise TopologyError(
            f"mesh axes: got {tuple(axes)}; allowed: different indices from 0 to "
            f"{len(mesh_shape) - 1}"
        )
