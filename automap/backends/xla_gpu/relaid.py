"""Arrays that XLA:GPU copies to another order of dimensions (`hlo_tools.analyses.orders`).

*Stacks* that a backward loop reads in another order than the forward loop wrote. Each loop's body
is laid out by itself. So a residual may be stacked in one order by the forward loop, and be wanted
in another one by the backward loop, whose own products make the gradient that it meets. Then the
whole stack is copied between the loops: it is there twice for that time, and is read and written
once more                                                              -> in: `relaid_stacks`
A product by itself reads a part with its batch dimensions first (`_batch_first`), so queries, keys
and values of attention are copied too. What a step is given lies in the program's order: a cache of
keys that a loop over layers reads in another one is copied before it, and what the loop makes of it
is copied back. (Seen in a step that decodes a token, of no zoo.)

*Operands* that lie in another order than their products read             -> in: `relaid_operands`

    made by a product    the copy is a kernel of its own, one for each order that is wanted
    made by others       they write it in the order that is wanted, if all that read it want the
                         same one; else they write it in their own, and it is copied to each other

Grouped attention has both: `einsum("btkgd,bskd->bkgts")` is a product that writes b k s t g, and
its gradient's writes b k g t s. Its softmax is read by a product as b k s g t, kept for the
backward pass in its own order, and its gradient is read in two orders by two products. Seen in
programs of jax 0.10.2 for H100 (2026-11): of scans over attention that are in no zoo, and of a
decoder with groups of 4 queries, where the copies take 8 of 51 ms.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

from automap.backends.arrays import Relaid, Scratch, item_bytes
from automap.backends.transposes import transpose_times
from hlo_tools.analyses.orders import (
    Order,
    Orders,
    known_orders,
    long_dims,
    operand_order,
    reshape_order,
)
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
_MAY_COPY: Final = frozenset({DOT, RESHAPE, TRANSPOSE})

Dims: TypeAlias = tuple[int, ...]
Reader: TypeAlias = Callable[[Dims], Order | None]
"""The order that an op has a value copied to on a device where it has these dimensions; None if it
reads it as it lies.
"""


def relaid_stacks(graph: Graph) -> Iterator[Relaid]:
    """Stacks that are copied before the op that enters a loop, and those that are given back by
    it.
    """
    orders, outputs = known_orders(graph).by_value, frozenset(graph.outputs)
    for loop, op in enumerate(graph.ops):
        if op.opcode != LOOP_ENTER:
            continue
        for value, carried in zip(op.inputs, op.outputs):
            written, is_given = _written(graph, value), graph.values[value].producer < 0
            wanted = _read_order(graph, list(_parts_read(graph, carried)), orders)
            if wanted is not None and (written is not None or is_given):
                own = None if written is None else orders.get(written)
                yield from _relaid_stack(graph, loop, value, own, wanted)
        for value in graph.ops[graph.exit_by_entry[loop]].outputs:
            written = _written(graph, value) if value in outputs else None
            if written is not None:
                own = orders.get(written) or _read_order(graph, [written], orders)
                yield from _relaid_stack(graph, loop, value, own, None)


def _relaid_stack(
    graph: Graph, loop: int, value: int, own: Order | None, wanted: Order | None
) -> Iterator[Relaid]:
    """The copy of a stack whose parts are in one order and wanted in another one, both None for the
    program's; none if these are the same.
    """
    # Of a stack the first dimension is that of the layers.
    sizes = graph.values[value].dims
    plain, dims = tuple(range(len(sizes) - 1)), sizes[1:]
    before, after = own or plain, wanted or plain
    reader = partial(_turned, before, after)
    if len(before) == len(after) and reader(dims) is not None:
        stacked = [(0, *(dim + 1 for dim in order)) for order in (before, after)]
        yield Relaid(
            op=loop,
            value=value,
            times=transpose_times(stacked[0], stacked[1], sizes),
            long_dims=frozenset(dim + 1 for dim in _deciding([reader], dims)),
        )


def relaid_scratch(graph: Graph) -> Iterator[Scratch]:
    """The copies of stacks, of each loop the largest: they are made one after the other, each in
    the place of those before it.
    """
    by_loop = dict[int, list[int]]()
    for copy in relaid_stacks(graph):
        by_loop.setdefault(copy.op, []).append(copy.value)
    for loop, values in by_loop.items():
        largest = max(values, key=lambda value: graph.values[value].n_bytes)
        yield Scratch(loop, loop, largest, item_bytes(graph, largest))


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


def _read_order(graph: Graph, parts: list[int], orders: Mapping[int, Order]) -> Order | None:
    """The order that a loop reads the parts of a stack in; None if any will do."""
    while parts:
        part = parts.pop(0)
        for user in graph.users[part]:
            op = graph.ops[user]
            if op.opcode in _ELEMENTWISE and op.outputs[0] in orders:
                return orders[op.outputs[0]]
            if op.opcode == DOT:
                return _batch_first(op, part, len(graph.values[part].dims))
            if op.opcode == DYNAMIC_UPDATE_SLICE and op.inputs[0] == part:
                # A cache is read with what is new in it.
                parts.append(op.outputs[0])
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


def relaid_operands(graph: Graph) -> Iterator[Relaid]:
    """The copies that are kernels of their own."""
    orders, outputs = known_orders(graph), frozenset(graph.outputs)
    for value, order in orders.by_value.items():
        # What a transpose makes is read as what it renames.
        if graph.ops[graph.values[value].producer].opcode == TRANSPOSE:
            continue
        users = {graph.ops[user].opcode for user in graph.users[value]}
        if value not in outputs and not users & _MAY_COPY:
            continue
        readers, dims = list(_readers(graph, orders, outputs, value)), graph.values[value].dims
        copied = _copied(readers, dims)
        is_read_as_is = sum(map(len, copied.values())) < len(readers)
        if value not in orders.products and not is_read_as_is and len(copied) == 1:
            continue
        for wanted, wanting in copied.items():
            yield Relaid(
                op=graph.values[value].producer,
                value=value,
                times=transpose_times(order, wanted, dims),
                long_dims=_deciding(wanting, dims),
            )


def _copied(readers: Sequence[Reader], dims: Dims) -> Mapping[Order, Sequence[Reader]]:
    """Those that have it copied to each order, without the dimensions of one element."""
    result: dict[Order, list[Reader]] = defaultdict(list)
    for reader in readers:
        wanted = reader(dims)
        if wanted is not None:
            result[long_dims(wanted, dims)].append(reader)
    return result


def _deciding(readers: Sequence[Reader], dims: Dims) -> frozenset[int]:
    """Dimensions without which none of the readers copies."""
    return frozenset(
        dim
        for dim, size in enumerate(dims)
        if size > 1 and all(reader(_without(dims, dim)) is None for reader in readers)
    )


def _readers(
    graph: Graph, orders: Orders, outputs: Collection[int], value: int
) -> Iterator[Reader]:
    """All ops that read a value, also under the other names that transposes give it."""
    names = tuple(range(len(graph.values[value].dims)))
    # Values that are this one, and what each of their dimensions is here.
    left = [(value, names)]
    while left:
        known, named = left.pop()
        if known in outputs:
            # A step gives its outputs back in the program's order.
            yield partial(_turned, tuple(named[d] for d in orders.by_value[known]), named)
        for user in graph.users[known]:
            op = graph.ops[user]
            if op.opcode == TRANSPOSE:
                left.append((op.outputs[0], tuple(named[d] for d in op.instruction.dimensions)))
            else:
                yield partial(_wanted, graph, orders, op, known, named)


def _turned(own: Order, wanted: Order, dims: Dims) -> Order | None:
    """The order that is wanted of what lies in its own; None if they are one."""
    return None if long_dims(own, dims) == long_dims(wanted, dims) else wanted


def _wanted(
    graph: Graph, orders: Orders, op: Op, known: int, named: Order, dims: Dims
) -> Order | None:
    """The order that an op has a value of `dims` copied to, which it reads as `known`."""
    local, order = tuple(dims[d] for d in named), orders.by_value[known]
    copied = None
    if op.opcode == DOT:
        copied = operand_order(op, known, order, local)
    elif op.opcode == RESHAPE:
        made = graph.values[op.outputs[0]].dims
        copied = reshape_order(order, graph.values[known].dims, made, local)
    return None if copied is None else tuple(named[d] for d in copied)


def _without(dims: tuple[int, ...], dim: int) -> tuple[int, ...]:
    """Dimensions of which one has a single element."""
    return (*dims[:dim], 1, *dims[dim + 1 :])
