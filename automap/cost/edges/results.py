"""Result edges: where ops make tensors, and what is summed there."""

from collections import defaultdict
from collections.abc import Mapping
import math
from typing import Literal

import numpy as np

from automap.backends import LoopMessages, ScatteredSums
from automap.cost.collectives import KINDS
from automap.cost.edges.loops import filled_stacks, innermost_loops, part_of_message
from automap.cost.edges.sums import Order, Sums, addition_chains, keeps_elements, merged_sums
from automap.cost.edges.table import (
    NO_LOOP,
    AtOnce,
    EdgeKey,
    EdgeList,
    Edges,
    OwnFlow,
    Partials,
    highest_rank,
    inners,
    last_size,
    majors,
    sized_dims,
)
from automap.program.problem import Problem
from hlo_tools.analyses.invariants import Constants, counts_up
from hlo_tools.analyses.storage import Side
from hlo_tools.graph import Graph, Op
from hlo_tools.opcodes import CONTRACTIONS, STRUCTURAL, SUMS_APART, SUMS_AT_ONCE
from hlo_tools.rules import Rule
from hlo_tools.rules.convolution import partitioned_alone


def result_edges(
    problem: Problem,
    row_of_value: np.ndarray,
    row_of_op: np.ndarray,
    op_rows: np.ndarray,
    *,
    order: Order | None,
    loop_messages: LoopMessages = "vectors",
    collective_dims: Literal["any", "first"] = "any",
    scattered_sums: ScatteredSums = "in pieces",
    sliced_sums: Literal["whole", "apart"] = "whole",
    nested_sums: Literal["apart", "folded"] = "apart",
    gathered_state: Literal["in place", "copied"] = "in place",
) -> tuple[Edges, np.ndarray]:
    """Edges from ops to the values they make; the edge of each op's first result, -1 for none.

    `order` is how the backend merges sums (`automap.cost.edges.sums`), of which the first term is
    then reduced and the others repeat it; if None it does not, nor sees through indices.
    `loop_messages` and those after it are those of `automap.backends.Backend`.
    """
    graph, is_whole = problem.graph, scattered_sums != "in pieces"
    at_once = AtOnce.ALWAYS if sliced_sums == "whole" else AtOnce.UNLESS_SLICED
    sized = sized_dims if collective_dims == "first" else _sizes
    edges = EdgeList(highest_rank(problem), op_rows.shape[1])
    # By the identity of the rule, which like operations share and the problem keeps alive.
    reduced: dict[int, tuple[list[tuple[int, ...]], tuple[int, ...]]] = {}
    values, side = row_of_value.tolist(), problem.storage.side.tolist()
    ops = row_of_op.tolist()
    merged = Sums({}, {}, {}) if order is None else merged_sums(graph, order)
    whole = merged.whole(graph)
    partials = _Partials(graph, simplifies=order is not None)
    least_messages = _Messages(problem, merged, loop_messages)
    loops, stacks = innermost_loops(graph), filled_stacks(graph)
    is_copied = gathered_state == "copied"
    handed_on = frozenset(graph.outputs[o] for o in problem.donated) if is_copied else frozenset()
    # Sum -> its distinct terms so far, each with its edge.
    first_terms: dict[int, dict[EdgeKey, int]] = {}
    edge_of_op = np.full(len(graph.ops), -1, np.int64)
    for index, (op, rule) in enumerate(zip(graph.ops, problem.linkage.rules, strict=True)):
        if id(rule) not in reduced:
            by_result = [rule.summed_in(result) for result in range(len(rule.results))]
            reduced[id(rule)] = by_result, _sum_by_factor(rule, op.opcode, nested_sums)
        by_result, factor_sums = reduced[id(rule)]
        trips, loop = op.trip_count, (loops[index], op.trip_count)
        if index in stacks:
            trips = stacks[index].trips
            loop = stacks[index].around, trips
        for value, dims, summed in zip(op.outputs, rule.results, by_result):
            if op.opcode not in STRUCTURAL and graph.varies[value]:
                key = EdgeKey(
                    values[value],
                    ops[index],
                    majors(dims),
                    summed,
                    graph.values[value].n_bytes,
                    int(problem.phases[index]),
                    side[value] != Side.NONE,
                    at_once if op.opcode in SUMS_AT_ONCE else AtOnce.NEVER,
                    factor_sums,
                    tuple(sorted(partitioned_alone(op.instruction, rule))),
                    partials(op),
                    least_messages=least_messages(value, op),
                    loop=loop if trips > 1 else NO_LOOP,
                    last_size=last_size(graph, value),
                    widened=merged.widened.get(value, 1.0),
                    own=_own_flow(problem, index, value),
                    sized=sized(graph, value, op, rule, dims) if is_whole and summed else (),
                    is_handed_on=value in handed_on,
                    inner=inners(problem, index, dims),
                )
                # Not what is made of terms: transposed, added.
                is_term = bool(summed) and not keeps_elements(graph, op)
                sum_name = merged.sum_by_term.get(value) if is_term else None
                terms = {} if sum_name is None else first_terms.setdefault(sum_name, {})
                # Terms that are alike but for what came before them are still rows of their own.
                full_key = key._replace(earlier=tuple(sorted(terms.values()))) if terms else key
                count = merged.trips(value, op.trip_count)
                edge = edges.add(full_key, count, value, index, trips, whole.get(value))
                terms.setdefault(key, edge)
                if value == op.outputs[0]:
                    edge_of_op[index] = edge
    return edges.edges(), edge_of_op


def _sizes(graph: Graph, value: int, *_: object) -> tuple[tuple[int, int], ...]:
    """`sized_dims` where products turn nothing: there no dimension is of a kind."""
    return tuple((size, -1) for size in graph.values[value].dims)


def _own_flow(problem: Problem, index: int, value: int) -> OwnFlow:
    """The collective that an op of the step itself is, once."""
    # With several results it is listed at the first.
    own = problem.own_collectives.get(index)
    if own is None or value != problem.graph.ops[index].outputs[0]:
        return OwnFlow()
    mask = sum(1 << axis for axis in own.axes)
    return OwnFlow([kind.value for kind in KINDS].index(own.kind), mask, own.n_bytes)


class _Messages:
    """`Edges.least_messages` of results: in one trip of a loop the sums of vectors are one message
    together, and those of other arrays another one, or all one. Where all are, so are sums of
    activations in one chain of additions, which wait for nothing of each other.
    """

    def __init__(self, problem: Problem, merged: Sums, loop_messages: LoopMessages) -> None:
        self._graph, self._loop = problem.graph, innermost_loops(problem.graph)
        self._side = problem.storage.side.tolist()
        self._most_rank = 1 if loop_messages == "vectors" else None
        is_merging = loop_messages == "all"
        self._beside = _terms_beside(problem, merged) if is_merging else dict[int, int]()
        self._apart = loop_messages == "sums"
        # Bytes of the sums that go together in one trip of each loop.
        self._n_bytes: dict[tuple[int, bool], int] = defaultdict(int)
        for loop, op, rule in zip(self._loop, self._graph.ops, problem.linkage.rules, strict=True):
            for result, value in enumerate(op.outputs[: len(rule.results)]):
                if self._is_merged(value) and rule.summed_in(result):
                    together = loop, self._is_apart(value)
                    self._n_bytes[together] += self._graph.values[value].n_bytes

    def __call__(self, value: int, op: Op) -> float:
        array = self._graph.values[value]
        if value in self._beside:
            return 1.0 / self._beside[value]
        if not self._is_merged(value):
            return float(self._side[value] == Side.NONE or op.trip_count > 1)
        together = self._n_bytes[self._loop[array.producer], self._is_apart(value)]
        return part_of_message(array.n_bytes, together, op.trip_count)

    def _is_apart(self, value: int) -> bool:
        return self._apart and len(self._graph.values[value].dims) > 1

    def _is_merged(self, value: int) -> bool:
        rank = len(self._graph.values[value].dims)
        is_small = self._most_rank is None or rank <= self._most_rank
        return self._side[value] != Side.NONE and is_small


def _terms_beside(problem: Problem, merged: Sums) -> Mapping[int, int]:
    """Products that are activations, and how many sums there are in the chain of additions of each,
    with itself, that share a group of dimensions which they sum over.
    """
    graph, groups = problem.graph, problem.linkage.factor_groups
    chain = addition_chains(graph, lambda op: op.opcode == "convert" or keeps_elements(graph, op))
    # By chain: the name of each sum, and the groups that it sums over.
    sums: dict[int, dict[int, frozenset[int]]] = defaultdict(dict)
    term_names = dict[int, int]()
    for index, (op, rule) in enumerate(zip(graph.ops, problem.linkage.rules, strict=True)):
        value = op.outputs[0] if op.opcode in CONTRACTIONS else -1
        if value in chain and problem.storage.side[value] == Side.NONE:
            name = term_names[value] = merged.sum_by_term.get(value, value)
            summed = {int(groups[index, factor]) for factor in rule.summed_in(0)}
            sums[chain[value]][name] = frozenset(summed - {-1})
    return {
        value: max(sum(not own[name].isdisjoint(other) for other in own.values()), 1)
        for value, name in term_names.items()
        for own in (sums[chain[value]],)
    }


class _Partials:
    """What the devices have of a result whose reduction is split."""

    def __init__(self, graph: Graph, *, simplifies: bool) -> None:
        self._constants = Constants(graph) if simplifies else None
        self._graph = graph

    def __call__(self, op: Op) -> Partials:
        if op.is_joint_reduction:
            return Partials.CANDIDATES
        if op.opcode == "gather" and self._constants is not None:
            table, indices = (self._graph.values[v].dims for v in op.inputs)
            numbers = op.instruction.attributes.gather
            rows = numbers.start_index_map if numbers else ()
            # As many indices as rows, and they count up: the result is the table itself, so every
            # device's part of the rows is a part of the result.
            if len(rows) == 1 and table[rows[0]] == math.prod(indices):
                if counts_up(self._constants, op.inputs[1]):
                    return Partials.ROWS
        return Partials.TERMS


def _sum_by_factor(
    rule: Rule, opcode: str, nested_sums: Literal["apart", "folded"]
) -> tuple[int, ...]:
    # One all-reduce for each factor that is summed over where the compiler makes them one by one,
    # and leaves them so; else all of them are number 0.
    is_apart = opcode in SUMS_APART and nested_sums == "apart"
    return tuple(range(len(rule.factors))) if is_apart else ()
