"""A tiny event simulator of links: the oracle for collectives, which knows nothing of their
formulas.

A packet is its route, (link, bytes) in order. A link carries one packet at a time for bytes / rate
and delivers it whole `latency` later; of those that wait, the one with most links left goes first,
then the one that came first.
"""

from dataclasses import dataclass, field
import heapq
from itertools import count, product


@dataclass
class Network:
    """Directed links by any hashable name, all of one rate."""

    bytes_per_s: float
    latency_seconds: float
    _queues: dict = field(default_factory=dict)
    _busy: set = field(default_factory=set)
    _events: list = field(default_factory=list)
    _tick: count = field(default_factory=count)

    def finish_seconds(self, packets):
        """When the last packet has arrived; all are sent at time zero."""
        for route in packets:
            self._wait(tuple(route))
        for link in list(self._queues):
            self._serve(0.0, link)
        now = 0.0
        while self._events:
            now, _, link, route = heapq.heappop(self._events)
            if link is not None:
                self._busy.discard(link)
            elif route:
                link = self._wait(route)
            self._serve(now, link)
        return now

    def _wait(self, route):
        link = route[0][0]
        heapq.heappush(self._queues.setdefault(link, []), (-len(route), next(self._tick), route))
        return link

    def _serve(self, now, link):
        if link in self._busy or not self._queues.get(link):
            return
        _, _, route = heapq.heappop(self._queues[link])
        self._busy.add(link)
        sent = now + route[0][1] / self.bytes_per_s
        heapq.heappush(self._events, (sent, next(self._tick), link, ()))
        arrived = sent + self.latency_seconds
        heapq.heappush(self._events, (arrived, next(self._tick), None, route[1:]))


def one_way_ring_gather(n, n_bytes):
    """Packets of an all-gather on a one-way ring: each rank's part passes all others."""
    return [[((rank + hop) % n, n_bytes / n) for hop in range(n - 1)] for rank in range(n)]


def two_way_ring_gather(n, n_bytes):
    """Packets of an all-gather on a ring with links both ways; the farthest of an even ring gets
    two halves.
    """
    for rank, way in product(range(n), (1, -1)):
        parts = [n_bytes / n] * (n // 2)
        if n % 2 == 0:
            parts[-1] /= 2
        yield [(((rank + way * hop) % n, way), part) for hop, part in enumerate(parts)]


def torus_exchange(dims, wraps, n_bytes, parts):
    """Packets of an all-to-all in dimension order; `parts` rotate the order, and even rings split
    ways.
    """
    ranks = list(product(*map(range, dims)))
    share = n_bytes / len(ranks) / parts
    for source, target, part in product(ranks, ranks, range(parts)):
        route, here = [], list(source)
        for turn in range(len(dims)):
            dim = (turn + part) % len(dims)
            for step in _steps(here[dim], target[dim], dims[dim], wraps[dim], part):
                route.append(((tuple(here), dim, step), share))
                here[dim] = (here[dim] + step) % dims[dim]
        if route:
            yield route


def _steps(start, stop, size, wraps, part):
    ahead = (stop - start) % size
    if not wraps:
        return [1 if stop > start else -1] * abs(stop - start)
    is_forward = 2 * ahead < size or (2 * ahead == size and (start + part) % 2 == 0)
    return [1] * ahead if is_forward else [-1] * (size - ahead)
