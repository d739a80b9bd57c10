"""Zeros that loops begin with: stacks that they write their results into, and sums that they add
to.

Compilers write them before the loop, but for stacks that a forward loop writes whole: those are
only allocated. A backend whose `loop_zeros` are "by number" writes these too where another loop
begins with zeros of the same type and sizes: they are one tensor then, of which each gets a copy.
So the stacks of GPT's one loop are allocated, those of T5's encoder and decoder are written
                                                                        -> in: `written_fills`
There writing goes by numbers, not bytes: bfloat16 and booleans take the time of float32, and of
more than `fast_fill_bytes` a core three times that of memory accesses
                                                              -> in: `automap.cost.kernels.roofline`
Where "all" are written those of one loop that are alike are copies of one tensor, which one kernel
writes                                                                  -> in: `_written_together`
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
import math
from typing import Literal

from hlo_tools.analyses.accesses import Access, Kernel
from hlo_tools.analyses.phases import Phase
from hlo_tools.graph import Graph
from hlo_tools.opcodes import LOOP_ENTER


# The width of float32, which narrower numbers are written as.
_NUMBER_BYTES = 4


def written_fills(
    graph: Graph,
    kernels: Sequence[Kernel],
    phases: Sequence[Phase],
    loop_zeros: Literal["by byte", "by number", "all"],
) -> list[Kernel]:
    """The kernels without those that write zeros which are only allocated."""
    writes_numbers = loop_zeros == "by number"
    shared = _shared_by_loops(graph) if writes_numbers else frozenset[object]()
    result = list[Kernel]()
    for kernel in kernels:
        if is_fill(graph, kernel):
            # A fill writes one array and reads none (`is_fill`).
            (write,) = kernel.writes
            is_allocated = phases[kernel.op] == Phase.FORWARD and loop_zeros != "all"
            if is_allocated and _kind(graph, write.value) not in shared:
                continue
            if writes_numbers:
                kernel = replace(kernel, writes=(_by_number(graph, write),))
        result.append(kernel)
    return _written_together(graph, result) if loop_zeros == "all" else result


def _written_together(graph: Graph, kernels: Sequence[Kernel]) -> list[Kernel]:
    """The kernels; fills of one loop whose zeros are of the same type and sizes are one kernel."""
    result = list[Kernel]()
    places = dict[object, int]()
    for kernel in kernels:
        if is_fill(graph, kernel):
            alike = kernel.op, _kind(graph, kernel.writes[0].value)
            place = places.setdefault(alike, len(result))
            if place < len(result):
                first = result[place]
                result[place] = replace(first, writes=(*first.writes, *kernel.writes))
                continue
        result.append(kernel)
    return result


def is_fill(graph: Graph, kernel: Kernel) -> bool:
    """Whether a kernel writes zeros for a loop."""
    return graph.ops[kernel.op].opcode == LOOP_ENTER and not kernel.reads


def _shared_by_loops(graph: Graph) -> frozenset[object]:
    """The types and sizes of zeros that more than one loop begins with."""
    loops = defaultdict[object, set[int]](set)
    for index, op in enumerate(graph.ops):
        if op.opcode == LOOP_ENTER:
            for value, carried in zip(op.inputs, op.outputs):
                # Begins with a constant, and changes in the loop.
                if graph.varies[carried] and not graph.varies[value]:
                    loops[_kind(graph, carried)].add(index)
    return frozenset(kind for kind, entries in loops.items() if len(entries) > 1)


def _kind(graph: Graph, value: int) -> tuple[str, tuple[int, ...]]:
    return graph.values[value].dtype, graph.values[value].dims


def _by_number(graph: Graph, write: Access) -> Access:
    numbers = math.prod(graph.values[write.value].dims)
    return replace(write, n_bytes=max(write.n_bytes, _NUMBER_BYTES * numbers))
