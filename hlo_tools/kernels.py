"""Kernels: which values XLA writes to memory, and what each kernel reads.

XLA fuses elementwise and data-moving ops into their users, so most values never exist.  A value is
*stored* if

    - a kernel of its own makes it (a contraction, a reduction, a scatter, a sort, ...),
    - or it is the operand of a kernel that loads its operands (after undoing casts and transposes, which
      kernels read through); a `Fuser` says which do on a backend,
    - or it is a step output or crosses a loop boundary,
    - or several ops use it and making it again would read much more than it holds.

Everything else is recomputed by each user from its *sources*: the stored values it is made from.  A
kernel is one op whose result is stored; it reads the sources of its operands.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hlo_tools.graph import STRUCTURAL, Graph


@dataclass(frozen=True, slots=True)
class Kernel:
    """One op that runs by itself: stored values read and written."""

    op: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]


CONTRACTIONS = frozenset({"dot", "convolution", "ragged-dot"})
# Run as kernels of their own: their result is in memory.
_OWN_KERNEL = CONTRACTIONS | frozenset(
    """cholesky custom-call fft gather infeed outfeed reduce-window rng rng-bit-generator scatter
    select-and-scatter sort topk triangular-solve all-gather all-reduce all-to-all
    collective-permute reduce-scatter""".split()
)
# Reads through elementwise producers, writes its result.
_FUSES_INPUT = frozenset({"reduce", "dynamic-update-slice"})
_READ_THROUGH = frozenset(
    "convert transpose reshape bitcast broadcast slice dynamic-slice reduce-precision".split()
)


@dataclass(frozen=True, slots=True)
class Fuser:
    """A backend's fusion pass: operands of the opcodes in `loads` must be in memory."""

    loads: frozenset[str]


# TPU kernels compute elementwise producers while they feed the matrix unit; the GPU's and the CPU's
# matrix libraries read finished operands.
FUSERS: Mapping[str, Fuser] = {
    "tpu": Fuser(loads=_OWN_KERNEL - CONTRACTIONS),
    "cuda": Fuser(loads=_OWN_KERNEL),
    "cpu": Fuser(loads=_OWN_KERNEL),
}
# A value used twice is kept if remaking it reads more than this many times its own bytes.
_RECOMPUTE_RATIO = 1.5


def kernels(graph: Graph, fuser: Fuser) -> list[Kernel]:
    """Kernels in program order."""
    stored = _stored(graph, fuser)
    sources = _Sources(graph, stored)
    result: list[Kernel] = []
    for index, op in enumerate(graph.ops):
        writes = tuple(v for v in op.outputs if sources.stored[v])
        if op.opcode in STRUCTURAL or not (writes or op.opcode in _OWN_KERNEL):
            continue
        reads = dict.fromkeys(s for v in op.inputs for s in sources.of(v))
        result.append(Kernel(index, tuple(reads), writes))
    return result


def _stored(graph: Graph, fuser: Fuser) -> list[bool]:
    stored = [value.producer < 0 for value in graph.values]
    for value in graph.outputs:
        stored[value] = True
    for op in graph.ops:
        if op.opcode in STRUCTURAL:
            for value in (*op.inputs, *op.outputs):
                stored[value] = graph.varies[value]
        elif op.opcode in _OWN_KERNEL:
            for value in op.outputs:
                stored[value] = True
            if op.opcode in fuser.loads:
                for value in op.inputs:
                    stored[_read_through(graph, value)] |= graph.varies[value]
        elif op.opcode in _FUSES_INPUT:
            for value in op.outputs:
                stored[value] = True
    return stored


def _read_through(graph: Graph, value: int) -> int:
    """The value a kernel really loads when it is given a cast or transposed view of it."""
    while (producer := graph.values[value].producer) >= 0:
        op = graph.ops[producer]
        if op.opcode not in _READ_THROUGH or not op.inputs:
            break
        value = op.inputs[0]
    return value


class _Sources:
    """Stored values each value is made from; decides on the way what recomputing would cost too much."""

    def __init__(self, graph: Graph, stored: list[bool]):
        self.graph = graph
        self.stored = stored
        self._of: list[frozenset[int]] = [frozenset()] * len(graph.values)
        for value, is_stored in enumerate(stored):
            if is_stored:
                self._of[value] = frozenset((value,))
        for op in graph.ops:
            self._visit(op.inputs, op.outputs)

    def of(self, value: int) -> Sequence[int]:
        """Stored values read to have `value`, in a fixed order."""
        return sorted(self._of[value])

    def _visit(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        values = self.graph.values
        for value in outputs:
            if self.stored[value] or not self.graph.varies[value]:
                continue
            sources = frozenset().union(*(self._of[v] for v in inputs))
            if len(self.graph.users[value]) > 1:
                read = sum(values[s].n_bytes for s in sources)
                if read > _RECOMPUTE_RATIO * values[value].n_bytes:
                    self.stored[value] = True
                    sources = frozenset((value,))
            self._of[value] = sources
