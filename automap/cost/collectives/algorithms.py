"""What each algorithm of a collective costs on the spans of a group: lines t(B) = alpha + beta B.

B, in bytes, is the full buffer on one device: the operand of all-reduce, all-to-all and
collective-permute, the *gathered result* of all-gather, the *unscattered* operand of
reduce-scatter. The spans come from the inside out; n is the ranks of a span, b its bytes per second
for one rank in one direction, h its hop latency. Neighbouring ring and line spans of different
levels are the dimensions of one torus and form a stage; every other span is a stage by itself ->
in: `_stages`.

reduce-scatter and all-gather (mirror images): the faster of
  stages, one after the other (hierarchical)                               -> in: `_by_stages`
    Stage k works on B / N_k bytes, N_k the ranks of the stages inside it.
    alpha   switch (n-1) h inside a host, a ring; ceil(log2 n) h across hosts (recursive halving);
            ring floor(n/2) h, line (n-1) h; summed.
    beta    of a stage with one span: (1 - 1/n) / b. The data crosses each of its n-1 borders once.
    beta    of a torus: the buffer is split and each part visits the dimensions in its own order,
            so all links work at once. The reachable loads (bytes a dimension carries) are the base
            polytope of f(S) = 1 - 1/prod_S n: dimensions that go first carry most. The least
            time over it is, by the min-max theorem for submodular base polytopes,

                max over non-empty S of [f(T) - f(T-S)] / sum_S b,   T all dimensions,

            which is (1 - 1/N) / sum b when the dimensions can be balanced.   -> in: `_torus_beta`
  one ring through all ranks, for groups of switches                       -> in: `_flat_ring`
    Of its N edges all but one are walked; those of span k are (n_k - 1) times the ranks outside it.
    Each of the I_k ranks inside a span has its own ring with its own way out: beta
    (1 - 1/N) max_k 1 / (I_k b_k).
all-reduce
  ring    reduce-scatter, then all-gather: twice the above, with rings across hosts too.
  halving, of devices that meet in one memory: twice the stages with ceil(log2 n) h on every switch.
  torus   of a compiler that uses several dimensions at once only to reduce, and only over whole
          ones: twice the stages if no dimension is cut, twice one ring otherwise. Its gathers and
          scatters are the faster of one ring and such an all-reduce       -> in: `_by_rings`
          A ring goes through all N ranks of a torus and uses two links of each, both ways at once:
          alpha floor(N/2) h, beta (1 - 1/N) / (2 l), with l the bytes per second of a link of the
          slowest dimension: half a ring's b, a line's whole.
  tree    reduce to the root, then broadcast, in chunks that follow each other: a chain inside a
          host, a double binary tree across                                -> in: `_tree`
          alpha 2 sum of (n-1) h or ceil(log2 n) h, beta 2 max_k 1 / (I_k b_k).
all-to-all                                                                 -> in: `_exchange`
  switches: every rank sends to every other directly. Over span k it reaches (n_k - 1) I_k ranks,
    with B / N bytes each, over all spans at once: alpha sum of (n_k - 1) I_k h_k, beta
    max_k (n_k - 1) I_k / (N b_k).
  a torus: messages pass through the dimensions in order, which all work at once: alpha the sum of
    the diameters, beta the busiest dimension's floor(n^2/4) / (n b): floor(n^2/4) is the sum of
    distances on a ring; on a line the middle border carries as much and b is half a ring's.
  both: one after the other, each with the whole operand: sums.
collective-permute: every rank sends its operand to the next              -> in: `_shift`
    (over several dimensions of a torus: `automap.cost.collectives.costs`, by the order of devices)
    The slowest span decides: its alpha is h (a line's last rank is n-1 hops from the first) and its
    beta 1/b, or 2/b on a ring, where one direction is one of the two links.

The torus's rules are read from programs that libtpu 0.0.51 compiled for slices of v5e, v5p and v6e,
whose gathers are "1DAllGather" and whose scatters "StrategyRing" with one color, while all-reduces
are "ND" over whole dimensions (docs/reports/collectives_tpu.md).

Sources: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH"
(2005) for recursive halving; Sanders, Speck, Traff, "Two-tree algorithms" (2009) for the tree;
https://jax-ml.github.io/scaling-book/sharding for rings, lines and several torus dimensions at
once; Fujishige, "Submodular Functions and Optimization" for the min-max.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, groupby
from math import ceil, log2, prod
from operator import mul
from typing import Final

from automap.backends import Algorithm
from automap.cost.collectives.kinds import CollectiveKind
from automap.topology.spans import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The line t(B) = alpha + beta B."""

    alpha_seconds: float
    beta_seconds_per_byte: float

    def times(self, factor: float) -> "Line":
        """Both parts multiplied."""
        return Line(
            alpha_seconds=factor * self.alpha_seconds,
            beta_seconds_per_byte=factor * self.beta_seconds_per_byte,
        )


Group = Sequence[Span]


def _scatter(group: Group) -> Iterator[Line]:
    yield _by_stages(group, _halving_steps)
    if _is_nested_switches(group):
        yield _flat_ring(group)


def _reduce_over_torus(group: Group) -> Iterator[Line]:
    if all(span.kind == "switch" or span.ranks == span.level.size for span in group):
        yield from _scatter_then_gather(group)
    else:
        yield _by_rings(group).times(2)


def _scatter_over_torus(group: Group) -> Iterator[Line]:
    yield _by_rings(group)
    yield from _reduce_over_torus(group)
    if _is_nested_switches(group):
        yield _flat_ring(group)


def _scatter_then_gather(group: Group) -> Iterator[Line]:
    yield _by_stages(group, _ring_steps).times(2)
    if _is_nested_switches(group):
        yield _flat_ring(group).times(2)


def _halve(group: Group) -> Iterator[Line]:
    yield _by_stages(group, _logarithm_steps)


def _halve_then_double(group: Group) -> Iterator[Line]:
    yield _by_stages(group, _logarithm_steps).times(2)


def _by_stages(group: Group, steps: Callable[[Span], int]) -> Line:
    def over(stage: Group) -> Line:
        return Line(
            alpha_seconds=sum(steps(span) * span.hop_seconds for span in stage),
            beta_seconds_per_byte=_torus_beta(stage),
        )

    return _in_turn(group, over)


def _by_rings(group: Group) -> Line:
    def over(stage: Group) -> Line:
        return _by_stages(stage, _halving_steps) if len(stage) == 1 else _round_torus(stage)

    return _in_turn(group, over)


def _in_turn(group: Group, over: Callable[[Group], Line]) -> Line:
    """The stages of a group one after the other, each with the line that `over` says."""
    alpha = beta = 0.0
    inside = 1
    for stage in _stages(group):
        line = over(stage)
        alpha += line.alpha_seconds
        # Stages are summed from the inside out: each works on what those inside have left.
        beta += line.beta_seconds_per_byte / inside
        inside *= prod(span.ranks for span in stage)
    return Line(alpha_seconds=alpha, beta_seconds_per_byte=beta)


def _round_torus(stage: Group) -> Line:
    ranks = prod(span.ranks for span in stage)
    # A ring's bytes per second are those of two links, a line's those of one.
    links = (span.bytes_per_s / (2 if span.kind == "ring" else 1) for span in stage)
    return Line(
        alpha_seconds=ranks // 2 * max(span.hop_seconds for span in stage),
        beta_seconds_per_byte=(1 - 1 / ranks) / (2 * min(links)),
    )


def _flat_ring(group: Group) -> Line:
    total = prod(span.ranks for span in group)
    # Hops over each span: n_k - 1 inside of each of its groups, of which there are
    # total / (inside * n_k).
    edges = (
        (span.ranks - 1) * (total // (inside * span.ranks)) * span.hop_seconds
        for span, inside in _with_inside(group)
    )
    return Line(
        alpha_seconds=sum(edges), beta_seconds_per_byte=(1 - 1 / total) * _slowest_exit(group)
    )


def _tree(group: Group) -> Iterator[Line]:
    """Only across hosts: inside one the tree is a chain, which the ring beats."""
    if all(span.kind == "switch" for span in group) and _crosses_hosts(group):
        alpha = sum(_halving_steps(span) * span.hop_seconds for span in group)
        yield Line(alpha_seconds=2 * alpha, beta_seconds_per_byte=2 * _slowest_exit(group))


def _exchange(group: Group) -> Iterator[Line]:
    alpha = beta = 0.0
    # Neighbouring switches exchange over all of them at once; a torus is a step of its own.
    for is_switch, run in groupby(_stages(group), lambda stage: stage[0].kind == "switch"):
        stages = list(run)
        if is_switch:
            parts = [_direct([stage[0] for stage in stages])]
        else:
            parts = [_through_torus(stage) for stage in stages]
        alpha += sum(part.alpha_seconds for part in parts)
        beta += sum(part.beta_seconds_per_byte for part in parts)
    yield Line(alpha_seconds=alpha, beta_seconds_per_byte=beta)


def _direct(group: Group) -> Line:
    total = prod(span.ranks for span in group)
    reached = [((span.ranks - 1) * inside, span) for span, inside in _with_inside(group)]
    return Line(
        alpha_seconds=sum(peers * span.hop_seconds for peers, span in reached),
        beta_seconds_per_byte=max(peers / total / span.bytes_per_s for peers, span in reached),
    )


def _through_torus(stage: Group) -> Line:
    return Line(
        alpha_seconds=sum(_ring_steps(span) * span.hop_seconds for span in stage),
        beta_seconds_per_byte=max(
            span.ranks**2 // 4 / span.ranks / span.bytes_per_s for span in stage
        ),
    )


def _shift(group: Group) -> Iterator[Line]:
    yield Line(
        alpha_seconds=max(
            (span.ranks - 1 if span.kind == "line" else 1) * span.hop_seconds for span in group
        ),
        # A ring's bandwidth is that of both directions; a shift uses one.
        beta_seconds_per_byte=max(
            (2 if span.kind == "ring" else 1) / span.bytes_per_s for span in group
        ),
    )


LINES: Final[Mapping[Algorithm, Mapping[CollectiveKind, Callable[[Group], Iterator[Line]]]]] = {
    "ring": {
        CollectiveKind.ALL_REDUCE: _scatter_then_gather,
        CollectiveKind.ALL_GATHER: _scatter,
        CollectiveKind.REDUCE_SCATTER: _scatter,
        CollectiveKind.ALL_TO_ALL: _exchange,
        CollectiveKind.PERMUTE: _shift,
    },
    "torus": {
        CollectiveKind.ALL_REDUCE: _reduce_over_torus,
        CollectiveKind.ALL_GATHER: _scatter_over_torus,
        CollectiveKind.REDUCE_SCATTER: _scatter_over_torus,
        CollectiveKind.ALL_TO_ALL: _exchange,
        CollectiveKind.PERMUTE: _shift,
    },
    "tree": {CollectiveKind.ALL_REDUCE: _tree},
    "halving": {
        CollectiveKind.ALL_REDUCE: _halve_then_double,
        CollectiveKind.ALL_GATHER: _halve,
        CollectiveKind.REDUCE_SCATTER: _halve,
        CollectiveKind.ALL_TO_ALL: _exchange,
        CollectiveKind.PERMUTE: _shift,
    },
}
"""Algorithm -> collective -> the lines of the ways to do it; what an algorithm cannot do is absent.
"""


def _stages(group: Group) -> Iterator[tuple[Span, ...]]:
    """Runs of ring and line spans of different levels together, other spans one by one."""
    torus: list[Span] = []
    for span in group:
        # Two spans of one level are no two dimensions: the second begins a torus of its own.
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


def _torus_beta(stage: Group) -> float:
    """Seconds per byte of a reduce-scatter over all dimensions of the stage at once."""
    # The maximum over the non-empty subsets S, of which a torus of three dimensions has seven.
    everyone = prod(span.ranks for span in stage)
    least = 0.0
    for count in range(1, len(stage) + 1):
        for chosen in combinations(stage, count):
            ranks = prod(span.ranks for span in chosen)
            load = ranks / everyone * (1 - 1 / ranks)
            least = max(least, load / sum(span.bytes_per_s for span in chosen))
    return least


def _with_inside(group: Group) -> Iterator[tuple[Span, int]]:
    """Each span with the ranks of the spans inside it."""
    inside = accumulate((span.ranks for span in group), mul, initial=1)
    return zip(group, inside, strict=False)


def _slowest_exit(group: Group) -> float:
    """Seconds per byte out of the groups below each span, all their ranks together; the most."""
    return max(1 / (inside * span.bytes_per_s) for span, inside in _with_inside(group))


def _is_nested_switches(group: Group) -> bool:
    return len(group) > 1 and all(span.kind == "switch" for span in group)


def _crosses_hosts(group: Group) -> bool:
    return any(span.level.reach == "network" for span in group)


def _ring_steps(span: Span) -> int:
    return span.ranks // 2 if span.kind == "ring" else span.ranks - 1


def _logarithm_steps(span: Span) -> int:
    return ceil(log2(span.ranks)) if span.kind == "switch" else _ring_steps(span)


def _halving_steps(span: Span) -> int:
    """A ring's steps, but across hosts a logarithm of them."""
    return _logarithm_steps(span) if span.level.reach == "network" else _ring_steps(span)
