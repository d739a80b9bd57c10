"""The order of dimensions in which XLA:GPU lays out what products make, and that they read.

A product's result has an order of dimensions in memory: batch, free dimensions of the left, of the
right operand. A transpose of it, and what is made of it element by element, lie as the product
wrote it; only the names of the dimensions change. A reshape leaves everything where it is as long
as dimensions that it joins lie one after the other      -> in: `known_orders`, `Orders`

    order(product) = its dimensions                    order(transpose(x)) = those of x, renamed
    order(elementwise(x, ...)) = order(x)              order(reshape(x)) = those of x, cut, joined

What is made of arrays in several orders lies in the program's if one of them does, else as what was
made first; a part of a stack, or of another array that is cut, takes the order of what it meets.
What no product has a say in lies in the program's order, and is not listed.

A product reads an operand as three dimensions, each of which may stand for several: those of the
batch, those that it alone has, and those that are summed over. The several lie one after the other
in the order in which the program names them, and the batch is not the innermost
(dot_decomposer.cc, gpu_layout_assignment.cc)            -> in: `operand_order`
Whether it reads the other two by rows or by columns is its own choice. If they do not lie so, the
operand is copied to

    left     batch, own, summed over                   right    batch, summed over, own

Dimensions of one element have no place in an order      -> in: `long_dims`
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final, TypeAlias

from hlo_tools.graph import Graph, Op
from hlo_tools.opcodes import BROADCAST, DOT, DYNAMIC_SLICE, RESHAPE, TRANSPOSE, Kind, with_kind


_ELEMENTWISE: Final = with_kind(Kind.ELEMENTWISE)
_RENAMES: Final = frozenset({RESHAPE, TRANSPOSE})

Order: TypeAlias = tuple[int, ...]
"""The dimensions of an array in memory, the major one first."""


@dataclass(frozen=True, slots=True)
class Orders:
    """Of what products make, and of what is made of that: `by_value` is the order of each such
    value; `products` are the values that no kernel but a product's has written.
    """

    by_value: dict[int, Order]
    products: set[int]


def known_orders(graph: Graph) -> Orders:
    """The orders of a program."""
    return graph.remember(_known_orders)


def _known_orders(graph: Graph) -> Orders:
    known, any_order = Orders({}, set()), set[int]()
    for op in graph.ops:
        if op.opcode == DOT:
            known.by_value[op.outputs[0]] = _plain(graph, op.outputs[0])
            known.products.add(op.outputs[0])
            continue
        order = _made_order(graph, op, known.by_value, any_order)
        if order is not None:
            known.by_value[op.outputs[0]] = order
            if op.opcode in _RENAMES and op.inputs[0] in known.products:
                known.products.add(op.outputs[0])
        elif _has_any_order(graph, op, any_order):
            any_order.update(op.outputs)
    return known


def _has_any_order(graph: Graph, op: Op, any_order: Collection[int]) -> bool:
    """Whether an op makes a part of a stack, or what is made of such parts alone."""
    if op.opcode == DYNAMIC_SLICE:
        return True
    arrays = [v for v in op.inputs if _is_array(graph, v)]
    keeps_order = op.opcode in _ELEMENTWISE or op.opcode in _RENAMES
    return keeps_order and bool(arrays) and all(v in any_order for v in arrays)


def _made_order(
    graph: Graph, op: Op, orders: Mapping[int, Order], any_order: Collection[int]
) -> Order | None:
    """The order of what an operation makes; None if no product has a say in it."""
    if op.opcode in _ELEMENTWISE:
        # What takes any order takes that of the others; of several that of the program is taken,
        # or that of what is made first.
        arrays = [v for v in op.inputs if _is_array(graph, v) and v not in any_order]
        if not any(v in orders for v in arrays):
            return None
        plain = _plain(graph, op.outputs[0])
        if any(orders.get(v, plain) == plain for v in arrays):
            return plain
        return orders[min(arrays, key=lambda v: graph.values[v].producer)]
    if op.opcode not in _RENAMES or op.inputs[0] not in orders:
        return None
    read, order = graph.values[op.inputs[0]], orders[op.inputs[0]]
    if op.opcode == RESHAPE:
        return _reshaped(order, read.dims, graph.values[op.outputs[0]].dims)
    place = {dim: at for at, dim in enumerate(op.instruction.dimensions)}
    return tuple(place[dim] for dim in order)


def _is_array(graph: Graph, value: int) -> bool:
    """Whether a value is data, and no smaller one that is repeated."""
    producer = graph.values[value].producer
    is_repeated = producer >= 0 and graph.ops[producer].opcode == BROADCAST
    return graph.varies[value] and not is_repeated and bool(graph.values[value].dims)


def _reshaped(order: Order, dims: tuple[int, ...], made: tuple[int, ...]) -> Order:
    """The order of an array of `dims` as one of `made`; that of the program if it is copied."""
    if reshape_order(order, dims, made, dims) is not None:
        return tuple(range(len(made)))
    block_by_dim = {dim: block for block in _blocks(dims, made) for dim in block[0]}
    result = list[int]()
    for dim in order:
        _, into = block_by_dim[dim]
        if into and into[0] not in result:
            result.extend(into)
    return (*result, *(dim for dim in range(len(made)) if dim not in result))


def reshape_order(
    order: Order, dims: tuple[int, ...], made: tuple[int, ...], local: tuple[int, ...]
) -> Order | None:
    """The order that an array of `dims`, of which a device has those of `local`, is copied to
    before it is reshaped; None if it stays where it is.
    """
    own = long_dims(order, local)
    runs = (long_dims(joined, local) for joined, _ in _blocks(dims, made))
    return None if all(_has_run(own, run) for run in runs) else tuple(range(len(dims)))


def _has_run(order: Order, wanted: Order) -> bool:
    """Whether some dimensions lie one after the other."""
    if not wanted:
        return True
    at = order.index(wanted[0])
    return order[at : at + len(wanted)] == wanted


def _blocks(dims: Sequence[int], made: Sequence[int]) -> list[tuple[Order, Order]]:
    """Dimensions of an array and of its reshape that have the same elements, in the least parts."""
    blocks = list[tuple[Order, Order]]()
    first, first_made = 0, 0
    for last in range(len(dims)):
        at = first_made
        while at < len(made) and prod(made[first_made:at]) < prod(dims[first : last + 1]):
            at += 1
        if prod(made[first_made:at]) == prod(dims[first : last + 1]):
            blocks.append((tuple(range(first, last + 1)), tuple(range(first_made, at))))
            first, first_made = last + 1, at
    if first < len(dims) or first_made < len(made):
        blocks.append((tuple(range(first, len(dims))), tuple(range(first_made, len(made)))))
    return blocks


def operand_order(product: Op, value: int, order: Order, dims: tuple[int, ...]) -> Order | None:
    """The order that a product's operand of `dims` is copied to; None if it is read where it
    lies.
    """
    attributes = product.instruction.attributes.dot
    assert attributes is not None  # noqa: S101 - every dot has its dimensions
    is_left = product.inputs[0] == value
    batch = attributes.lhs_batch if is_left else attributes.rhs_batch
    summed = attributes.lhs_contracting if is_left else attributes.rhs_contracting
    own = tuple(dim for dim in range(len(dims)) if dim not in (*batch, *summed))
    if _is_read(long_dims(order, dims), [long_dims(k, dims) for k in (batch, own, summed)]):
        return None
    return (*batch, *own, *summed) if is_left else (*batch, *summed, *own)


def _is_read(order: Order, kinds: Sequence[Order]) -> bool:
    """Whether a product reads an order: dimensions of a kind one after the other, and those of the
    batch, the first kind, not as the innermost.
    """
    is_batch_inside = len(order) > len(kinds[0]) and order[-1] in kinds[0]
    return all(_has_run(order, kind) for kind in kinds) and not is_batch_inside


def long_dims(order: Order, dims: tuple[int, ...]) -> Order:
    """An order without the dimensions of one element."""
    return tuple(dim for dim in order if dims[dim] > 1)


def _plain(graph: Graph, value: int) -> Order:
    return tuple(range(len(graph.values[value].dims)))
