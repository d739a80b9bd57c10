"""Factor choices: operations whose factors several classes of one axis could split, and which of
them costs least.

A tensor gives an axis to the first of its classes in the axis's order; two tensors of one operation
may so have split different factors f. The operation then splits the factor that moves the fewest
bytes,

    cost(f) = sum over operands t split on a factor g != f of
                  b_t / n if f is in t (all-to-all), else b_t
            + for a result t
                  b_t (scattered) or 2 b_t (reduced whole)    if f is summed over
                  b_t / n (split on another) or b_t (whole)   if t is not split on f

with n the axis's size and b_t bytes; ties go to the order of the axis.  But an operation on a
weight (or the gradient of one) splits one of the weight's factors that are of listed classes, as
the decision is about it: where the weight holds two, or one twice (a square kernel between equal
layers), the cheaper one                                       -> in: `FactorChoices.choose`
"""

from dataclasses import dataclass
import math

import numpy as np

from automap.cost.edges import CHOOSING_OPCODES, gathered_bytes, highest_rank, majors
from automap.program.problem import Problem
from hlo_tools.analyses.storage import Side
from hlo_tools.rules import FactorKind


# A rank that no class has: later than all others.
_NEVER = 1 << 30


@dataclass(frozen=True)
class FactorChoices:
    """Operation rows that may choose, [choices]; their tensors, [tensors].

    `choice` [tensors] is whose tensor each is. `follows_weight` [choices, factors]: whether a
    weight holds the factor. `factor_of_dim` [tensors, rank]: the factor that each dimension is
    major in; `holds` [tensors, factors]: whether any is.
    """

    op_row: np.ndarray
    follows_weight: np.ndarray
    is_reduced: np.ndarray
    choice: np.ndarray
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
        """Set the factor of rows that may choose along one axis of `size` devices, under many
        points at once.

        `factor` [points, op rows] is changed; `ranks` and `weight_ranks` [points, op rows, factors]
        are positions in the axis's order, of any class and of compute classes; `dim` [points, value
        rows] the split dimensions.
        """
        # Only where an axis lists the classes of two factors is there anything to choose: few
        # (point, row) pairs, so all below runs on these alone.
        is_open = np.count_nonzero(ranks[:, self.op_row] < _NEVER, axis=2) > 1
        points, choices = np.nonzero(is_open)
        if not len(choices):
            return
        rows = self.op_row[choices]
        own_ranks = ranks[points, rows]
        on_weight = np.where(self.follows_weight[choices], weight_ranks[points, rows], _NEVER)
        has_weight = (on_weight < _NEVER).any(axis=1)
        listed = np.where(np.expand_dims(has_weight, 1), on_weight, own_ranks)
        allowed = (own_ranks < _NEVER) & (listed < _NEVER)
        cost = np.where(allowed, self._cost(is_open, dim, size)[points, choices], np.inf)
        # Of equal costs the first in the axis's order.
        is_cheapest = cost == cost.min(axis=1, keepdims=True)
        factor[points, rows] = np.where(is_cheapest, own_ranks, _NEVER).argmin(axis=1)

    def _cost(self, is_open: np.ndarray, dim: np.ndarray, size: int) -> np.ndarray:
        """Bytes moved by each open choice for each factor, [points, choices, factors]."""
        points, tensor = np.nonzero(is_open[:, self.choice])
        choice, holds = self.choice[tensor], self.holds[tensor]
        factor_of_dim = self.factor_of_dim[tensor]
        split = dim[points, self.value_row[tensor]]
        own = np.where(split >= 0, factor_of_dim[np.arange(len(tensor)), split], -1)
        n_factors = holds.shape[1]
        is_own = own[:, None] == np.arange(n_factors)
        whole = self.n_bytes[tensor, None]
        part = whole / size
        is_split = (split >= 0)[:, None]
        # The two sums of the docstring, for every factor that the operation could split.
        operand = np.where(is_split & ~is_own, np.where(holds, part, whole), 0.0)
        summed = np.where(is_split, whole, 2 * whole)
        elsewhere = np.where(is_split, part, whole)
        result = np.where(self.is_reduced[choice], summed, np.where(is_own, 0.0, elsewhere))
        moved = np.where(self.is_result[tensor, None], result, operand)
        # Add up the tensors of each (point, choice, factor): one bincount over a flat index is much
        # faster than `np.add.at` on three.
        cells = (*is_open.shape, n_factors)
        place = (points * is_open.shape[1] + choice)[:, None] * n_factors + np.arange(n_factors)
        return np.bincount(place.ravel(), moved.ravel(), math.prod(cells)).reshape(cells)


def like_tensors(problem: Problem, row_of_value: np.ndarray) -> np.ndarray:
    """A number for each operation, equal for those of like tensors that may choose; 0 for
    operations that never do, [ops].
    """
    graph, side = problem.graph, problem.storage.side.tolist()
    rows, numbers = row_of_value.tolist(), dict[object, int]()
    result = np.zeros(len(graph.ops), np.int64)
    for index, (op, rule) in enumerate(zip(graph.ops, problem.linkage.rules, strict=True)):
        if op.opcode in CHOOSING_OPCODES:
            # All that the cost of a factor depends on: rows, bytes, and which of them are weights.
            tensors = tuple(
                (rows[v], graph.values[v].n_bytes, side[v]) for v in (*op.inputs, *op.outputs)
            )
            result[index] = 1 + numbers.setdefault((id(rule), tensors), len(numbers))
    return result


def build_factor_choices(
    problem: Problem, row_of_value: np.ndarray, row_of_op: np.ndarray, *, narrows: bool
) -> FactorChoices:
    """One choice per row of an opcode that may choose; rows of those opcodes stand for like
    operations only.

    `narrows` is that of `automap.cost.edges.operands`.
    """
    graph, side = problem.graph, problem.storage.side
    width = problem.linkage.factor_groups.shape[1]
    rank = highest_rank(problem)
    # The first operation of each row stands for all: `like_tensors` keeps unlike ones apart.
    examples: dict[int, int] = {}
    for index, op in enumerate(graph.ops):
        if op.opcode in CHOOSING_OPCODES:
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
            # Constants are made anew on every device, and scalars are never split: both are free.
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
    return FactorChoices(
        op_row=np.array(list(examples), np.int64),
        follows_weight=follows,
        is_reduced=reduced,
        choice=columns[:, 0],
        value_row=columns[:, 1],
        factor_of_dim=factor_of_dim,
        holds=holds,
        n_bytes=columns[:, 2].astype(float),
        is_result=columns[:, 3].astype(bool),
    )
