"""Which links a permutation of devices uses, and how many messages the busiest of them carries.

A message goes from level to level, along each the shorter way round (or the only way of a line), as
TPUs route by dimension. A link of a ring or line is (level, places of the other levels, place,
direction); a switch has a port out and a port in for each device, and no way between them that two
messages share                                                              -> in: `_hops`

With n the most messages of a link, b its bytes per second, h the links of the longest way and l
their latency, a message of B bytes on each way takes

    h l + n B / b                                                           -> in: `permute_seconds`

since each of the messages that share a link gets its part of it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from automap.topology.model import Level, Topology


Direction = Literal["up", "down"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Permutation:
    """What a permutation costs, and the (level, direction) pairs it holds while it runs."""

    latency_seconds: float
    seconds_per_byte: float
    links: frozenset[tuple[str, Direction]]

    def seconds(self, n_bytes: float) -> float:
        """Seconds until every device has the `n_bytes` that are sent to it."""
        return self.latency_seconds + self.seconds_per_byte * n_bytes


@dataclass(frozen=True, slots=True)
class _Hop:
    """One link that a message crosses: of a `level`, beside the device numbered `device`."""

    level: Level
    device: int
    direction: Direction


def permutation(topology: Topology, pairs: Iterable[Sequence[int]]) -> Permutation:
    """The cost of messages from the first to the second device of each pair, all at once.

    Device numbers are the topology's, from 0 to `device_count` - 1.
    """
    loads: Counter[_Hop] = Counter()
    latency = 0.0
    for source, target in pairs:
        way = list(_hops(topology, source, target))
        loads.update(way)
        latency = max(latency, sum(_hop_seconds(hop.level) for hop in way))
    per_byte = max(
        (load / _link_bytes_per_s(hop.level) for hop, load in loads.items()), default=0.0
    )
    links: frozenset[tuple[str, Direction]] = frozenset(
        (hop.level.name, hop.direction) for hop in loads
    )
    return Permutation(latency_seconds=latency, seconds_per_byte=per_byte, links=links)


def _hops(topology: Topology, source: int, target: int) -> Iterator[_Hop]:
    at, below = source, 1
    for level in topology.levels:
        start, stop = at // below % level.size, target // below % level.size
        if level.kind == "switch":
            if start != stop:
                there = at + (stop - start) * below
                yield _Hop(level, at, "up")
                yield _Hop(level, there, "down")
                at = there
        else:
            for place, direction in _way(level, start, stop):
                yield _Hop(level, at + (place - start) * below, direction)
            at += (stop - start) * below
        below *= level.size


def _way(level: Level, start: int, stop: int) -> Iterator[tuple[int, Direction]]:
    """The places from which a message goes on, and where to; a tie goes up."""
    ahead, behind = stop - start, start - stop
    if level.kind == "ring":
        ahead, behind = ahead % level.size, behind % level.size
    is_up = behind < 0 or 0 <= ahead <= behind
    for done in range(ahead if is_up else behind):
        yield (start + (done if is_up else -done)) % level.size, "up" if is_up else "down"


def _link_bytes_per_s(level: Level) -> float:
    """One link in one direction: a ring's and a line's device has two of them."""
    share = level.bytes_per_s / level.shared_by
    return share if level.kind == "switch" else share / 2


def _hop_seconds(level: Level) -> float:
    """A switch is two links, of which the level's latency is the way through both."""
    return level.latency_seconds / 2 if level.kind == "switch" else level.latency_seconds
