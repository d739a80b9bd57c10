"""What is brought to other places by a kernel of its own, where a backend writes what it moves.

Most movements cost nothing there: a product's kernel reads slices of its operands, a transpose is
another order in which the same numbers lie, and either is part of the kernel that comes after it.
Eight are not:

    heads      a slice whose last dimension is taken apart for products, as queries, keys and values
               are of what one product has made                             -> in: `_takes_heads`
    spread     a part of a stack, in a loop over it, that is then repeated over rows, as scales,
               biases and the vectors of recurrent networks are             -> in: `_spreads`
    changed    a part of a stack of which an op changes a part, as of the caches of layers that a
               loop goes over                                           -> in: `_is_changed`
    lanes      a step of a stack whose steps lie side by side, in the lanes of tiles
                                                                   -> in: `parts_of_lane_stacks`
    spaced     zeros between the numbers of an array, as the gradient of a strided slice has and an
               associative scan puts its halves together by                -> in: `_spaces`
    twins      the ends that two or more ops cut off one array, if they leave as much of it and it
               is only joined or skipped through then                  -> in: `_twin_slices`
    repeated   what is computed element by element and repeated along other dimensions then, as a
               mean, rsqrt(variance + epsilon) and 1 + scale: it would be computed again for each
               number. Scalars have a core of their own                    -> in: `_is_repeated`
    windows    a transpose after which dimensions become one that did not lie beside each other,
               as those of windows, patches and pixels do                   -> in: `_merges`

A product writes what it makes in any order, so that its result needs no such transpose.

*Lane stacks*: what a product makes of a sequence, [batch, steps, features], is taken apart into
heads of fewer features than a tile has lanes. With features minor much of each tile would be empty,
so that XLA:TPU lets steps be minor where they leave less of it empty, all the way from the product,
and a loop that goes over steps finds each of them in a lane of its own

    [batch, steps, heads, d] -> [steps, batch, heads, d],  d < 128
    ceil128(steps) / steps < ceil128(d) / d                                    -> in: `lane_stacks`

if heads fill the eight rows of tiles (`HEADS_IN_ROWS`); others lie as they are.

Read of libtpu 0.0.51 for v5e (2026-12-01): attention of 8 to 16 heads of 32 to 128 features after
one product for all, windows and grids of 7 x 7 and 8 x 8 places before and after products, loops
over 64 to 512 steps of 1 to 32 examples with 2 to 24 heads of 32 to 128 features, in bfloat16 and
float32; associative scans over 512 to 2,048 steps of 2 to 16 examples of 128 to 512 features, and
their gradients, in float32; norms, softmaxes and their gradients over rows of 256 numbers, over
columns and groups, in both.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from math import prod
from typing import Final

from hlo_tools.analyses.accesses import is_of_products, read_through
from hlo_tools.analyses.matrix_vector import summed_value
from hlo_tools.graph import Graph, Op
from hlo_tools.opcodes import (
    BROADCAST,
    CONCATENATE,
    DOT,
    DYNAMIC_SLICE,
    DYNAMIC_UPDATE_SLICE,
    EACH_ELEMENT,
    ELEMENTWISE,
    LOOP_ENTER,
    MATRIX_VECTOR,
    OUTER_PRODUCT,
    PAD,
    RESHAPE,
    SCATTER,
    SLICE,
    TRANSPOSE,
)
from hlo_tools.rules import equal_blocks


HEADS_IN_ROWS: Final = 8
JOINS: Final = frozenset({CONCATENATE, PAD})
_NONE: Final = -1
_IN_PLACE: Final = frozenset({DYNAMIC_UPDATE_SLICE, SCATTER})
_LANES: Final = 128
_FEWEST_DIMS: Final = 4
_SAME_ROWS: Final = ELEMENTWISE | {SLICE}


def rearranged(graph: Graph) -> Iterator[int]:
    """The values that such kernels write."""
    yield from _twin_slices(graph)
    lanes = graph.remember(parts_of_lane_stacks)
    for op in graph.ops:
        (value,) = op.outputs[:1] or (_NONE,)
        users = [graph.ops[user] for user in graph.users[value]] if value != _NONE else []
        if op.opcode == SLICE and users and all(_takes_heads(graph, user) for user in users):
            yield value
        elif op.opcode in ELEMENTWISE and graph.varies[value]:
            if prod(graph.values[value].dims) > 1 and _is_repeated(graph, value):
                yield value
        elif op.opcode == PAD and _spaces(op):
            # No other op is part of that kernel, on either side.
            yield from (op.inputs[0], value)
        elif op.opcode == DYNAMIC_SLICE and op.trip_count > 1:
            if value in lanes or _spreads(graph, value) or _is_changed(graph, value):
                yield value
        elif op.opcode == TRANSPOSE and any(_merges(graph, op, user) for user in users):
            if not _is_made_in_any_order(graph, op.inputs[0]):
                yield value


def _is_repeated(graph: Graph, value: int) -> bool:
    """Whether an op repeats a value along another dimension."""
    before = prod(graph.values[value].dims)
    for user in graph.users[value]:
        op = graph.ops[user]
        if op.opcode in (BROADCAST, RESHAPE):
            result = op.outputs[0]
            if prod(graph.values[result].dims) > before or _is_repeated(graph, result):
                return True
    return False


def _spaces(pad: Op) -> bool:
    """Whether a pad puts something between the numbers."""
    return any(dim.interior > 0 for dim in pad.instruction.attributes.padding)


def _twin_slices(graph: Graph) -> Iterator[int]:
    """Slices of one shape, of one array, that only concatenations, pads and strided slices use."""
    twins: dict[tuple[int, tuple[int, ...]], list[int]] = defaultdict(list)
    for op in graph.ops:
        (value,) = op.outputs[:1] or (_NONE,)
        users = graph.users[value] if _cuts(op) else ()
        if users and all(_joins_or_skips(graph.ops[user]) for user in users):
            # A slice of a slice is one slice of what that was cut from.
            whole = read_through(graph, op.inputs[0], frozenset({SLICE}))
            twins[whole, graph.values[value].dims].append(value)
    for values in twins.values():
        yield from values if len(values) > 1 else ()


def _cuts(op: Op) -> bool:
    """Whether an op takes the ends of an array off, as gradients do by negative padding."""
    padding = op.instruction.attributes.padding
    return op.opcode == SLICE or (
        op.opcode == PAD and all(max(dim.low, dim.high, dim.interior) <= 0 for dim in padding)
    )


def _joins_or_skips(op: Op) -> bool:
    strides = [dim.stride for dim in op.instruction.attributes.slices]
    return op.opcode in JOINS or (op.opcode == SLICE and max(strides, default=1) > 1)


def _takes_heads(graph: Graph, op: Op) -> bool:
    """Whether a reshape takes the last dimension apart, for products alone."""
    if op.opcode != RESHAPE:
        return False
    before, after = (graph.values[v].dims for v in (op.inputs[0], op.outputs[0]))
    is_apart = len(after) > len(before) and after[-1] < before[-1]
    return is_apart and is_of_products(graph, op.outputs[0])


def _spreads(graph: Graph, value: int) -> bool:
    """Whether a value is used only to repeat it along other dimensions, or to multiply rows or
    columns of a matrix by it.
    """
    todo, is_used = [value], False
    while todo:
        held = todo.pop()
        for user in graph.users[held]:
            op = graph.ops[user]
            is_vector = op.opcode == MATRIX_VECTOR and summed_value(graph, op) != held
            if op.opcode in EACH_ELEMENT:
                todo.extend(op.outputs)
            elif op.opcode not in (BROADCAST, OUTER_PRODUCT) and not is_vector:
                return False
            is_used = True
    return is_used


def _is_changed(graph: Graph, value: int) -> bool:
    """Whether an op writes a part of a value in its place."""
    todo = [value]
    while todo:
        held = todo.pop()
        for user in graph.users[held]:
            op = graph.ops[user]
            if op.opcode in _IN_PLACE and op.inputs[0] == held:
                return True
            if op.opcode == RESHAPE:
                todo.extend(op.outputs)
    return False


def _merges(graph: Graph, transpose: Op, op: Op) -> bool:
    """Whether a reshape makes one dimension of several that a transpose has brought together."""
    before = graph.values[transpose.outputs[0]].dims
    if op.opcode != RESHAPE or 0 in before:
        return False
    after = graph.values[op.outputs[0]].dims
    order = transpose.instruction.dimensions
    for block, made in equal_blocks(before, after):
        long = [order[dim] for dim in block if before[dim] > 1]
        # Dimensions of one element between two others are no gap.
        gaps = (
            any(size > 1 for size in _between(graph, transpose, a, b)) for a, b in pairwise(long)
        )
        if len(long) > sum(after[dim] > 1 for dim in made) and any(gaps):
            return True
    return False


def _between(graph: Graph, transpose: Op, a: int, b: int) -> tuple[int, ...]:
    """Sizes of the operand's dimensions from after `a` to before `b`, or of `b` if it is before."""
    dims = graph.values[transpose.inputs[0]].dims
    return dims[a + 1 : b] if a < b else dims[b : b + 1]


def _is_made_in_any_order(graph: Graph, value: int) -> bool:
    """Whether a product makes a value, or what it is computed of element by element."""
    seen, todo = {value}, [value]
    while todo:
        producer = graph.values[todo.pop()].producer
        op = graph.ops[producer] if producer >= 0 else None
        if op is not None and op.opcode == DOT:
            return True
        if op is not None and op.opcode in ELEMENTWISE:
            new = {v for v in op.inputs if graph.values[v].dims} - seen
            seen |= new
            todo.extend(new)
    return False


def parts_of_lane_stacks(graph: Graph) -> frozenset[int]:
    """What loops cut of such stacks, one step in a trip."""
    stacks = lane_stacks(graph)
    inside = set[int]()
    for op in graph.ops:
        if op.opcode == LOOP_ENTER:
            pairs = zip(op.inputs, op.outputs)
            inside.update(carried for given, carried in pairs if given in stacks | inside)
    cuts = (op for op in graph.ops if op.opcode == DYNAMIC_SLICE and op.inputs[0] in inside)
    return frozenset(op.outputs[0] for op in cuts if _is_of_one_step(graph, op))


def lane_stacks(graph: Graph) -> frozenset[int]:
    """The arrays that lie so, with their steps first."""
    products, heads = set[int](), set[int]()
    stacks = set[int]()
    for op in graph.ops:
        (value,) = op.outputs[:1] or (-1,)
        given = op.inputs[:1]
        if op.opcode == DOT:
            products.add(value)
        elif op.opcode in _SAME_ROWS:
            alike = [v for v in op.inputs if _rows(graph, v) == _rows(graph, value)]
            for kind in (products, heads, stacks):
                if not kind.isdisjoint(alike):
                    kind.add(value)
        elif op.opcode == RESHAPE and given[0] in products and _takes_apart(graph, op):
            heads.add(value)
        elif op.opcode == TRANSPOSE and given[0] in heads and _begins_with_steps(graph, op):
            stacks.add(value)
    return frozenset(stacks)


def _rows(graph: Graph, value: int) -> tuple[int, ...]:
    return graph.values[value].dims[:-1]


def _takes_apart(graph: Graph, op: Op) -> bool:
    """Whether a reshape makes heads of the last dimension, and leaves the others."""
    before, after = (graph.values[v].dims for v in (op.inputs[0], op.outputs[0]))
    is_apart = len(after) == len(before) + 1 and after[:-2] == before[:-1]
    return is_apart and len(after) >= _FEWEST_DIMS and after[-2] % HEADS_IN_ROWS == 0


def _begins_with_steps(graph: Graph, op: Op) -> bool:
    """Whether a transpose moves steps before examples and nothing else, of which fewer lanes stay
    empty than of features.
    """
    order, dims = tuple(op.instruction.dimensions), graph.values[op.outputs[0]].dims
    steps, features = dims[0], dims[-1]
    is_by_steps = order[:2] == (1, 0) and order[2:] == tuple(range(2, len(order)))
    return is_by_steps and 0 < _in_lanes(steps) * features < _in_lanes(features) * steps


def _in_lanes(size: int) -> int:
    """The lanes of all tiles along a dimension."""
    return -(-size // _LANES) * _LANES


def _is_of_one_step(graph: Graph, op: Op) -> bool:
    whole, part = (graph.values[v].dims for v in (op.inputs[0], op.outputs[0]))
    return part[:1] == (1,) and part[1:] == whole[1:]
