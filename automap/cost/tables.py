"""The problem as arrays: everything an evaluation needs, folded to distinct rows.

What is counted (bytes, FLOPs, collectives) hangs on rows of values and operations
(`automap.cost.shardings.rows`) with multiplicities. T5-11B's 24 thousand operations become a few
hundred rows, and a plan is a few numpy calls.

    operands   edges value row -> op row: what must be gathered before an op can run
    results    edges op row -> value row: what must be summed, scattered or gathered after it
    kernels    FLOPs and bytes of each kernel: `automap.cost.kernels.table`
    shapes     what tells the bytes of stored buffers apart: `automap.cost.stored_shapes`
    buffers    intervals of stored buffers and of gathered copies: `automap.cost.memory`

Of another batch without tracing again                                  -> in: `with_batch`
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
import math

import numpy as np

from automap.backends import Backend, backend_for
from automap.backends.arrays import DimOrder, Scratch
from automap.cost.edges import (
    Edges,
    Windows,
    build_windows,
    operand_edges,
    result_edges,
)
from automap.cost.host_copies import HostCopies, host_copies
from automap.cost.hosted import with_hosted
from automap.cost.kernels.beside_products import summed_over_batch
from automap.cost.kernels.gathers import HiddenGathers, hidden_gathers
from automap.cost.kernels.loop_fills import written_fills
from automap.cost.kernels.ragged_products import with_all_groups
from automap.cost.kernels.relaid_copies import with_copies
from automap.cost.kernels.table import KernelTable, kernel_table
from automap.cost.memory import BufferTable, buffer_table
from automap.cost.schedule.order import Order, program_order
from automap.cost.shardings import Shardings
from automap.cost.shardings.rows import Rows, build_rows
from automap.cost.stored_shapes import Stored, StoredShapes, stored_shapes
from automap.cost.traffic import Collectives, collectives
from automap.cost.traffic.turned import with_turned
from automap.program.problem import Problem
from automap.topology.model import Platform
from hlo_tools.analyses.accesses import Kernel
from hlo_tools.analyses.host_memory import HostMemory, host_memory, loads_of_loops
from hlo_tools.analyses.kernels import kernels, kernels_apart
from hlo_tools.analyses.liveness import Buffers, Places, buffers, op_positions
from hlo_tools.analyses.matrix_vector import with_vectors_summed
from hlo_tools.analyses.phases import Phase
from hlo_tools.analyses.widths import narrow_values, stored_bytes
from hlo_tools.graph import Graph


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
class Tables(Rows):
    """The rows of a problem, and all that hangs on them."""

    operands: Edges
    windows: Windows
    results: Edges
    kernels: KernelTable
    shapes: StoredShapes
    buffers: BufferTable
    program: Program
    hidden_gathers: HiddenGathers
    host_copies: HostCopies | None = None

    def collectives(self, sharding: Shardings) -> Collectives:
        """All collectives of one step whose rows are split as `sharding` says."""
        return collectives(self.operands, self.windows, self.results, sharding)

    @cached_property
    def order(self) -> Order:
        """The program in the order it runs."""
        p = self.program
        return program_order(
            p.problem, p.kernels, p.row_of_kernel, p.position, self.operands, self.results
        )


def build_tables(
    problem: Problem, platform: Platform, left_for_backward: frozenset[int] | None = None
) -> Tables:
    """Fold a problem to rows; what is fused depends on the platform. With `left_for_backward` the
    forward and the backward pass are two programs, of which the first leaves these values.
    """
    graph, backend = problem.graph, backend_for(platform)
    is_narrow = backend.float32_products == "bfloat16"
    rows = build_rows(problem, narrows=is_narrow)
    row_of_value, row_of_op = rows.row_of_value, rows.row_of_op
    operands, copies = operand_edges(
        problem,
        row_of_value,
        row_of_op,
        rows.op_rows,
        narrows=is_narrow,
        loop_gathers=backend.loop_gathers,
        loop_messages=backend.loop_messages,
        collective_dims=backend.collective_dims,
    )
    results, edge_of_op = result_edges(
        problem,
        row_of_value,
        row_of_op,
        rows.op_rows,
        order=None if backend.sums == "apart" else backend.sums,
        loop_messages=backend.loop_messages,
        collective_dims=backend.collective_dims,
        scattered_sums=backend.scattered_sums,
        sliced_sums=backend.sliced_sums,
        nested_sums=backend.nested_sums,
        gathered_state=backend.gathered_state,
    )
    # Partitioners split products of vectors as the products that they still are.
    problem = _as_run(problem, backend)
    graph = problem.graph
    narrow = narrow_values(graph) if is_narrow else [False] * len(graph.values)
    n_bytes = _bytes_on_device(graph, narrow, host := host_memory(graph))
    kernel_list = _kernels(problem, backend, n_bytes, left_for_backward)
    kernel_rows, row_of_kernel = kernel_table(
        problem, kernel_list, row_of_value, row_of_op, edge_of_op, n_bytes, backend
    )
    places, early = _places(backend), _early_loads(graph, host, backend)
    position = op_positions(graph, problem.phases, places.updates)
    live = buffers(graph, kernel_list, problem.phases, problem.donated, narrow, places, early)
    copies = with_turned(
        copies, operands, results, graph, live.position_of_op, backend.scattered_sums
    )
    scratch = backend.scratch(graph)
    stored = _stored(graph, live, scratch, row_of_value, n_bytes, backend)
    shapes, shape = stored_shapes(stored, len(rows.value_rows), backend.arrays)
    return Tables(
        **vars(rows),
        operands=operands,
        windows=build_windows(operands),
        results=results,
        kernels=kernel_rows,
        shapes=shapes,
        buffers=with_hosted(
            buffer_table(problem, live, shape, copies, n_bytes, scratch),
            problem,
            live.position_of_op,
            backend.host_state,
        ),
        program=Program(problem, kernel_list, row_of_kernel, position),
        hidden_gathers=hidden_gathers(problem, operands, kernel_list, row_of_kernel, backend),
        host_copies=host_copies(
            problem, host, kernel_list, row_of_kernel, row_of_value, position, n_bytes
        ),
    )


def _as_run(problem: Problem, backend: Backend) -> Problem:
    """The problem with the ops that the backend's kernels are made of."""
    if backend.vector_products == "as others":
        return problem
    return replace(problem, graph=with_vectors_summed(problem.graph))


def _places(backend: Backend) -> Places:
    return Places(
        updates="late" if backend.collectives == "beside kernels" else "early",
        views=backend.views,
        in_place=backend.in_place,
        beside_sums=backend.beside_sums,
    )


def _early_loads(graph: Graph, host: HostMemory, backend: Backend) -> Mapping[int, int]:
    """What is brought in before it is read, and the op at which it begins to arrive: beside kernels
    a copy begins when what it copies is there.
    """
    return loads_of_loops(graph, host) if backend.host_copies == "beside kernels" else {}


def _bytes_on_device(graph: Graph, narrow: Sequence[bool], host: HostMemory) -> list[int]:
    """Bytes of each (unsharded) value in memory; of what is in the host's a device has nothing."""
    return [
        0 if value in host.values else size
        for value, size in enumerate(stored_bytes(graph, narrow))
    ]


def holds_classes(rows: np.ndarray, n_classes: int, classes: Sequence[int]) -> np.ndarray:
    """Whether each dimension of value rows, or factor of op rows, is of one of some classes,
    [rows, dims].
    """
    # The small part of a class is numbered behind all classes.
    numbers = [number for c in classes for number in (c, n_classes + 1 + c)]
    return np.asarray(np.isin(rows, numbers).any(axis=2))


def with_batch(tables: Tables, n_classes: int, growing: Sequence[int], times: float) -> Tables:
    """The tables as if the batch, along which the classes `growing` grow, had `times` as many
    examples.

    Operations, bytes and sizes along the batch are multiplied, for each dimension or factor that
    holds it: scores of all examples by all grow with the square. What else a compiler would do with
    another size (other kernels, other tiles of sums over rows) stays as it is.
    """
    in_dim = holds_classes(tables.value_rows, n_classes, growing)
    in_factor = holds_classes(tables.op_rows, n_classes, growing)
    value_growth, op_growth = times ** in_dim.sum(axis=1), times ** in_factor.sum(axis=1)
    operands, results = (
        replace(
            edges,
            n_bytes=edges.n_bytes * value_growth[edges.value_row],
            own_bytes=edges.own_bytes * op_growth[edges.op_row],
            sizes=edges.sizes
            * np.where(in_dim[edges.value_row], times, 1.0)[:, : edges.sizes.shape[1]],
        )
        for edges in (tables.operands, tables.results)
    )
    shapes, buffers, copies = tables.shapes, tables.buffers, tables.host_copies
    if len(shapes.first):
        dims = shapes.dims.copy()
        for row, first, sizes in zip(shapes.row, shapes.first, dims):
            rank = len(sizes) - first
            sizes[first:] *= np.where(in_dim[row, :rank], times, 1.0)
        shapes = replace(shapes, dims=dims)
    return replace(
        tables,
        operands=operands,
        results=results,
        kernels=_kernels_with_batch(
            tables.kernels, in_dim, in_factor, value_growth, op_growth, times
        ),
        shapes=shapes,
        buffers=replace(buffers, n_bytes=buffers.n_bytes * value_growth[shapes.row[buffers.shape]]),
        host_copies=None
        if copies is None
        else replace(copies, n_bytes=copies.n_bytes * value_growth[copies.row]),
    )


def _kernels_with_batch(
    kernels: KernelTable,
    in_dim: np.ndarray,
    in_factor: np.ndarray,
    value_growth: np.ndarray,
    op_growth: np.ndarray,
    times: float,
) -> KernelTable:
    """`with_batch` of kernels; `in_dim` [value rows, dims] and `in_factor` [op rows, factors] are
    those of the batch, the growths by how much rows of values and of operations grow.
    """
    # Of what is no product, -1: whichever row is read then, its sizes are ones.
    made = in_dim[kernels.product_row][:, : kernels.product_sizes.shape[1]]
    products = kernels.product_sizes * np.where(
        made & (kernels.product_row >= 0)[:, None], times, 1.0
    )
    bits = in_factor[kernels.op_row] @ (1 << np.arange(in_factor.shape[1]))
    operands = times ** np.bitwise_count(kernels.written_factors & bits)
    factors = in_factor[kernels.op_row]
    sides = kernels.side_sizes.astype(float)
    width = min(sides.shape[2], factors.shape[1])
    sides[:, :, :width] *= np.where((sides[:, :, :width] > 1) & factors[:, :width], times, 1.0)
    grown = value_growth[kernels.traffic_row]
    return replace(
        kernels,
        flops=kernels.flops * op_growth[kernels.op_row],
        side_sizes=sides,
        product_sizes=products,
        written_bytes=kernels.written_bytes * operands,
        transposed_bytes=kernels.transposed_bytes * operands,
        traffic_bytes=kernels.traffic_bytes * grown,
        rival_bytes=kernels.rival_bytes * grown,
    )


def _kernels(
    problem: Problem, backend: Backend, n_bytes: Sequence[int], left: frozenset[int] | None
) -> list[Kernel]:
    graph, fuser = problem.graph, backend.fuser
    summed = summed_over_batch(problem) if fuser.products == "fused" else frozenset[int]()
    if left is None:
        plain = kernels(graph, fuser, n_bytes, summed)
    else:
        is_later = [phase is not Phase.FORWARD for phase in problem.phases]
        plain = kernels_apart(graph, fuser, n_bytes, is_later, left, summed)
    filled = written_fills(graph, plain, problem.phases, backend.loop_zeros)
    filled = [*with_all_groups(graph, filled, backend)]
    return with_copies(problem, filled, backend, n_bytes)


def _stored(
    graph: Graph,
    live: Buffers,
    scratch: Sequence[Scratch],
    row_of_value: np.ndarray,
    n_bytes: Sequence[int],
    backend: Backend,
) -> list[Stored]:
    """All that is in memory: buffers, then scratch."""
    result = []
    orders = None if backend.arrays is None else backend.arrays.orders(graph)
    for v in live.value.tolist():
        order = DimOrder.COMPACT if orders is None else orders.order[v]
        major = frozenset[int]() if orders is None else orders.major_dims[v]
        table = None if orders is None else orders.tables[v]
        item_bytes = n_bytes[v] // max(math.prod(graph.values[v].dims), 1)
        dims = graph.values[v].dims
        result.append(Stored(int(row_of_value[v]), dims, item_bytes, order, major, table))
    for s in scratch:
        dims, row = graph.values[s.like].dims, int(row_of_value[s.like])
        result.append(Stored(row, dims, s.item_bytes, s.order, s.major_dims, s.table))
    return result
