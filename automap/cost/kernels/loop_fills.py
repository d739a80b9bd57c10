"""Zeros that loops begin with: stacks that they write their results into, and sums that they add
to.

XLA writes them before the loop, but for stacks that a forward loop writes whole: those it only allocates. On TPUs it does not
where another loop begins with zeros of the same type and sizes: these are one tensor then, of which each gets a copy. So
the stacks of GPT's one loop are allocated, those of T5's encoder and decoder are written                -> in: `filled`
There writing goes by numbers, not bytes: bfloat16 and booleans take the time of float32, and of more than 2 million
numbers a core three times that of memory accesses (two loops that write stacks of 1 to 38 million, libtpu 0.0.51 for v5e and v5p).
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
import math
from typing import Literal

from hlo_tools.analyses.kernels import Access, Kernel
from hlo_tools.analyses.phases import Phase
from hlo_tools.graph import Graph
from hlo_tools.opcodes import LOOP_ENTER


_BYTES_OF_NUMBER = 4


def filled(
    graph: Graph,
    found: Sequence[Kernel],
    phases: Sequence[Phase],
    loop_zeros: Literal["by byte", "by number"],
) -> list[Kernel]:
    """The kernels without those that write zeros which are only allocated."""
    writes_numbers = loop_zeros == "by number"
    shared = _of_several_loops(graph) if writes_numbers else frozenset[object]()
    result = list[Kernel]()
    for kernel in found:
        if is_fill(graph, kernel):
            (write,) = kernel.writes
            if phases[kernel.op] == Phase.FORWARD and _kind(graph, write.value) not in shared:
                continue
            if writes_numbers:
                kernel = replace(kernel, writes=(_by_number(graph, write),))
        result.append(kernel)
    return result


def is_fill(graph: Graph, kernel: Kernel) -> bool:
    """Whether a kernel writes zeros for a loop."""
    return graph.ops[kernel.op].opcode == LOOP_ENTER and not kernel.reads


def _of_several_loops(graph: Graph) -> frozenset[object]:
    """The types and sizes of zeros that more than one loop begins with."""
    loops = defaultdict[object, set[int]](set)
    for index, op in enumerate(graph.ops):
        if op.opcode == LOOP_ENTER:
            for value, carried in zip(op.inputs, op.outputs):
                if graph.varies[carried] and not graph.varies[value]:
                    loops[_kind(graph, carried)].add(index)
    return frozenset(kind for kind, of in loops.items() if len(of) > 1)


def _kind(graph: Graph, value: int) -> tuple[str, tuple[int, ...]]:
    return graph.values[value].dtype, graph.values[value].dims


def _by_number(graph: Graph, write: Access) -> Access:
    numbers = math.prod(graph.values[write.value].dims)
    return replace(write, n_bytes=max(write.n_bytes, _BYTES_OF_NUMBER * numbers))
