"""How often a value changes in a step, and the elements of what no input changes.

What a loop only carries along is the same in every trip:

    changes(v) = 1                                       a step input, a constant
               = changes(source)                         a carry that the body passes on as it is
               = trips of the loop                       any other carry
               = min(trips(op), max over inputs changes) what an op makes

XLA moves work on such values out of the loop, collectives too.

A *constant* depends on no input. Small integer arrays are evaluated as far as indices are made of
them: `arange(n)` reaches a look-up as iota, compared with zero, shifted where negative, selected
and reshaped; the value says that rows are read one after the other, which the ops do not. What is
not in `_EVALUATED`, and what is large, is not known                            -> in: `Constants`

Stacks that a loop fills with the same values are one to XLA: a scan hands out what it was asked for
and what its gradient needs besides, which often is the same. Two are one if they begin as a
constant and the loop writes the same value to the same place of both, but for rearrangements
                                                                            -> in: `equal_stacks`
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
import math

import numpy as np

from hlo_tools.graph import Graph, Op
from hlo_tools.opcodes import (
    BROADCAST,
    CONSTANT,
    DYNAMIC_UPDATE_SLICE,
    LOOP_ENTER,
    LOOP_EXIT,
    REORDERS,
)


# More than any loop has trips: how often the loop's ops run is the lower number then.
_EVERY_TRIP = 1 << 60
_MOST_ELEMENTS = 1 << 20
_COMPARED = {
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "EQ": np.equal,
    "NE": np.not_equal,
}
_DTYPES = {"s32": np.int32, "s64": np.int64, "u32": np.uint32, "u64": np.uint64, "pred": np.bool_}


def changes(graph: Graph) -> Sequence[int]:
    """For each value, how often it takes a new value in one step."""
    result = [1] * len(graph.values)
    for index, op in enumerate(graph.ops):
        if op.opcode == LOOP_ENTER:
            kept = passed_on(graph, index)
            for source, carried in zip(op.inputs, op.outputs):
                result[carried] = result[source] if carried in kept else _EVERY_TRIP
        else:
            # A loop's results are new whenever the loop runs.
            read = op.inputs if op.opcode != LOOP_EXIT else ()
            # What reads nothing is a constant, wherever it stands.
            most = max((result[v] for v in read), default=1 if not op.inputs else op.trip_count)
            for value in op.outputs:
                result[value] = min(op.trip_count, most)
    return result


def passed_on(graph: Graph, loop: int) -> frozenset[int]:
    """The carries of the loop that `graph.ops[loop]` enters that its body passes on as they are."""
    enter, leave = graph.ops[loop], graph.ops[graph.exit_by_entry[loop]]
    return frozenset(c for c, last in zip(enter.outputs, leave.inputs) if c == last)


class Constants:
    """Values of a graph's constant arrays, worked out when asked for."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._known: dict[int, np.ndarray | None] = {}

    def elements(self, value: int) -> np.ndarray | None:
        """An array's elements; None if they are not known."""
        if value not in self._known:
            self._known[value] = None
            self._known[value] = self._evaluated(value)
        return self._known[value]

    def _evaluated(self, value: int) -> np.ndarray | None:
        graph, array = self._graph, self._graph.values[value]
        if graph.varies[value] or array.dtype not in _DTYPES:
            return None
        if math.prod(array.dims) > _MOST_ELEMENTS:
            return None
        op = graph.ops[array.producer]
        evaluate = _EVALUATED.get(op.opcode)
        operands = [self.elements(v) for v in op.inputs] if evaluate else []
        known = [o for o in operands if o is not None]
        if evaluate is None or len(known) < len(operands):
            return None
        elements = evaluate(op, known, array.dims)
        return None if elements is None else elements.astype(_DTYPES[array.dtype])


def counts_up(constants: Constants, value: int) -> bool:
    """Whether an array is known to be 0, 1, 2, ..."""
    elements = constants.elements(value)
    return elements is not None and bool((elements.ravel() == np.arange(elements.size)).all())


def _iota(op: Op, operands: list[np.ndarray], dims: tuple[int, ...]) -> np.ndarray:
    (along,) = op.instruction.dimensions
    shape = [size if dim == along else 1 for dim, size in enumerate(dims)]
    return np.broadcast_to(np.arange(dims[along]).reshape(shape), dims)


def _broadcast(op: Op, operands: list[np.ndarray], dims: tuple[int, ...]) -> np.ndarray:
    shape = [1] * len(dims)
    for size, dim in zip(operands[0].shape, op.instruction.dimensions, strict=True):
        shape[dim] = size
    return np.broadcast_to(operands[0].reshape(shape), dims)


def _compare(op: Op, operands: list[np.ndarray], dims: tuple[int, ...]) -> np.ndarray:
    return _COMPARED[op.instruction.attributes.comparison_direction](*operands)


def _constant(op: Op, operands: list[np.ndarray], dims: tuple[int, ...]) -> np.ndarray | None:
    literal = op.instruction.literal
    return None if literal is None else np.full(dims, literal)


_Evaluate = Callable[[Op, list[np.ndarray], tuple[int, ...]], np.ndarray | None]
_EVALUATED: Mapping[str, _Evaluate] = {
    "iota": _iota,
    "broadcast": _broadcast,
    "compare": _compare,
    "constant": _constant,
    "reshape": lambda op, operands, dims: operands[0].reshape(dims),
    "convert": lambda op, operands, dims: operands[0],
    "add": lambda op, operands, dims: operands[0] + operands[1],
    "subtract": lambda op, operands, dims: operands[0] - operands[1],
    "multiply": lambda op, operands, dims: operands[0] * operands[1],
    "select": lambda op, operands, dims: np.where(*operands),
}


def equal_stacks(graph: Graph) -> Iterator[tuple[int, int]]:
    """(stack inside the loop, an earlier equal one)."""
    known: dict[Hashable, int] = {}
    for op in graph.ops:
        if op.opcode != DYNAMIC_UPDATE_SLICE:
            continue
        stack = op.inputs[0]
        producer = graph.values[stack].producer
        if producer < 0 or graph.ops[producer].opcode != LOOP_ENTER:
            continue
        start = graph.ops[producer].inputs[graph.ops[producer].outputs.index(stack)]
        if graph.varies[start]:
            continue
        made, written = graph.values[op.outputs[0]], op.inputs[1:]
        key = (producer, made.dims, made.dtype, *(_written_value(graph, v) for v in written))
        same = known.setdefault(key, op.outputs[0])
        if same != op.outputs[0]:
            yield op.outputs[0], same


def _written_value(graph: Graph, value: int) -> Hashable:
    array = graph.values[value]
    op = graph.ops[array.producer] if array.producer >= 0 else None
    if op is not None and op.opcode == CONSTANT:
        return CONSTANT, array.dims, array.dtype, op.instruction.literal
    # What depends on no input is the same if it is made by the same operations: an offset of zero.
    if op is None or (op.opcode not in REORDERS | {BROADCAST} and graph.varies[value]):
        return value
    operands = tuple(_written_value(graph, v) for v in op.inputs)
    return op.opcode, operands, array.dims, op.instruction.dimensions
