"""How a library sends a message: the choice that makes bandwidth depend on the message's size.

A library may have several protocols. Of NCCL's three, LL puts a flag beside every four bytes, so
that a receiver needs no fence: quick to start, a quarter of the bandwidth. LL128 puts one beside
every 120 bytes; Simple fences whole chunks. A row says what one costs:

    start_seconds        once per collective
    host_, network_step_seconds
                         one step between devices of a host over NVLink, and between hosts. A
                         level's `latency_seconds` is a step of ring and Simple; of those, up to the
                         table's own step is the protocol's and changes with it, what is above is
                         the wire's and stays                      -> in: `Protocol.hop_seconds`
    bandwidth_fraction   of a link's bytes per second

The tree is an algorithm of its own with its own steps: a Simple step waits for a whole chunk.
Compilers that move data by themselves do so in one way each: over a torus of links, or by a meeting
in shared memory whose steps are taken to grow with the logarithm of the devices (an assumption).
Which protocols there are is each backend's own; NCCL's are in `automap.backends.xla_gpu`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from automap.topology.model import Reach
from automap.topology.spans import Span


Algorithm = Literal["ring", "torus", "tree", "halving"]
# What levels of the catalogue give as latency: NCCL's table, its ring with Simple.
_RING_SIMPLE_STEP_SECONDS: Final[Mapping[Reach, float]] = {"host": 3.4e-6, "network": 9.6e-6}


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """One algorithm with one way of sending."""

    algorithm: Algorithm
    name: str
    start_seconds: float
    host_step_seconds: float
    network_step_seconds: float
    bandwidth_fraction: float

    def hop_seconds(self, latency_seconds: float, reach: Reach) -> float:
        """A step over a level whose ring and Simple step takes `latency_seconds`."""
        simple = _RING_SIMPLE_STEP_SECONDS[reach]
        own = self.host_step_seconds if reach == "host" else self.network_step_seconds
        # A level quicker than the table's step has no wire: its whole latency is the protocol's.
        wire_seconds = max(latency_seconds - simple, 0.0)
        return (latency_seconds - wire_seconds) * (own / simple) + wire_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class SentSpan(Span):
    """A span over which messages go by a protocol."""

    protocol: Protocol

    @property
    def bytes_per_s(self) -> float:
        """What the protocol leaves of the span's bytes per second."""
        # Ranks that share a level's link have a part of it each.
        share = self.level.bytes_per_s / self.level.shared_by
        return self.rank_bytes_per_s(share * self.protocol.bandwidth_fraction)

    @property
    def hop_seconds(self) -> float:
        """The latency from one rank to the next by the protocol."""
        return self.hops * self.protocol.hop_seconds(self.level.latency_seconds, self.level.reach)


PLAIN: Final = Protocol(
    algorithm="ring",
    name="plain",
    start_seconds=0.0,
    host_step_seconds=_RING_SIMPLE_STEP_SECONDS["host"],
    network_step_seconds=_RING_SIMPLE_STEP_SECONDS["network"],
    bandwidth_fraction=1.0,
)
"""What a level's own numbers say."""
