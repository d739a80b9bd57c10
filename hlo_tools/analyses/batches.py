"""Ops that have one rule, together: a large graph has few different rules, so work is done per
rule.

A `Batch` is a rule with the ops that have it as a matrix values[i, t]: the i-th op's t-th tensor,
operands before results. `split` parts a batch by a mask of the same shape, such as which of the
tensors vary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hlo_tools.graph import Graph
from hlo_tools.rules import Rule


@dataclass(frozen=True, slots=True)
class Batch:
    """Ops (indices) of one rule with their tensors, int64 [ops, tensors]."""

    rule: Rule
    ops: np.ndarray
    values: np.ndarray

    def split(self, mask: np.ndarray) -> Iterator[tuple["Batch", tuple[bool, ...]]]:
        """Parts in which every op has the same row of `mask`, bool [ops, tensors], with that
        row.
        """
        # In most batches all tensors vary, and no rows need to be compared.
        if mask.all() or not mask.any():
            yield self, (bool(mask.flat[0]),) * mask.shape[1] if mask.size else ()
            return
        rows, part = np.unique(mask, axis=0, return_inverse=True)
        for number, row in enumerate(rows.tolist()):
            chosen = np.flatnonzero(part.reshape(-1) == number)
            yield Batch(self.rule, self.ops[chosen], self.values[chosen]), tuple(row)

    def only(self, mask: np.ndarray) -> "Batch":
        """The ops that `mask`, bool [ops], marks."""
        return Batch(self.rule, self.ops[mask], self.values[mask])

    def places(self, held: Sequence[bool]) -> list[list[tuple[int, int]]]:
        """For each factor, (tensor, dimension) of which it is the major one, in tensors that `held`
        names.
        """
        places: list[list[tuple[int, int]]] = [[] for _ in self.rule.factors]
        for tensor, dims in enumerate((*self.rule.operands, *self.rule.results)):
            if held[tensor]:
                for dim, factors in enumerate(dims):
                    if factors:
                        places[factors[0]].append((tensor, dim))
        return places


def batches(graph: Graph, rules: Sequence[Rule]) -> list[Batch]:
    """All ops by rule; ops with one rule object have as many tensors."""
    members: dict[int, list[int]] = {}
    for index, rule in enumerate(rules):
        # `op_rules` gives ops of equal shapes and attributes one object; its id is quicker to hash.
        members.setdefault(id(rule), []).append(index)
    result = []
    for ops in members.values():
        rule = rules[ops[0]]
        width = len(rule.operands) + len(rule.results)
        tensors = [(*graph.ops[i].inputs, *graph.ops[i].outputs) for i in ops]
        values = np.array(tensors, np.int64).reshape(len(ops), width)
        result.append(Batch(rule, np.array(ops, np.int64), values))
    return result
