"""Sums of partial sums: added up once at their end rather than term by term.

The gradient of a weight that is used at every time step is a sum of products, each of which sums
over the batch. Where the batch is split, each device adds its own terms, and one all-reduce makes
the result; backends do the same (`automap.cost.edges.sums`, which finds the sums). For a sum all of
whose terms sum over a class c:

    terms      keep partial sums: their factor of c is no REDUCTION any more
    additions  get a factor of c: a part of it adds the partial sums of its terms; it divides
               neither their result nor what they read
    the last   adds up the parts: its factor of c is the REDUCTION

A sum whose last addition is fused to what reads it (an update without moments) is left as it is, as
are sums over the trips of a loop: each of their terms is added up by itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from automap.simulate.operators.graph import (
    NO_CLASS,
    ConsumerStep,
    Operator,
    OperatorGraph,
    SplitFactor,
)
from hlo_tools.rules import FactorKind


def added_at_the_end(graph: OperatorGraph, sum_by_operator: Mapping[int, int]) -> OperatorGraph:
    """The graph with its sums changed; `sum_by_operator` has the sum of each operator that makes a
    term or an addition.
    """
    members: dict[int, list[int]] = {}
    for number, name in sorted(sum_by_operator.items()):
        members.setdefault(name, []).append(number)
    operators, edges = list(graph.operators), list(graph.edges)
    inside = _inside(graph, sum_by_operator)
    for numbers in members.values():
        within = [inside[n] for n in numbers if n in inside]
        additions = {edges[e].target for e in within}
        last = [n for n in additions if n not in inside]
        # A tree of additions: every member but the last hands its result to another member alone.
        if len(last) != 1 or len(within) != len(numbers) - 1:
            continue
        terms = [n for n in numbers if n not in additions]
        for factor in _summed_by_all([graph.operators[n] for n in terms]):
            place = {n: _summed(graph.operators[n], factor.group_class) for n in terms}
            for n in terms:
                operators[n] = _holding(operators[n], place[n])
            # The new factor takes the place of the copies, which move one on.
            for n in additions:
                place[n] = len(operators[n].factors) - 1
                operators[n] = _adding(operators[n], factor)
            operators[last[0]] = _finishing(operators[last[0]], place[last[0]])
            for e in within:
                pair = (place[edges[e].source], place[edges[e].target])
                edges[e] = replace(edges[e], sums=(*edges[e].sums, pair))
    return OperatorGraph(tuple(operators), tuple(edges))


def _inside(graph: OperatorGraph, sum_by_operator: Mapping[int, int]) -> dict[int, int]:
    """For each operator whose result only its own sum reads, and once, the number of that edge."""
    readers: dict[int, list[int]] = {}
    for number, edge in enumerate(graph.edges):
        readers.setdefault(edge.source, []).append(number)
    result: dict[int, int] = {}
    for source, name in sum_by_operator.items():
        for number in readers.get(source, [])[:1]:
            edge = graph.edges[number]
            is_same = (
                edge.consumer_step is ConsumerStep.SAME_STEP
                and sum_by_operator.get(edge.target) == name
            )
            if is_same and len(readers[source]) == 1:
                result[source] = number
    return result


def _summed_by_all(terms: Sequence[Operator]) -> list[SplitFactor]:
    """The factors that every term sums over, as the first term has them but of the least size."""
    reductions = [
        {f.group_class: f for f in term.factors if f.kind is FactorKind.REDUCTION} for term in terms
    ]
    shared = set(reductions[0]).intersection(*reductions) - {NO_CLASS}
    return [
        replace(
            reductions[0][c],
            size=min(term[c].size for term in reductions),
            kind=FactorKind.PASSTHROUGH,
        )
        for c in sorted(shared)
    ]


def _summed(term: Operator, group_class: int) -> int:
    # The last of them, where a term sums over two factors of one class.
    kinds = [(f.group_class, f.kind) for f in term.factors]
    return len(kinds) - 1 - kinds[::-1].index((group_class, FactorKind.REDUCTION))


def _holding(term: Operator, place: int) -> Operator:
    factors = list(term.factors)
    factors[place] = replace(factors[place], kind=FactorKind.PASSTHROUGH)
    return replace(term, factors=tuple(factors))


def _adding(addition: Operator, factor: SplitFactor) -> Operator:
    """The operator with one more factor, before its copies."""
    return replace(addition, factors=(*addition.factors[:-1], factor, addition.factors[-1]))


def _finishing(addition: Operator, place: int) -> Operator:
    factors = list(addition.factors)
    factors[place] = replace(factors[place], kind=FactorKind.REDUCTION)
    return replace(addition, factors=tuple(factors))
