"""The problem as arrays: everything an evaluation needs, folded to distinct rows.

A tensor's sharding depends only on the classes of its dimensions, an op's only on the classes of
its factors, so both are reduced to distinct *rows*; what is counted (bytes, FLOPs, collectives)
hangs on rows with multiplicities. T5-11B's 24 thousand ops become a few hundred rows, and a plan is
a few numpy calls.

    value_rows[r, d, k]   class of dimension d; k = 0 compute, 1 storage, 2 regional; padding = n_classes
    op_rows[r, f, k]      class that may split factor f
    turned_*[r]           whether of dimensions or factors of one class the other one is split (`automap.cost.turned`)
    OperandEdges          (value row -> op row): what must be gathered before an op can run
    ResultEdges           (op row -> value row): what must be summed, scattered or gathered after it
    KernelTable           FLOPs and bytes per kernel                    -> in: `automap.cost.kernel_table`
    BufferTable           intervals of stored buffers and of gathered copies, for the memory peak
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
import math

import numpy as np

from automap.backends import backend_for
from automap.cost.contests import Contests, build_contests, like_tensors
from automap.cost.edges import Copies, Edges, rank_of
from automap.cost.halos import Windows, windows_of
from automap.cost.imposed_rows import (
    ImposedRows,
    imposed_rows,
    numbers,
    places_of_ops,
    places_of_values,
)
from automap.cost.kernel_table import KernelTable, kernel_table
from automap.cost.loop_fills import filled
from automap.cost.operand_edges import operand_edges
from automap.cost.order import Order, program_order
from automap.cost.result_edges import result_edges
from automap.cost.turned import turned
from automap.program.problem import Problem
from automap.topology.model import Platform
from hlo_tools.analyses.kernels import Kernel, kernels
from hlo_tools.analyses.liveness import Buffers, buffers
from hlo_tools.analyses.narrow import narrow_values, stored_bytes


@dataclass(frozen=True)
class BufferTable:
    """Intervals in schedule positions; `copy_*` are copies that exist only where an edge gathers.

    `copy_repeats` is `Copies.repeats`.
    """

    row: np.ndarray
    n_bytes: np.ndarray
    birth: np.ndarray
    death: np.ndarray
    kind: np.ndarray
    n_positions: int
    copy_edge: np.ndarray
    copy_birth: np.ndarray
    copy_death: np.ndarray
    copy_repeats: np.ndarray


@dataclass(frozen=True)
class Program:
    """What the rows were made of: all kernels, the row of each, and the schedule's `position`
    [ops].
    """

    problem: Problem
    kernels: Sequence[Kernel]
    row_of_kernel: Sequence[int]
    position: np.ndarray


@dataclass(frozen=True)
class Tables:
    """All rows of a problem."""

    value_rows: np.ndarray
    turned_values: np.ndarray
    turned_ops: np.ndarray
    op_rows: np.ndarray
    row_of_value: np.ndarray
    row_of_op: np.ndarray
    operands: Edges
    windows: Windows
    results: Edges
    contests: Contests
    imposed: ImposedRows
    kernels: KernelTable
    buffers: BufferTable
    program: Program

    @cached_property
    def order(self) -> Order:
        """The program in the order it runs."""
        p = self.program
        return program_order(
            p.problem, p.kernels, p.row_of_kernel, p.position, self.operands, self.results
        )


# `BufferTable.kind` of a buffer that is no step input: by the phase that makes it.
INPUT_KINDS = ("parameter", "optimizer state", "other state", "batch", "rng key", "constant")
TEMPORARY_KIND, ACTIVATION_KIND = len(INPUT_KINDS), len(INPUT_KINDS) + 1


def build_tables(problem: Problem, platform: Platform) -> Tables:
    """Fold a problem to rows; what is fused depends on the platform."""
    graph = problem.graph
    turned_values, turned_ops = turned(problem)
    value_rows, row_of_value = _value_rows(problem, turned_values)
    op_rows, row_of_op = _op_rows(problem, row_of_value, turned_ops)
    backend = backend_for(platform)
    is_narrow = backend.float32_products == "bfloat16"
    operands, copies = operand_edges(problem, row_of_value, row_of_op, op_rows, narrows=is_narrow)
    results, edge_of_op = result_edges(
        problem,
        row_of_value,
        row_of_op,
        op_rows,
        order=None if backend.sums == "apart" else backend.sums,
    )
    narrow = narrow_values(graph) if is_narrow else [False] * len(graph.values)
    n_bytes = stored_bytes(graph, narrow)
    kernel_list = filled(
        graph, kernels(graph, backend.fuser, n_bytes), problem.phases, backend.loop_zeros
    )
    kernel_rows, row_of_kernel = kernel_table(
        problem, kernel_list, row_of_value, row_of_op, edge_of_op, n_bytes, backend
    )
    updates = "late" if backend.collectives == "beside kernels" else "early"
    live = buffers(graph, kernel_list, problem.phases, problem.donated, narrow, updates)
    return Tables(
        value_rows=value_rows,
        turned_values=_of_rows(turned_values, row_of_value, len(value_rows)),
        turned_ops=_of_rows(turned_ops, row_of_op, len(op_rows)),
        op_rows=op_rows,
        row_of_value=row_of_value,
        row_of_op=row_of_op,
        operands=operands,
        windows=windows_of(operands),
        results=results,
        contests=build_contests(problem, row_of_value, row_of_op, narrows=is_narrow),
        imposed=ImposedRows(
            values=imposed_rows(places_of_values(problem), row_of_value),
            ops=imposed_rows(places_of_ops(problem), row_of_op),
        ),
        kernels=kernel_rows,
        buffers=_buffer_table(problem, live, row_of_value, copies, n_bytes),
        program=Program(problem, kernel_list, row_of_kernel, live.position_of_op),
    )


def _value_rows(problem: Problem, is_turned: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    graph, offset = problem.graph, problem.linkage.node_offset
    rows = np.full((len(graph.values), rank_of(problem), 3), problem.n_classes, np.int64)
    ranks = np.diff(offset)
    dim = np.arange(offset[-1]) - np.repeat(offset[:-1], ranks)
    owner = np.repeat(np.arange(len(ranks)), ranks)
    rows[owner, dim, 0] = _parted(
        problem, problem.compute_class_of_node, problem.small_parts.is_small_node
    )
    rows[owner, dim, 1] = problem.storage_class_of_node
    rows[owner, dim, 2] = problem.regional_class_of_node
    return _distinct_with(rows, is_turned, numbers(places_of_values(problem), len(rows)))


def _op_rows(
    problem: Problem, row_of_value: np.ndarray, is_turned: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Distinct rows; ops that may be contested are of one row only if their tensors are alike too."""
    compute = np.append(problem.class_of_group, problem.n_classes)
    stored = np.append(problem.class_of_storage_group + problem.n_compute, problem.n_classes)
    groups = (problem.linkage.factor_groups, problem.storage.factor_groups)
    regional = problem.regional_class_of_factor
    of_factor = _parted(problem, compute[groups[0]], problem.small_parts.is_small_factor)
    rows = np.stack([of_factor, stored[groups[1]], regional], axis=-1)
    alike = like_tensors(problem, row_of_value)
    return _distinct_with(rows, alike, is_turned, numbers(places_of_ops(problem), len(rows)))


def _parted(problem: Problem, classes: np.ndarray, is_small: np.ndarray) -> np.ndarray:
    """Compute classes with another number for their small parts (`automap.cost.shardings`)."""
    return np.where(
        is_small & (classes < problem.n_compute), classes + problem.n_classes + 1, classes
    )


def _distinct_with(rows: np.ndarray, *columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct rows, told apart by further columns too, and the number of each among them."""
    # The width is said, as there may be no rows.
    flat = np.column_stack([rows.reshape(len(rows), math.prod(rows.shape[1:])), *columns])
    # Numpy sorts rows of numbers slowly, and there are few different ones.
    index: dict[bytes, int] = {}
    same = np.array([index.setdefault(row.tobytes(), len(index)) for row in flat], np.int64)
    _, first = np.unique(same, return_index=True)
    distinct, inverse = np.unique(flat[first], axis=0, return_inverse=True)
    return distinct[:, : -len(columns)].reshape(-1, *rows.shape[1:]), inverse.reshape(-1)[same]


def _of_rows(flags: np.ndarray, row: np.ndarray, n_rows: int) -> np.ndarray:
    """A flag of all that a row stands for."""
    result = np.zeros(n_rows, bool)
    result[row] = flags
    return result


def _buffer_table(
    problem: Problem,
    live: Buffers,
    row_of_value: np.ndarray,
    copies: Copies,
    n_bytes: Sequence[int],
) -> BufferTable:
    graph = problem.graph
    role_of = {
        v: INPUT_KINDS.index(role.value)
        for v, role in zip(graph.inputs, problem.roles, strict=True)
    }
    kinds = []
    for value, is_input in zip(live.value.tolist(), live.is_input.tolist()):
        producer = graph.values[value].producer
        if is_input and value in role_of:
            kinds.append(role_of[value])
        elif producer >= 0 and int(problem.phases[producer]) == 0:
            kinds.append(ACTIVATION_KIND)
        else:
            kinds.append(TEMPORARY_KIND)
    position = live.position_of_op
    return BufferTable(
        row=row_of_value[live.value],
        n_bytes=np.array([n_bytes[v] for v in live.value], float),
        birth=live.birth,
        death=live.death,
        kind=np.array(kinds, np.int64),
        n_positions=live.n_positions,
        copy_edge=copies.edge,
        copy_birth=np.minimum(position[copies.first], position[copies.last]),
        copy_death=np.maximum(position[copies.first], position[copies.last]),
        copy_repeats=copies.repeats,
    )
