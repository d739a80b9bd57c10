"""The time of a collective: t(B) = alpha + beta B over a group of mesh axes.

B, in bytes, is the full buffer on one device: the operand of all-reduce, all-to-all and
collective-permute, the *gathered result* of all-gather, the *unscattered* operand of
reduce-scatter.

The group's spans (`automap.cost.spans`) are walked from the inside out. n is the ranks of a span, b
its bytes per second for one rank in one direction, h its hop latency. Neighbouring ring and line
spans of different levels are the dimensions of one torus and form a stage; every other span is a
stage by itself -> in: `_stages`.

reduce-scatter and all-gather (mirror images)                              -> in: `_scatter`
    Stage k works on B / N_k bytes, N_k the ranks of the stages inside it.
    alpha   switch ceil(log2 n) h (recursive halving), ring floor(n/2) h, line (n-1) h; summed.
    beta    of a stage with one span: (1 - 1/n) / b. The data crosses each of its n-1 borders once.
    beta    of a torus: the buffer is split and each part visits the dimensions in its own order,
            so all links work at once. The reachable loads (bytes a dimension carries) are the base
            polytope of f(S) = 1 - 1/prod_S n: dimensions that go first carry most. The least
            time over it is, by the min-max theorem for submodular base polytopes,

                max over non-empty S of [f(T) - f(T-S)] / sum_S b,   T all dimensions,

            which is (1 - 1/N) / sum b when the dimensions can be balanced.   -> in: `_torus_beta`
all-reduce = reduce-scatter, then all-gather: twice the above, exactly.
all-to-all                                                                 -> in: `_exchange`
    One exchange per span, each of the whole operand: sums. A rank keeps 1/n of it.
    switch  alpha (n-1) h, beta (1 - 1/n) / b.
    ring    alpha floor(n/2) h, beta floor(n^2/4) / (n b): floor(n^2/4) is the sum of distances.
    line    alpha (n-1) h, the same beta: the middle border carries most, and b is half a ring's.
collective-permute: every rank sends its operand to the next              -> in: `_shift`
    The slowest span decides: its alpha is h (a line's last rank is n-1 hops from the first) and its
    beta 1/b, or 2/b on a ring, where one direction is one of the two links.

Sources: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH"
(2005) for the switch; https://jax-ml.github.io/scaling-book/sharding for rings, lines and several
torus dimensions at once; Fujishige, "Submodular Functions and Optimization" for the min-max.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from math import ceil, log2, prod
from typing import Final

from automap.cost.spans import Span, spans
from automap.topology.model import Topology


class CollectiveKind(StrEnum):
    """HLO's names of the collectives that are priced."""

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"
    PERMUTE = "collective-permute"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlphaBeta:
    """The line t(B) = alpha + beta B."""

    alpha_seconds: float
    beta_seconds_per_byte: float

    def seconds(self, n_bytes: float) -> float:
        """The time for a buffer of `n_bytes`."""
        return self.alpha_seconds + self.beta_seconds_per_byte * n_bytes


def alpha_beta(
    kind: CollectiveKind, topology: Topology, mesh_shape: Sequence[int], axes: Sequence[int]
) -> AlphaBeta:
    """The cost line of a collective over the group of mesh `axes`; a group of one rank is free.

    Raises `TopologyError` when the mesh does not fit the topology (see `spans`).
    """
    group = spans(topology, mesh_shape, axes)
    if not group:
        return AlphaBeta(alpha_seconds=0.0, beta_seconds_per_byte=0.0)
    return _COSTS[kind](group)


def _scatter(group: Sequence[Span]) -> AlphaBeta:
    alpha = beta = 0.0
    inside = 1
    for stage in _stages(group):
        alpha += sum(_scatter_steps(span) * span.hop_seconds for span in stage)
        beta += _torus_beta(stage) / inside
        inside *= prod(span.ranks for span in stage)
    return AlphaBeta(alpha_seconds=alpha, beta_seconds_per_byte=beta)


def _scatter_then_gather(group: Sequence[Span]) -> AlphaBeta:
    half = _scatter(group)
    return AlphaBeta(
        alpha_seconds=2 * half.alpha_seconds,
        beta_seconds_per_byte=2 * half.beta_seconds_per_byte,
    )


def _exchange(group: Sequence[Span]) -> AlphaBeta:
    return AlphaBeta(
        alpha_seconds=sum(_exchange_steps(span) * span.hop_seconds for span in group),
        beta_seconds_per_byte=sum(
            _exchange_hops(span) / span.ranks / span.bytes_per_s for span in group
        ),
    )


def _shift(group: Sequence[Span]) -> AlphaBeta:
    return AlphaBeta(
        alpha_seconds=max(
            (span.ranks - 1 if span.kind == "line" else 1) * span.hop_seconds for span in group
        ),
        beta_seconds_per_byte=max(
            (2 if span.kind == "ring" else 1) / span.bytes_per_s for span in group
        ),
    )


_COSTS: Final[dict[CollectiveKind, Callable[[Sequence[Span]], AlphaBeta]]] = {
    CollectiveKind.ALL_REDUCE: _scatter_then_gather,
    CollectiveKind.ALL_GATHER: _scatter,
    CollectiveKind.REDUCE_SCATTER: _scatter,
    CollectiveKind.ALL_TO_ALL: _exchange,
    CollectiveKind.PERMUTE: _shift,
}


def _stages(group: Sequence[Span]) -> Iterator[tuple[Span, ...]]:
    """Runs of ring and line spans of different levels together, other spans one by one."""
    torus: list[Span] = []
    for span in group:
        starts = span.kind == "switch" or any(span.level is other.level for other in torus)
        if starts and torus:
            yield tuple(torus)
            torus = []
        if span.kind == "switch":
            yield (span,)
        else:
            torus.append(span)
    if torus:
        yield tuple(torus)


def _torus_beta(stage: Sequence[Span]) -> float:
    """Seconds per byte of a reduce-scatter over all dimensions of the stage at once."""
    everyone = prod(span.ranks for span in stage)
    least = 0.0
    for count in range(1, len(stage) + 1):
        for chosen in combinations(stage, count):
            ranks = prod(span.ranks for span in chosen)
            load = ranks / everyone * (1 - 1 / ranks)
            least = max(least, load / sum(span.bytes_per_s for span in chosen))
    return least


def _scatter_steps(span: Span) -> int:
    match span.kind:
        case "switch":
            return ceil(log2(span.ranks))
        case "ring":
            return span.ranks // 2
        case "line":
            return span.ranks - 1


def _exchange_steps(span: Span) -> int:
    return span.ranks // 2 if span.kind == "ring" else span.ranks - 1


def _exchange_hops(span: Span) -> int:
    """Link crossings of one rank's operand, in units of 1/n of it."""
    return span.ranks - 1 if span.kind == "switch" else span.ranks**2 // 4
