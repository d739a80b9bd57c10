"""Additions that wait for each other in memory, which are told as they may take much longer than is
predicted.

A scatter-add on a GPU is one atomic addition for each number of its updates. Of types that the
memory of a GPU adds by itself (float32, integers) those to one number follow each other within
nanoseconds. Of shorter floats XLA compares and swaps a word until nobody else was faster: all
threads that are there try again for each one that succeeds (`automap.cost.kernels.additions`).
That is priced as if all rows of a table were met evenly, which nobody knows of a step: with

    updates per number = numbers of the updates / numbers of the result

of 8,192 (T5's table of relative positions, 32 buckets) one such scatter took 0.6 to 1.7 s on an
H100 and an H200, up to six times as long as if they were (docs/reports/step_times.md). Embeddings
of tokens are far below `_CONTENDED`.
"""

from collections.abc import Iterator
from math import prod
from typing import Final

from hlo_tools.graph import Graph
from hlo_tools.opcodes import SCATTER


_SWAPPED_TYPES: Final = frozenset({"bf16", "f16"})
_CONTENDED: Final = 1000


def contended_additions(graph: Graph) -> Iterator[tuple[int, str]]:
    """The scatters of a program whose updates meet at few numbers, with what to say of them."""
    for index, op in enumerate(graph.ops):
        if op.opcode != SCATTER or op.instruction.attributes.combiner != "add":
            continue
        result, updates = graph.values[op.outputs[0]], graph.values[op.inputs[-1]]
        per_number = prod(updates.dims) / max(prod(result.dims), 1)
        if result.dtype in _SWAPPED_TYPES and per_number >= _CONTENDED:
            yield (
                index,
                f"{per_number:,.0f} additions in {result.dtype} meet at each number of a table of "
                f"{'x'.join(map(str, result.dims))}, one after the other, as GPUs have no atomic "
                "addition of that type: this may take seconds, several times what is predicted; "
                "cast the table to float32 before it is indexed",
            )
