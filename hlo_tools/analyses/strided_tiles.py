"""Tiles whose blocks hold the same row of several matrices, which is slow.

The rows of a block follow each other, unless an array repeats over matrices of which each row needs
a row of its own, as the mask of a causal attention: then XLA takes the same row of several
matrices, which are not beside each other in memory                       -> in: `strided_tiles`
"""

from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import Final

from hlo_tools.analyses.accesses import Kernel
from hlo_tools.analyses.orders import Order, known_orders
from hlo_tools.analyses.passes import fused_runs
from hlo_tools.analyses.tiles import (
    ON_THE_WAY,
    is_sum,
    remade_sums,
    tiled_reductions,
    worked_dims,
    worked_value,
)
from hlo_tools.graph import Graph
from hlo_tools.opcodes import BROADCAST, OWN_KERNEL, RESHAPE


# Numbers of a block's rows from which a tile of strided rows is slow: what XLA gives eight warps.
LARGE_TILE: Final = 16384


def strided_tiles(graph: Graph, kernels: Sequence[Kernel]) -> Mapping[int, tuple[int, ...]]:
    """The ops whose kernels hold the same row of several matrices, and the dimensions that a
    block's rows stand for, counted from the program's last one.
    """
    strided: dict[int, tuple[int, ...]] = {}
    remade, orders = frozenset[int](), known_orders(graph).by_value
    masked: dict[int, tuple[int, ...]] = {}  # values of tiles with such an array
    for run in fused_runs(graph, kernels):
        if graph.ops[run[0].op].opcode in OWN_KERNEL:
            continue
        tiled = tiled_reductions(graph, run, remade, orders)
        remade |= remade_sums(graph, tiled)
        # Arrays that are written are read as they lie.
        masked = {value: dims for value, dims in masked.items() if value in remade}
        for kernel in run if tiled or remade else ():
            op = graph.ops[kernel.op]
            held = next((masked[a.value] for a in kernel.reads if a.value in masked), ())
            if kernel.op in tiled:
                dims = _repeated_rows(graph, kernel, orders) or held
            else:
                # Other sums of what a tile makes are done by another kernel, of rows as they lie.
                dims = () if is_sum(graph, op) else held
            if dims:
                strided[kernel.op] = dims
                masked.update(dict.fromkeys(op.outputs, dims))
    return strided


def _repeated_rows(graph: Graph, kernel: Kernel, orders: Mapping[int, Order]) -> tuple[int, ...]:
    """The dimensions of a block's rows, if a kernel needs rows of an array that repeats over
    matrices before.
    """
    worked = worked_value(graph, graph.ops[kernel.op])
    stored = {access.value for access in kernel.reads}
    dims = worked_dims(graph, graph.ops[kernel.op])
    todo, seen = [*graph.ops[kernel.op].inputs], set[int]()
    while todo:
        value = todo.pop()
        if value in seen or value in stored or graph.values[value].producer < 0:
            continue
        seen.add(value)
        op = graph.ops[graph.values[value].producer]
        if op.opcode == BROADCAST and graph.values[value].dims == dims:
            order = orders.get(worked, range(len(dims)))
            repeated = _repeated_dims(_different_dims(graph, value), dims, order)
            if repeated:
                return repeated
        elif op.opcode in ON_THE_WAY:
            todo.extend(op.inputs)
    return ()


def _different_dims(graph: Graph, value: int) -> set[int]:
    """The dimensions of more than one number that a value does not repeat over: XLA makes one
    broadcast of several.
    """
    dims = graph.values[value].dims
    long = [d for d, size in enumerate(dims) if size > 1]
    producer = graph.values[value].producer
    if producer < 0:
        return set(long)
    op = graph.ops[producer]
    if op.opcode == BROADCAST:
        before = _different_dims(graph, op.inputs[0])
        return {d for place, d in enumerate(op.instruction.dimensions) if place in before}
    if op.opcode == RESHAPE:
        sizes = graph.values[op.inputs[0]].dims
        read = [d for d, size in enumerate(sizes) if size > 1]
        if [sizes[d] for d in read] == [dims[d] for d in long]:
            before = _different_dims(graph, op.inputs[0])
            return {d for d, own in zip(long, read) if own in before}
    return set(long)


def repeats_matrices(kept: Collection[int], dims: Sequence[int]) -> bool:
    """Whether a broadcast to `dims` has the last two dimensions, and repeats over so many matrices
    before that tiles of it are slow: `kept` are the dimensions that it has.
    """
    repeated = _repeated_dims(kept, dims, range(len(dims)))
    return bool(repeated) and prod(dims[d] for d in repeated) >= LARGE_TILE


def _repeated_dims(
    kept: Collection[int], dims: Sequence[int], order: Sequence[int]
) -> tuple[int, ...]:
    """The dimensions that a broadcast with the last two dimensions in memory repeats over, and the
    last, counted from the program's last one; none if it repeats over none.
    """
    real = [d for d in order if dims[d] > 1]
    repeated = [d for d in real[:-2] if d not in kept]
    if not repeated or not {*real[-2:]} <= {*kept}:
        return ()
    return tuple(d - len(dims) for d in (*repeated, real[-1]))
