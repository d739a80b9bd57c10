"""Which links a permutation of devices uses, and how many messages the busiest of them carries.

A message goes from level to level, along each the shorter way round (or the only way of a line), as
TPUs route by dimension. A link of a ring or line carries messages in two directions, each on its
own; a switch has a port out and a port in for each device, and no way between them that two
messages share. Devices that share a level's links (`shared_by`) are neighbours, and have one link
in place of theirs, as in `automap.topology.graph`                          -> in: `_hops`

With n the most messages of a link in one direction, b its bytes per second, h the links of the
longest way and l their latency, a message of B bytes on each way takes

    h l + n B / b                                                           -> in: `permutation`

since each of the messages that share a link gets its part of it.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from automap.topology.model import Level, Topology


Direction = Literal["up", "down"]
DirectedLink = tuple[str, int, Direction]
"""One direction of a link: its level, the number of the devices that it leaves, and which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Permutation:
    """What a permutation costs, and the links that it holds while it runs.

    `hops` are the links of the longest way, `seconds_per_byte` those of the busiest link.
    """

    hops: int
    latency_seconds: float
    seconds_per_byte: float
    links: frozenset[DirectedLink]

    def seconds(self, n_bytes: float) -> float:
        """Seconds until every device has the `n_bytes` that are sent to it."""
        return self.latency_seconds + self.seconds_per_byte * n_bytes


def permutation(topology: Topology, pairs: Iterable[Sequence[int]]) -> Permutation:
    """The cost of messages from the first to the second device of each pair, all at once.

    Device numbers are the topology's, from 0 to `device_count` - 1.
    """
    loads: Counter[DirectedLink] = Counter()
    levels = {level.name: level for level in topology.levels}
    hops, latency = 0, 0.0
    for source, target in pairs:
        way = list(_hops(topology.levels, source, target))
        loads.update(way)
        hops = max(hops, len(way))
        latency = max(latency, sum(_hop_seconds(levels[name]) for name, _, _ in way))
    per_byte = max(
        (load / _link_bytes_per_s(levels[name]) for (name, _, _), load in loads.items()),
        default=0.0,
    )
    return Permutation(
        hops=hops, latency_seconds=latency, seconds_per_byte=per_byte, links=frozenset(loads)
    )


def links_on(topology: Topology, level_names: Collection[str]) -> frozenset[DirectedLink]:
    """All links of some levels, in both directions."""
    directions: tuple[Direction, Direction] = ("up", "down")
    return frozenset(
        (level.name, device // level.shared_by, direction)
        for level in topology.levels
        if level.name in level_names
        for device in range(topology.device_count)
        for direction in directions
    )


def _hops(levels: Sequence[Level], source: int, target: int) -> Iterator[DirectedLink]:
    at, below = source, 1
    for level in levels:
        start, stop = at // below % level.size, target // below % level.size
        if start != stop:
            there = at + (stop - start) * below
            if level.kind == "switch":
                yield level.name, at // level.shared_by, "up"
                yield level.name, there // level.shared_by, "down"
            else:
                for place, direction in _way(level, start, stop):
                    number = at + (place - start) * below
                    yield level.name, number // level.shared_by, direction
            at = there
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
    return level.bytes_per_s if level.kind == "switch" else level.bytes_per_s / 2


def _hop_seconds(level: Level) -> float:
    """A switch is two links, of which the level's latency is the way through both."""
    return level.latency_seconds / 2 if level.kind == "switch" else level.latency_seconds
