"""What the kernel of a product computes besides it, where a backend fuses products with what
follows and kernels have several results.

Such a kernel has its product's result at hand, part by part, and with it

    element     what is computed of the result element by element, with other operands that are
                there before the product: inputs, what loops carry, what other kernels have made,
                and parts and broadcasts of these
    sums        over whatever dimensions, of that; what waits for a sum needs all of it first
    maxima      of whole rows of float32 numbers, up to `_LONGEST_ROW` of them: a softmax goes on
                with these in the same kernel, up to the sum of its exponentials. It does not where
                it takes narrower numbers that are only widened, nor after anything is asked of
                the maxima, as `logsumexp` asks whether they are finite

A product writes its result in any order of dimensions, so that a transpose of it is no work; but a
stack of what lies in another order is filled by a kernel of its own.

Sums and maxima were read from libtpu's programs (2026-11-28, v5e: attention's scores of 128 to
8,192 positions in bfloat16 and float32, plain, scaled, biased and masked; normalizations of 256 to
4,096 features; cross entropies of 8,192 to 50,304 words): rows of 4,096 numbers stay in the kernel,
of 6,144 they do not. Of float32 scores with an array of biases or a mask given from outside they do
not either, which is not told apart here. What is computed element by element and stored is written
by the kernel of the product, as Adam's three results are by that of a gradient.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from hlo_tools.analyses.fuser import Fuser
from hlo_tools.analyses.matrix_vector import summed_value
from hlo_tools.graph import Graph, Op
from hlo_tools.opcodes import (
    BROADCAST,
    CONTRACTIONS,
    CONVERT,
    DYNAMIC_UPDATE_SLICE,
    ELEMENTWISE,
    EXPONENTIAL,
    IS_FINITE,
    REDUCTIONS,
    REORDERS,
    RESHAPE,
    TRANSPOSE,
    VIEWS,
)


_LONGEST_ROW: Final = 4096
_NONE: Final = -1
_SPREADS: Final = (ELEMENTWISE - {IS_FINITE}) | {BROADCAST, RESHAPE}


def stacks_in_products(graph: Graph, fuser: Fuser) -> Mapping[int, int]:
    """The numbers of ops that put into a stack what a product's kernel makes, as part of it, with
    those of the products.
    """
    products = _products(graph, fuser, in_order=True)
    summed = _summed(graph, products)
    return {
        index: products[op.inputs[1]]
        for index, op in enumerate(graph.ops)
        if op.opcode == DYNAMIC_UPDATE_SLICE
        and products[op.inputs[1]] != _NONE
        and op.inputs[1] not in summed
    }


def made_in_products(graph: Graph, fuser: Fuser) -> list[bool]:
    """Whether each value is a result that a product's kernel may hand on: what the product makes,
    or what is computed of it element by element.

    Not what is summed itself, which the kernel of the product does instead.
    """
    products = _products(graph, fuser, in_order=True)
    summed = _summed(graph, products)
    return [product != _NONE and value not in summed for value, product in enumerate(products)]


def at_hand(graph: Graph, fuser: Fuser, in_memory: Collection[int] = ()) -> Mapping[int, int]:
    """The values that products' kernels have at hand, those that they sum among them, with the
    numbers of the products; what another program has left `in_memory` is there before.
    """
    products = _products(graph, fuser, in_memory)
    return {value: product for value, product in enumerate(products) if product != _NONE}


def product_that_does(graph: Graph, op: Op, products: Mapping[int, int]) -> int:
    """The product whose kernel has the result of an op as one more of its own, -1 if none has: a
    sum of what such kernels have at hand, by their `products`, or what is computed of that element
    by element, in whatever order of dimensions.
    """
    if op.opcode in REDUCTIONS:
        return products.get(summed_value(graph, op), _NONE)
    is_element = op.opcode in ELEMENTWISE or op.opcode in REORDERS
    return products.get(op.outputs[0], _NONE) if is_element else _NONE


def used_at_hand(
    graph: Graph, stored: Sequence[bool], products: Mapping[int, int], stacks: Mapping[int, int]
) -> Iterator[int]:
    """Results of products that only their own kernels use, by what they have at hand of which
    `products`, and by the `stacks` that they fill: these are not written, where something as large
    is in their place. What is summed alone takes as long as if it were written.
    """
    outputs = frozenset(graph.outputs)
    for op in graph.ops:
        (value,) = op.outputs[:1] or (_NONE,)
        # In another order of dimensions it is the same result.
        if op.opcode not in CONTRACTIONS | {TRANSPOSE} or value not in products or value in outputs:
            continue
        index = products[value]
        todo, seen, is_used_here, is_replaced = [value], {value}, True, False
        while todo and is_used_here:
            for user in graph.users[todo.pop()]:
                (made,) = graph.ops[user].outputs[:1] or (_NONE,)
                own = product_that_does(graph, graph.ops[user], products)
                is_used_here &= stacks.get(user, own) == index
                is_sum = graph.ops[user].opcode in REDUCTIONS
                is_replaced |= made != _NONE and stored[made] and not is_sum
                if made != _NONE and not stored[made] and made not in seen:
                    seen.add(made)
                    todo.append(made)
        if is_used_here and is_replaced:
            yield value


def exponentials(graph: Graph, products: Mapping[int, int]) -> Iterator[int]:
    """Exponentials that products' kernels make and sum: these are written for what divides them by
    their sum, and the scores that they are made of are not.
    """
    for op in graph.ops:
        if op.opcode != EXPONENTIAL or op.outputs[0] not in products:
            continue
        users = [graph.ops[user] for user in graph.users[op.outputs[0]]]
        sums = [user for user in users if user.opcode in REDUCTIONS]
        if sums and len(users) > len(sums):
            yield op.outputs[0]


def on_the_way(
    graph: Graph, products: Mapping[int, int], stacks: Mapping[int, int]
) -> frozenset[int]:
    """What products' kernels compute of their results on the way to something else of theirs, as
    steps of an activation's gradient: however many of these use it, it is in registers.
    """
    return frozenset(
        op.outputs[0]
        for op in graph.ops
        if op.outputs
        and (product := product_that_does(graph, op, products)) != _NONE
        and op.opcode not in REDUCTIONS
        and _is_used_within(graph, op.outputs[0], product, products, stacks)
    )


def _is_used_within(
    graph: Graph,
    value: int,
    product: int,
    products: Mapping[int, int],
    stacks: Mapping[int, int],
) -> bool:
    users = graph.users[value]
    own = (stacks.get(u, product_that_does(graph, graph.ops[u], products)) for u in users)
    is_summed_alone = all(graph.ops[user].opcode in REDUCTIONS for user in users)
    return all(number == product for number in own) and not is_summed_alone


def _products(
    graph: Graph, fuser: Fuser, in_memory: Collection[int] = (), *, in_order: bool = False
) -> list[int]:
    """Of each value the number of the product whose kernel makes it, -1 of others; with `in_order`
    not of what lies in another order of dimensions than the product's.
    """
    products = [_NONE] * len(graph.values)
    if fuser.products != "fused" or fuser.results != "several":
        return products
    # The last op that has to be done before a value is there.
    behind = [_NONE] * len(graph.values)
    maxima: set[int] = set()
    for index, op in enumerate(graph.ops):
        product = max((products[v] for v in op.inputs), default=_NONE)
        others = max((behind[v] for v in op.inputs if products[v] != product), default=_NONE)
        ready = max((behind[v] for v in op.inputs), default=_NONE)
        if op.opcode in CONTRACTIONS:
            product = ready = index
        elif product != _NONE and _is_of_maxima(graph, op, maxima):
            maxima.update(op.outputs)
        elif op.opcode in ELEMENTWISE or _keeps_dims(graph, op):
            product = product if others < product else _NONE
        elif op.opcode == TRANSPOSE and not in_order:
            pass
        else:
            is_view = op.opcode in VIEWS or op.opcode == RESHAPE
            product, ready = _NONE, ready if is_view else index
        for value in op.outputs:
            if graph.varies[value] and value not in in_memory:
                # Nothing is fused over a barrier.
                products[value] = _NONE if value in graph.held else product
                behind[value] = ready
    return products


def _is_of_maxima(graph: Graph, op: Op, maxima: set[int]) -> bool:
    """Whether an op takes the maxima of rows of what a product makes, or spreads such `maxima` over
    the rows again.
    """
    if op.opcode in _SPREADS and any(v in maxima for v in op.inputs):
        return all(v in maxima or not graph.varies[v] for v in op.inputs)
    if op.opcode not in REDUCTIONS or op.instruction.attributes.combiner != "maximum":
        return False
    rows = graph.values[op.inputs[0]]
    is_of_rows = tuple(op.instruction.dimensions) == (len(rows.dims) - 1,)
    is_wide = rows.dtype == "f32" and not _is_widened(graph, op.inputs[0])
    return is_wide and is_of_rows and rows.dims[-1] <= _LONGEST_ROW


def _is_widened(graph: Graph, value: int) -> bool:
    """Whether a value is nothing but a narrower one as float32."""
    producer = graph.values[value].producer
    if producer < 0 or graph.ops[producer].opcode != CONVERT:
        return False
    return graph.values[graph.ops[producer].inputs[0]].dtype != "f32"


def _summed(graph: Graph, products: Sequence[int]) -> set[int]:
    """Of what products make, what a reduction takes, and all that is computed of that element by
    element, before the reduction or beside it.
    """
    summed: set[int] = set()
    by_element = [op for op in graph.ops if op.opcode not in CONTRACTIONS]
    for op in reversed(by_element):
        if op.opcode in REDUCTIONS or any(v in summed for v in op.outputs):
            summed.update(v for v in op.inputs if products[v] != _NONE)
    for op in by_element:
        if any(v in summed for v in op.inputs):
            summed.update(v for v in op.outputs if products[v] != _NONE)
    return summed


def _keeps_dims(graph: Graph, op: Op) -> bool:
    """Whether a reshape only adds or drops dimensions of one element."""
    if op.opcode != RESHAPE:
        return False
    before, after = (
        [d for d in graph.values[v].dims if d > 1] for v in (op.inputs[0], op.outputs[0])
    )
    return before == after
