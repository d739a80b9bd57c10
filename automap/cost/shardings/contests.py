"""Contests: ops whose factors several classes of one axis could split, and which of them costs
least.

A tensor gives an axis to the first of its classes in the axis's order; two tensors of one op may so
have split different factors f. The op then splits the factor that moves the fewest bytes,

    cost(f) = sum over operands t split on a factor g != f of   b_t / n if f is in t (all-to-all), else b_t
            + for a result t    b_t (scattered) or 2 b_t (reduced whole)    if f is summed over
                                b_t / n (split on another) or b_t (whole)   if t is not split on f

with n the axis's size and b_t bytes; ties go to the order of the axis.  But an op on a weight (or the gradient
of one) splits one of the weight's factors that are of listed classes, as the decision is about it: where the weight
holds two, or one twice (a square kernel between equal layers), the cheaper one.   -> in: `Contests.choose`
"""

from dataclasses import dataclass
import math

import numpy as np

from automap.cost.edges import CONTESTED_OPCODES, gathered_bytes, majors, rank_of
from automap.program.problem import Problem
from hlo_tools.analyses.storage import Side
from hlo_tools.rules import FactorKind


_NEVER = 1 << 30


@dataclass(frozen=True)
class Contests:
    """Op rows that may be contested, [contests]; their tensors, [tensors].

    `follows_weight` [contests, factors]: whether a weight holds the factor. `factor_of_dim`
    [tensors, rank]: the factor that each dimension is major in; `holds` [tensors, factors]: whether
    any is.
    """

    op_row: np.ndarray
    follows_weight: np.ndarray
    is_reduced: np.ndarray
    contest: np.ndarray
    value_row: np.ndarray
    factor_of_dim: np.ndarray
    holds: np.ndarray
    n_bytes: np.ndarray
    is_result: np.ndarray

    def choose(
        self,
        factor: np.ndarray,
        ranks: np.ndarray,
        weight_ranks: np.ndarray,
        dim: np.ndarray,
        size: int,
    ) -> None:
        """Set the factor of contested rows along one axis of `size` devices, under many points at
        once.

        `factor` [points, op rows] is changed; `ranks` and `weight_ranks` [points, op rows, factors]
        are positions in the axis's order, of any class and of compute classes; `dim` [points, value
        rows] the split dimensions.
        """
        is_open = np.count_nonzero(ranks[:, self.op_row] < _NEVER, axis=2) > 1
        points, contests = np.nonzero(is_open)
        if not len(contests):
            return
        rows = self.op_row[contests]
        own_ranks = ranks[points, rows]
        of_weight = np.where(self.follows_weight[contests], weight_ranks[points, rows], _NEVER)
        has_weight = (of_weight < _NEVER).any(axis=1)
        listed = np.where(np.expand_dims(has_weight, 1), of_weight, own_ranks)
        allowed = (own_ranks < _NEVER) & (listed < _NEVER)
        cost = np.where(allowed, self._cost(is_open, dim, size)[points, contests], np.inf)
        is_cheapest = cost == cost.min(axis=1, keepdims=True)
        factor[points, rows] = np.where(is_cheapest, own_ranks, _NEVER).argmin(axis=1)

    def _cost(self, is_open: np.ndarray, dim: np.ndarray, size: int) -> np.ndarray:
        """Bytes moved by each open contest for each factor, [points, contests, factors]."""
        points, of = np.nonzero(is_open[:, self.contest])
        contest, holds, factor_of_dim = self.contest[of], self.holds[of], self.factor_of_dim[of]
        split = dim[points, self.value_row[of]]
        own = np.where(split >= 0, factor_of_dim[np.arange(len(of)), split], -1)
        n_factors = holds.shape[1]
        is_own = own[:, None] == np.arange(n_factors)
        whole = self.n_bytes[of, None]
        part = whole / size
        is_split = (split >= 0)[:, None]
        operand = np.where(is_split & ~is_own, np.where(holds, part, whole), 0.0)
        summed = np.where(is_split, whole, 2 * whole)
        elsewhere = np.where(is_split, part, whole)
        result = np.where(self.is_reduced[contest], summed, np.where(is_own, 0.0, elsewhere))
        moved = np.where(self.is_result[of, None], result, operand)
        cells = (*is_open.shape, n_factors)
        place = (points * is_open.shape[1] + contest)[:, None] * n_factors + np.arange(n_factors)
        return np.bincount(place.ravel(), moved.ravel(), math.prod(cells)).reshape(cells)


def like_tensors(problem: Problem, row_of_value: np.ndarray) -> np.ndarray:
    """A number for each op, equal for contested ops of like tensors; 0 for ops that are never
    contested.
    """
    graph, side = problem.graph, problem.storage.side.tolist()
    rows, numbers = row_of_value.tolist(), dict[object, int]()
    result = np.zeros(len(graph.ops), np.int64)
    for index, (op, rule) in enumerate(zip(graph.ops, problem.linkage.rules, strict=True)):
        if op.opcode in CONTESTED_OPCODES:
            tensors = tuple(
                (rows[v], graph.values[v].n_bytes, side[v]) for v in (*op.inputs, *op.outputs)
            )
            result[index] = 1 + numbers.setdefault((id(rule), tensors), len(numbers))
    return result


def build_contests(
    problem: Problem, row_of_value: np.ndarray, row_of_op: np.ndarray, *, narrows: bool
) -> Contests:
    """One contest per op row of a contested opcode; rows of those opcodes stand for like ops only.

    `narrows` is that of `automap.cost.edges.operands`.
    """
    graph, side = problem.graph, problem.storage.side
    width = problem.linkage.factor_groups.shape[1]
    rank = rank_of(problem)
    examples: dict[int, int] = {}
    for index, op in enumerate(graph.ops):
        if op.opcode in CONTESTED_OPCODES:
            examples.setdefault(int(row_of_op[index]), index)
    follows = np.zeros((len(examples), width), bool)
    reduced = np.zeros((len(examples), width), bool)
    tensors: list[tuple[int, int, int, bool]] = []
    demanded: list[tuple[int, ...]] = []
    for number, index in enumerate(examples.values()):
        op, rule = graph.ops[index], problem.linkage.rules[index]
        reduced[number, : len(rule.factors)] = [
            f.kind is FactorKind.REDUCTION for f in rule.factors
        ]
        for value, dims in zip((*op.inputs, *op.outputs), (*rule.operands, *rule.results)):
            if graph.varies[value] and dims:
                factors = majors(dims)
                if side[value] != Side.NONE:
                    follows[number, [f for f in factors if f >= 0]] = True
                tensors.append(
                    (
                        number,
                        int(row_of_value[value]),
                        graph.values[value].n_bytes
                        if value in op.outputs
                        else gathered_bytes(graph, op, value, narrows=narrows),
                        value in op.outputs,
                    )
                )
                demanded.append(factors)
    factor_of_dim = np.full((len(tensors), rank), -1, np.int64)
    for row, factors in enumerate(demanded):
        factor_of_dim[row, : len(factors)] = factors
    holds = (factor_of_dim[:, :, None] == np.arange(width)).any(axis=1)
    columns = np.array(tensors, np.int64).reshape(-1, 4)
    return Contests(
        op_row=np.array(list(examples), np.int64),
        follows_weight=follows,
        is_reduced=reduced,
        contest=columns[:, 0],
        value_row=columns[:, 1],
        factor_of_dim=factor_of_dim,
        holds=holds,
        n_bytes=columns[:, 2].astype(float),
        is_result=columns[:, 3].astype(bool),
    )
