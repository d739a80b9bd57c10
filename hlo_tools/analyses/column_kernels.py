"""Sums over rows, and the elementwise kernels that they are one kernel with.

XLA:GPU makes siblings one kernel: those that read the same array and do not wait for each other,
wherever they stand in the program, products between them or not (multi_output_fusion.cc of XLA). A
sum over the rows of a matrix and a sum along them are never one, as their threads go through the
array in different orders. So what a sum s over rows reads it shares with an elementwise kernel k,

    a(s) in reads(k),  k does not depend on s,  and no sum of another kind is in the pass of k

with a(s) the one array that s reads; of several such k with those in the pass of the last one, as
XLA goes through the program from its end. A gradient that a bias sums over rows and that a residual
stream adds is read once so. Where there is none, s may be one with the kernel that makes a(s), if
that is no slower so (`automap.cost.kernels.column_sums`)                -> in: `column_kernels`

What is summed of several arrays, as the gradient of a normalization's scale, is one with such a
kernel, and with sums of one of the arrays, only if the blocks that sum are many: XLA keeps
arithmetic out of few (`automap.cost.kernels.column_sums`)               -> in: `ColumnKernels`
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from hlo_tools.analyses.accesses import Access, Kernel
from hlo_tools.analyses.fuser import Fuser
from hlo_tools.analyses.passes import PassGroup, pass_groups
from hlo_tools.analyses.tiles import worked_numbers
from hlo_tools.graph import Graph
from hlo_tools.opcodes import DYNAMIC_UPDATE_SLICE, OWN_KERNEL, REDUCTIONS


@dataclass(frozen=True, slots=True)
class _Place:
    """A pass of a run, by the number of the run."""

    run: int
    group: PassGroup


def sums_columns(graph: Graph, index: int) -> bool:
    """Whether an op sums an array over other dimensions than the innermost one."""
    op = graph.ops[index]
    if op.opcode != "reduce" or op.is_joint_reduction:
        return False
    # Dimensions of one number lie nowhere.
    real = [d for d, size in enumerate(graph.values[op.inputs[0]].dims) if size > 1]
    reduced = set(op.instruction.dimensions)
    return bool(real) and real[-1] not in reduced and bool(reduced & set(real))


@dataclass(frozen=True, slots=True)
class ColumnKernels:
    """Which kernels sum over rows, or are one with such sums, by their ops.

    `leaders` says for each the op of one of these sums, the same for all that are one kernel, and
    `given` which arrays of a sum of several others read: sums of one before, or the kernel `beside`
    it. Of what a kernel makes that is the kernel `beside` its sum.
    """

    leaders: Mapping[int, int]
    given: Mapping[int, frozenset[int]]
    beside: Mapping[int, int]


def column_kernels(graph: Graph, fuser: Fuser, kernels: Sequence[Kernel]) -> ColumnKernels:
    """Those of a program."""
    sums = _Sums(graph, kernels)
    if not sums.arrays:
        return ColumnKernels({}, {}, {})
    places = _free_places(graph, fuser, kernels)
    leaders = _with_readers(sums, places)
    beside = {
        s: op
        for op in places
        for s in sums.that_read(sums.by_op[op].writes)
        if s not in leaders and len(sums.arrays[s]) == 1 and sums.may_join(op, s)
    }
    users: dict[int, list[int]] = {}
    for op in places:
        for access in sums.by_op[op].reads:
            users.setdefault(access.value, []).append(op)
    given: dict[int, frozenset[int]] = {}
    placed = frozenset(leaders)
    for s, read in sums.arrays.items():
        free = sums.in_earlier_kernels(s)
        if len(read) < 2:
            one = next((t for t in free if t not in placed), s)
            leaders.setdefault(s, leaders.get(one, one))
            continue
        leaders[s], given[s] = s, frozenset(array for t in free for array in sums.arrays[t])
        readers = {op for array in read for op in users.get(array, ()) if sums.may_join(op, s)}
        if readers:
            # Ops are numbered in the order of the program.
            beside[s] = max(readers)
            last = {access.value for access in sums.by_op[beside[s]].reads}
            given[s] |= last.intersection(read)
    return ColumnKernels(leaders, given, beside)


class _Sums:
    """The sums over rows of a program, by their ops: `arrays` are those that each is made of."""

    def __init__(self, graph: Graph, kernels: Sequence[Kernel]):
        self.graph = graph
        self.by_op = {kernel.op: kernel for kernel in kernels}
        self.arrays = {
            op: summed_arrays(graph, kernel)
            for op, kernel in self.by_op.items()
            if sums_columns(graph, op)
        }
        self._readers: dict[int, list[int]] = {}
        for s, read in self.arrays.items():
            for array in read:
                self._readers.setdefault(array, []).append(s)
        self._waits = _waiting(graph, [*self.arrays])

    def that_read(self, accesses: Sequence[Access]) -> Iterator[int]:
        """The sums that are made of one of these."""
        for access in accesses:
            yield from self._readers.get(access.value, ())

    def may_join(self, op: int, s: int) -> bool:
        """Whether the kernel of an op works on as much as a sum, in the same loop, and does not
        wait for it.
        """
        return _is_alike(self.graph, op, s) and not self._waits(op, s)

    def in_earlier_kernels(self, s: int) -> list[int]:
        """The sums of one array, which is one of those of `s`, that come before it."""
        before = (t for array in self.arrays[s] for t in self._readers[array] if t < s)
        return [t for t in before if len(self.arrays[t]) == 1 and self.may_join(s, t)]


def _with_readers(sums: _Sums, places: dict[int, _Place]) -> dict[int, int]:
    """Sums of one array that are one kernel with what reads it, and these kernels."""
    first: dict[_Place, int] = {}
    leaders: dict[int, int] = {}
    for op in reversed(places):
        for s in sums.that_read(sums.by_op[op].reads):
            one = first.get(places[op], s)
            is_possible = len(sums.arrays[s]) == 1 and sums.may_join(op, s)
            if is_possible and leaders.get(s, one) == one and (s == one or sums.may_join(s, one)):
                first[places[op]] = leaders[s] = leaders[op] = one
    return leaders


def share_columns(kernels: Sequence[Kernel], columns: ColumnKernels) -> Iterator[Kernel]:
    """The same kernels; what one reads or writes those have that are one kernel with it."""
    at_hand: dict[int, set[int]] = {}
    for kernel in kernels:
        if kernel.op not in columns.leaders:
            yield kernel
            continue
        known = at_hand.setdefault(columns.leaders[kernel.op], set())
        yield replace(
            kernel,
            reads=tuple(replace(a, n_bytes=0) if a.value in known else a for a in kernel.reads),
            joins=kernel.joins or any(access.value in known for access in kernel.reads),
        )
        known.update(access.value for access in (*kernel.reads, *kernel.writes))


def summed_arrays(graph: Graph, kernel: Kernel) -> list[int]:
    """The arrays that a sum is made of, which have as many numbers as what it sums, or more."""
    least = _numbers(graph, kernel.op)
    return [a.value for a in kernel.reads if prod(graph.values[a.value].dims) >= least]


def _free_places(graph: Graph, fuser: Fuser, kernels: Sequence[Kernel]) -> dict[int, _Place]:
    """The passes of elementwise kernels that no sum of another kind is one with, by op."""
    places: dict[int, _Place] = {}
    for number, run in enumerate(pass_groups(graph, fuser, kernels)):
        if graph.ops[run[0][0].op].opcode in OWN_KERNEL:
            continue
        others: dict[tuple[PassGroup, int], set[int]] = {}
        for kernel, group in run:
            if graph.ops[kernel.op].opcode in REDUCTIONS and not sums_columns(graph, kernel.op):
                read = others.setdefault((group, _numbers(graph, kernel.op)), set())
                read.update(access.value for access in kernel.reads)
        for kernel, group in run:
            opcode, is_in_tiles = graph.ops[kernel.op].opcode, group[1]
            if opcode in REDUCTIONS or opcode == DYNAMIC_UPDATE_SLICE or is_in_tiles:
                continue
            taken = others.get((group, _numbers(graph, kernel.op)), ())
            if not any(access.value in taken for access in (*kernel.reads, *kernel.writes)):
                places[kernel.op] = _Place(number, group)
    return places


def _is_alike(graph: Graph, op: int, s: int) -> bool:
    trips = [graph.ops[each].trip_count for each in (op, s)]
    return trips[0] == trips[1] and _numbers(graph, op) == _numbers(graph, s)


def _numbers(graph: Graph, op: int) -> int:
    return worked_numbers(graph, graph.ops[op])


def _waiting(graph: Graph, sums: Sequence[int]) -> Callable[[int, int], bool]:
    """Whether an op waits for one of the sums."""
    bits = {op: 1 << number for number, op in enumerate(sums)}
    # Of each value the sums that it is made of.
    ancestors = [0] * len(graph.values)
    for index, op in enumerate(graph.ops):
        made = bits.get(index, 0)
        for value in op.inputs:
            made |= ancestors[value]
        for value in op.outputs:
            ancestors[value] = made
    return lambda op, s: bool(ancestors[graph.ops[op].outputs[0]] & bits[s]) and op != s
