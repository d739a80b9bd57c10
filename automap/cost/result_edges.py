"""Result edges: where ops make tensors, and what is summed there."""

from dataclasses import replace

import numpy as np

from automap.cost.edges import EdgeKey, EdgeList, Edges, majors, rank_of
from automap.space.problem import Problem
from hlo_tools.graph import STRUCTURAL
from hlo_tools.kernels import CONTRACTIONS
from hlo_tools.rules import FactorKind, Rule
from hlo_tools.rules.convolution import partitioned_alone
from hlo_tools.storage import Side


_SUMS_AT_ONCE = frozenset({"reduce", "scatter"})
_SUMS_APART = frozenset({"reduce", "scatter", "dot"})


def result_edges(
    problem: Problem,
    row_of_value: np.ndarray,
    row_of_op: np.ndarray,
    op_rows: np.ndarray,
    *,
    merge_sums: bool,
) -> Edges:
    """Edges from ops to the values they make.

    With `merge_sums`, products that are only added up are one sum: the first of them is reduced, the
    others repeat it.
    """
    graph = problem.graph
    found = EdgeList(rank_of(problem), op_rows.shape[1])
    reduced: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    values, side = row_of_value.tolist(), problem.storage.side.tolist()
    ops, sum_of = row_of_op.tolist(), _sums(problem) if merge_sums else {}
    first_terms: dict[int, dict[EdgeKey, int]] = {}
    for index, (op, rule) in enumerate(zip(graph.ops, problem.linkage.rules, strict=True)):
        sums = reduced.get(id(rule))
        if sums is None:
            sums = reduced[id(rule)] = _reduced_factors(rule), _sum_of_factor(rule, op.opcode)
        for value, dims in zip(op.outputs, rule.results):
            if op.opcode not in STRUCTURAL and graph.varies[value]:
                key = EdgeKey(
                    values[value], ops[index], majors(dims), sums[0], graph.values[value].n_bytes,
                    int(problem.phases[index]), side[value] != Side.NONE, op.opcode in _SUMS_AT_ONCE,
                    sums[1], tuple(sorted(partitioned_alone(op.instruction, rule))),
                    op.opcode == "reduce" and len(op.outputs) > 1,
                )  # fmt: skip
                terms = first_terms.setdefault(sum_of[value], {}) if value in sum_of else {}
                merged = replace(key, earlier=tuple(sorted(terms.values())))
                edge = found.add(merged, op.trip_count, value, index)
                terms.setdefault(key, edge)
    return found.edges()


def _sums(problem: Problem) -> dict[int, int]:
    """Values made by contractions and used only as terms of a chain of additions -> a name of the chain."""
    graph = problem.graph
    returned = set(graph.outputs)
    chain: dict[int, int] = {}
    for index in range(len(graph.ops) - 1, -1, -1):
        op = graph.ops[index]
        if op.opcode == "add":
            name = chain.get(op.outputs[0], op.outputs[0])
            for term in op.inputs:
                if len(graph.users[term]) == 1 and term not in returned:
                    chain[term] = name
    return {
        value: name
        for value, name in chain.items()
        if graph.values[value].producer >= 0
        and graph.ops[graph.values[value].producer].opcode in CONTRACTIONS
    }


def _reduced_factors(rule: Rule) -> tuple[int, ...]:
    return tuple(i for i, f in enumerate(rule.factors) if f.kind is FactorKind.REDUCTION)


def _sum_of_factor(rule: Rule, opcode: str) -> tuple[int, ...]:
    return tuple(range(len(rule.factors))) if opcode in _SUMS_APART else ()
