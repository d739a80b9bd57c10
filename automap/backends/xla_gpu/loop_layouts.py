"""Stacks that a backward loop reads in another order of dimensions than the forward loop wrote.

A product's result has an order of dimensions in memory: batch, free dimensions of the left, of the
right operand. XLA:GPU takes a transpose of it, and what is made of it element by element, to lie as
the product wrote it; only the names of the dimensions change. Each loop's body is laid out by
itself. So a residual may be stacked in one order by the forward loop, and be wanted in another one
by the backward loop, whose own products make the gradient that it meets. Then the whole stack is
copied between the loops: it is there twice for that time, and is read and written once more
                                                                    -> in: `relaid_stacks`

    order(product) = its dimensions                    order(transpose(x)) = those of x, renamed
    order(elementwise(x, ...)) = order(x)              -> in: `_orders`

Grouped attention is such a case: `einsum("btkgd,bskd->bkgts")` is a product that writes b k s t g,
and its gradient's writes b k g t s. Seen in programs of jax 0.10.2 for H100 (2026-11) of scans over
attention that are in no zoo, where the transposing copies stand before the backward loop.

A product by itself reads a part with its batch dimensions first (`_batch_first`), so queries, keys
and values of attention are copied too. Whether it then reads the others by rows or by columns is
its own choice, and is not known. Dimensions of one element have no place in an order.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from automap.backends.arrays import Scratch, item_bytes
from hlo_tools.graph import Graph, Op
from hlo_tools.opcodes import (
    DOT,
    DYNAMIC_SLICE,
    DYNAMIC_UPDATE_SLICE,
    LOOP_ENTER,
    LOOP_EXIT,
    RESHAPE,
    TRANSPOSE,
    Kind,
    with_kind,
)


_ELEMENTWISE: Final = with_kind(Kind.ELEMENTWISE)

Order = tuple[int, ...]
"""The dimensions of an array in memory, the major one first."""


def relaid_stacks(graph: Graph) -> Iterator[tuple[int, int]]:
    """(loop, value): the op that enters a loop and a stack that is copied to another order before
    it.
    """
    orders = _orders(graph)
    for loop, op in enumerate(graph.ops):
        if op.opcode != LOOP_ENTER:
            continue
        for value, carried in zip(op.inputs, op.outputs):
            written = _written(graph, value)
            wanted = _wanted(graph, carried, orders)
            if written is None or wanted is None:
                continue
            dims = graph.values[written].dims
            own = orders.get(written, tuple(range(len(dims))))
            if len(wanted) == len(own) and _long(wanted, dims) != _long(own, dims):
                yield loop, value


def relaid_scratch(graph: Graph) -> Iterator[Scratch]:
    """The copies of stacks, of each loop the largest: they are made one after the other, each in
    the place of those before it.
    """
    by_loop = dict[int, list[int]]()
    for loop, value in relaid_stacks(graph):
        by_loop.setdefault(loop, []).append(value)
    for loop, values in by_loop.items():
        largest = max(values, key=lambda value: graph.values[value].n_bytes)
        yield Scratch(loop, loop, largest, item_bytes(graph, largest))


def _orders(graph: Graph) -> Mapping[int, Order]:
    """The order of what products make, and of what is made of that element by element."""
    orders = dict[int, Order]()
    for op in graph.ops:
        if op.opcode == DOT:
            orders[op.outputs[0]] = tuple(range(len(graph.values[op.outputs[0]].dims)))
        elif op.opcode == TRANSPOSE and op.inputs[0] in orders:
            place = {dim: at for at, dim in enumerate(op.instruction.dimensions)}
            orders[op.outputs[0]] = tuple(place[dim] for dim in orders[op.inputs[0]])
        elif op.opcode in _ELEMENTWISE:
            known = next((orders[value] for value in op.inputs if value in orders), None)
            if known is not None:
                orders[op.outputs[0]] = known
    return orders


def _written(graph: Graph, stack: int) -> int | None:
    """What each trip of an earlier loop writes into a stack; None if it is no such stack."""
    producer = graph.values[stack].producer
    if producer < 0 or graph.ops[producer].opcode != LOOP_EXIT:
        return None
    leave = graph.ops[producer]
    last = graph.values[leave.inputs[leave.outputs.index(stack)]].producer
    if last < 0 or graph.ops[last].opcode != DYNAMIC_UPDATE_SLICE:
        return None
    update = graph.ops[last].inputs[1]
    # A trip's part has a leading dimension of one element, which a reshape adds.
    producer = graph.values[update].producer
    if producer < 0 or graph.ops[producer].opcode != RESHAPE:
        return None
    part = graph.ops[producer].inputs[0]
    is_stacked = graph.values[update].dims == (1, *graph.values[part].dims)
    return part if is_stacked else None


def _wanted(graph: Graph, carried: int, orders: Mapping[int, Order]) -> Order | None:
    """The order that a loop reads the parts of a stack in; None if any will do."""
    for part in _parts_read(graph, carried):
        for user in graph.users[part]:
            op = graph.ops[user]
            if op.opcode in _ELEMENTWISE and op.outputs[0] in orders:
                return orders[op.outputs[0]]
            if op.opcode == DOT:
                return _batch_first(op, part, len(graph.values[part].dims))
    return None


def _parts_read(graph: Graph, carried: int) -> Iterator[int]:
    """What a trip of a loop cuts of a stack, without the dimension of layers."""
    for reader in graph.users[carried]:
        if graph.ops[reader].opcode == DYNAMIC_SLICE:
            for squeeze in graph.users[graph.ops[reader].outputs[0]]:
                if graph.ops[squeeze].opcode == RESHAPE:
                    yield graph.ops[squeeze].outputs[0]


def _batch_first(product: Op, operand: int, rank: int) -> Order:
    """The order in which a product reads an operand."""
    dims = product.instruction.attributes.dot
    assert dims is not None  # noqa: S101 - every dot has its dimensions
    batch = dims.lhs_batch if product.inputs[0] == operand else dims.rhs_batch
    return (*sorted(batch), *(dim for dim in range(rank) if dim not in batch))


def _long(order: Order, dims: tuple[int, ...]) -> Order:
    """Without the dimensions of one element."""
    return tuple(dim for dim in order if dims[dim] > 1)
