"""The ways messages take through a graph, as arrays for a simulator.

The route between two devices is the one whose links, one after the other, carry a message of
R = `REFERENCE_BYTES` soonest:

    least  sum over the route's links of  latency_seconds + R / bytes_per_s          -> in: `_steps`

Between a < b it is searched from a; the way from b to a is the same backwards. On it

    bytes_per_s[a, b]      the least of its links' (inf on the diagonal)
    latency_seconds[a, b]  the sum of its links' (0 on the diagonal)
    media                  the directed media it crosses: medium m is number 2m in the direction
                           from a link's first end to its second, 2m + 1 the other way. Each carries
                           `medium_bytes_per_s`, divided among what crosses it at one time.
"""

from dataclasses import dataclass, fields
from typing import Final

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from automap.topology.graph import Graph


# A message for which latency and rate both matter: at 12 GB/s a MiB takes 87 us.
REFERENCE_BYTES: Final = 2**20


@dataclass(frozen=True, kw_only=True)
class Routes:
    """All routes of a graph of P devices.

    bytes_per_s         [P, P] the slowest link, one direction
    latency_seconds     [P, P] all links
    first               [P * P + 1] where each pair's media begin: pair (a, b) is number a * P + b
    media               directed media crossed, in order, of all pairs one after the other
    medium_bytes_per_s  [2 * media of the graph]
    medium_names        [2 * media of the graph], as "card >" and "card <"
    """

    bytes_per_s: np.ndarray
    latency_seconds: np.ndarray
    first: np.ndarray
    media: np.ndarray
    medium_bytes_per_s: np.ndarray
    medium_names: tuple[str, ...]

    def between(self, source: int, target: int) -> np.ndarray:
        """The directed media that a message from device `source` to `target` crosses, in order."""
        pair = source * len(self.bytes_per_s) + target
        return self.media[self.first[pair] : self.first[pair + 1]]


@dataclass(frozen=True, kw_only=True)
class _Steps:
    """Links crossed by pairs a < b, [steps]: `place` counts from b, `forward` is the way from a to
    b.
    """

    low: np.ndarray
    high: np.ndarray
    link: np.ndarray
    place: np.ndarray
    forward: np.ndarray


def shortest_routes(graph: Graph) -> Routes:
    """The routes between all pairs of devices."""
    medium = {name: m for m, name in enumerate(dict.fromkeys(x.shared_medium for x in graph.links))}
    rate = np.array([link.bytes_per_s for link in graph.links], float)
    latency = np.array([link.latency_seconds for link in graph.links], float)
    medium_by_link = np.array([medium[link.shared_medium] for link in graph.links], np.int64)
    steps, count = _steps(graph, latency + REFERENCE_BYTES / rate), graph.device_count

    # Each step of a pair a < b is one of (a, b), and backwards one of (b, a). Walks begin at b, so
    # places count from there: ascending for (b, a), descending for (a, b).
    there, back = steps.low * count + steps.high, steps.high * count + steps.low
    pair, link = np.concatenate([there, back]), np.concatenate([steps.link, steps.link])
    place = np.concatenate([-steps.place, steps.place])
    forward = np.concatenate([steps.forward, ~steps.forward])
    order = np.lexsort((place, pair))
    # [P * P] the least rate of the links of each pair; a device reaches itself at once.
    slowest = np.full(count * count, np.inf)
    np.minimum.at(slowest, pair, rate[link])
    rates = np.zeros(len(medium))
    rates[medium_by_link] = rate
    return Routes(
        bytes_per_s=slowest.reshape(count, count),
        latency_seconds=np.bincount(pair, latency[link], count * count).reshape(count, count),
        first=np.concatenate([[0], np.cumsum(np.bincount(pair, minlength=count * count))]),
        media=(2 * medium_by_link[link] + ~forward)[order],
        medium_bytes_per_s=np.repeat(rates, 2),
        medium_names=tuple(f"{name} {way}" for name in medium for way in "><"),
    )


def _steps(graph: Graph, cost_seconds: np.ndarray) -> _Steps:
    """Walk every pair's shortest way from its higher device back to its lower one, all at once."""
    number = {name: place for place, name in enumerate(graph.node_names)}
    nodes = len(number)
    ends = np.array([[number[end] for end in x.ends] for x in graph.links], np.int64).reshape(-1, 2)
    # Both ways of each link, the cheapest of parallel links first.
    cheapest = np.argsort(cost_seconds, kind="stable")
    ways = np.stack([ends[cheapest], ends[cheapest, ::-1]], axis=1).reshape(-1, 2)
    key, first = np.unique(ways[:, 0] * nodes + ways[:, 1], return_index=True)
    link_by_way = cheapest[first // 2]
    # key is sorted, and names a way by both of its nodes: a link is looked up by bisection.
    before = _before(key, cost_seconds[link_by_way], nodes, graph.device_count)

    low, high = np.triu_indices(graph.device_count, k=1)
    here, walked, place = high.copy(), [], 0
    while len(low):
        previous = before[low, here]
        link = link_by_way[np.searchsorted(key, previous * nodes + here)]
        walked.append(
            _Steps(
                low=low,
                high=high,
                link=link,
                place=np.full(len(low), place),
                forward=ends[link, 1] == here,
            )
        )
        # Pairs that have come to their lower device are done.
        on_the_way = previous != low
        low, high, here = low[on_the_way], high[on_the_way], previous[on_the_way]
        place += 1
    return _joined(walked)


def _before(key: np.ndarray, cost_seconds: np.ndarray, nodes: int, devices: int) -> np.ndarray:
    """[devices, nodes] the node before each on the shortest way from each device."""
    # key // nodes is where a way begins, key % nodes where it ends.
    matrix = csr_array((cost_seconds, (key // nodes, key % nodes)), shape=(nodes, nodes))
    _, before = dijkstra(matrix, indices=np.arange(devices), return_predecessors=True)
    return before.astype(np.int64)


def _joined(walked: list[_Steps]) -> _Steps:
    # One device alone has no pairs: its columns are empty.
    empty = _Steps(**{field.name: np.empty(0, np.int64) for field in fields(_Steps)})
    return _Steps(
        **{
            field.name: np.concatenate([getattr(part, field.name) for part in walked or [empty]])
            for field in fields(_Steps)
        }
    )
