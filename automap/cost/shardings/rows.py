"""Rows: the distinct shardings that values and operations of a program can have.

A value's sharding depends only on the classes of its dimensions, an operation's only on the classes
of its factors, so both are folded to distinct *rows*:

    value_rows[r, d, k]   class of dimension d; k = 0 compute, 1 storage, 2 regional
    op_rows[r, f, k]      class that may split factor f
    padding               n_classes; the small part of class c is n_classes + 1 + c

JAX makes the gradient of a kernel [in, out] as a product [out, in], then transposes it. Where both
dimensions are of one class, which of them is split goes by their order
(`automap.cost.shardings.split`), so that product would be split along the other dimension than the
kernel, and exchanged for nothing. XLA swaps the operands of such a product instead. So rows of
products that are only transposed, and of their transposes, take the other dimension of a class
                                                                       -> in: `_transposed_products`
Gradients have storage classes of their own, beside that of the parameter's dimension
                                                                       -> in: `GradientRows`
"""

from collections.abc import Sequence
from dataclasses import dataclass
import math

import numpy as np

from automap.cost.edges import CHOOSING_OPCODES, highest_rank
from automap.cost.shardings.factor_choices import (
    FactorChoices,
    build_factor_choices,
    like_tensors,
)
from automap.cost.shardings.imposed import (
    ImposedRows,
    imposed_rows,
    op_places,
    place_numbers,
    value_places,
)
from automap.program.problem import Problem
from automap.space.leaves import leaf_classes, parameter_sides


@dataclass(frozen=True)
class GradientRows:
    """The value rows of gradients and of the state that is updated with them, `row` [those], and
    the classes that may split each of their dimensions for as long as they live, `lasting` [those,
    dims, 3]: those of computation (compute, regional), and of the parameter's storage.
    """

    row: np.ndarray
    lasting: np.ndarray


NO_GRADIENTS = GradientRows(np.zeros(0, np.int64), np.zeros((0, 1, 3), np.int64))


@dataclass(frozen=True)
class Rows:
    """The rows of a program.

    `row_of_value` and `row_of_op` are the row of each value and operation. `transposed_values` and
    `transposed_ops` [rows]: whether, of dimensions or factors of one class, the other one is split.
    """

    value_rows: np.ndarray
    transposed_values: np.ndarray
    transposed_ops: np.ndarray
    op_rows: np.ndarray
    row_of_value: np.ndarray
    row_of_op: np.ndarray
    factor_choices: FactorChoices
    imposed: ImposedRows
    gradients: GradientRows


def build_rows(problem: Problem, *, narrows: bool) -> Rows:
    """Fold the values and operations of a problem; `narrows` is that of `build_factor_choices`."""
    transposed_values, transposed_ops = _transposed_products(problem)
    value_rows, row_of_value = _value_rows(problem, transposed_values)
    # Rows of operations come second: some are told apart by the rows of their tensors.
    op_rows, row_of_op = _op_rows(problem, row_of_value, transposed_ops)
    return Rows(
        value_rows=value_rows,
        transposed_values=_row_flags(transposed_values, row_of_value, len(value_rows)),
        transposed_ops=_row_flags(transposed_ops, row_of_op, len(op_rows)),
        op_rows=op_rows,
        row_of_value=row_of_value,
        row_of_op=row_of_op,
        factor_choices=build_factor_choices(problem, row_of_value, row_of_op, narrows=narrows),
        imposed=ImposedRows(
            values=imposed_rows(value_places(problem), row_of_value),
            ops=imposed_rows(op_places(problem), row_of_op),
        ),
        gradients=_gradient_rows(problem, value_rows),
    )


def _gradient_rows(problem: Problem, value_rows: np.ndarray) -> GradientRows:
    parameter_side = np.arange(problem.n_classes + 1)
    for gradient, parameter in parameter_sides(leaf_classes(problem)).items():
        # Others are no classes: a dimension that nothing splits.
        if gradient < problem.n_classes:
            parameter_side[gradient] = parameter
    stored = value_rows[:, :, 1]
    parameter = parameter_side[stored]
    row = np.flatnonzero((parameter != stored).any(axis=1))
    lasting = np.stack((value_rows[..., 0], value_rows[..., 2], parameter), axis=-1)
    return GradientRows(row, lasting[row])


def _value_rows(problem: Problem, is_transposed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    graph, offset = problem.graph, problem.linkage.node_offset
    rows = np.full((len(graph.values), highest_rank(problem), 3), problem.n_classes, np.int64)
    # Linkage numbers the nodes (value, dimension) value by value: node -> (owner, dim).
    ranks = np.diff(offset)
    dim = np.arange(offset[-1]) - np.repeat(offset[:-1], ranks)
    owner = np.repeat(np.arange(len(ranks)), ranks)
    rows[owner, dim, 0] = _number_small_parts(
        problem, problem.compute_class_of_node, problem.small_parts.is_small_node
    )
    rows[owner, dim, 1] = problem.storage_class_of_node
    rows[owner, dim, 2] = problem.regional_class_of_node
    # Values that are alike in all classes still differ if the user's code imposes a spec on one.
    imposed = place_numbers(value_places(problem), len(rows))
    return _distinct_with(rows, is_transposed, imposed)


def _op_rows(
    problem: Problem, row_of_value: np.ndarray, is_transposed: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Distinct rows; operations that may choose among factors are of one row only if their tensors
    are alike too.
    """
    # One entry more for factors without a group, which have number -1: the padding.
    compute = np.append(problem.class_of_group, problem.n_classes)
    stored = np.append(problem.class_of_storage_group + problem.n_compute, problem.n_classes)
    groups = (problem.linkage.factor_groups, problem.storage.factor_groups)
    regional = problem.regional_class_of_factor
    by_factor = _number_small_parts(
        problem, compute[groups[0]], problem.small_parts.is_small_factor
    )
    rows = np.stack([by_factor, stored[groups[1]], regional], axis=-1)
    alike = like_tensors(problem, row_of_value)
    imposed = place_numbers(op_places(problem), len(rows))
    return _distinct_with(rows, alike, is_transposed, imposed)


def _number_small_parts(problem: Problem, classes: np.ndarray, is_small: np.ndarray) -> np.ndarray:
    """Compute classes with another number for their small parts
    (`automap.cost.shardings.split`).
    """
    return np.where(
        is_small & (classes < problem.n_compute), classes + problem.n_classes + 1, classes
    )


def _distinct_with(rows: np.ndarray, *columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct rows, told apart by further columns too, and the number of each among them."""
    # The width is said, as there may be no rows.
    flat = np.column_stack([rows.reshape(len(rows), math.prod(rows.shape[1:])), *columns])
    # Numpy sorts rows of numbers slowly, and there are few different ones: find them by hashing,
    # then let numpy bring those in order.
    index: dict[bytes, int] = {}
    same = np.array([index.setdefault(row.tobytes(), len(index)) for row in flat], np.int64)
    _, first = np.unique(same, return_index=True)
    distinct, inverse = np.unique(flat[first], axis=0, return_inverse=True)
    return distinct[:, : -len(columns)].reshape(-1, *rows.shape[1:]), inverse.reshape(-1)[same]


def _row_flags(flags: np.ndarray, row: np.ndarray, n_rows: int) -> np.ndarray:
    """A flag of all that a row stands for, [rows]."""
    result = np.zeros(n_rows, bool)
    result[row] = flags
    return result


def _transposed_products(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """(values, ops): products that are only transposed, such that dimensions of one class change
    places, and those transposes.
    """
    graph = problem.graph
    values, ops = np.zeros(len(graph.values), bool), np.zeros(len(graph.ops), bool)
    for index, op in enumerate(graph.ops):
        if op.opcode != "transpose":
            continue
        (value,) = op.inputs
        producer = graph.values[value].producer
        # With another reader the product has to be there as it is, too.
        if (
            producer >= 0
            and graph.ops[producer].opcode in CHOOSING_OPCODES
            and len(graph.users[value]) == 1
            and value not in graph.outputs
        ):
            values[value] = ops[index] = _changes_places(
                problem.compute_classes(value), op.instruction.dimensions, problem.n_compute
            )
    return values, ops


def _changes_places(classes: Sequence[int], order: Sequence[int], n_compute: int) -> bool:
    """Whether some class stands on two dimensions that a transposition puts in the other order."""
    return any(
        classes[later] == classes[sooner] < n_compute and later > sooner
        for place, later in enumerate(order)
        for sooner in order[place + 1 :]
    )
