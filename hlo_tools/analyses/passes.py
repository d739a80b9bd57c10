"""What kernels that are fused to one read once.

Elementwise kernels and reductions between two kernels of other kinds are one kernel with several
results where a backend's fusion makes such: what one of them reads or writes, the later ones have
at hand. But what waits for a sum has to go through its arrays a second time: it is done by another
kernel, in the next *pass*. With D(k) the kernels of the run that k reads a result of,

    pass(k) = max over j in D(k) of pass(j) + (1 if j is a reduction that ends a pass, else 0)
    k has at hand what kernels of its own pass read or wrote that work on as many numbers: those
      that work on parts of an array are no kernel with others                -> in: `_Passes`

Rows that a block of threads holds whole are the exception (`hlo_tools.analyses.tiles`): a reduction
along them ends no pass for what goes on with them. A kernel of tiles stands by itself: it writes
one array of that size, and shares nothing with sums over other dimensions or with elementwise
kernels beside it, which wait for its sums like for any other. Nor does it write a part of an array
that is there, as a slice of a stack: another kernel copies it there        -> in: `stacked_tiles`
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from hlo_tools.analyses.accesses import Kernel, read_through
from hlo_tools.analyses.fuser import Fuser
from hlo_tools.analyses.orders import known_orders
from hlo_tools.analyses.tiles import is_sum, remade_sums, tiled_reductions, uses, worked_numbers
from hlo_tools.graph import Graph
from hlo_tools.opcodes import (
    CONVERT,
    DYNAMIC_UPDATE_SLICE,
    LOOP_EXIT,
    OWN_KERNEL,
    REDUCTIONS,
    VIEWS,
)


_IN_TILES: Final = "end a pass but in tiles"

PassGroup: TypeAlias = tuple[int, bool]
"""A pass, and whether it is of tiles."""


def share_reads(
    graph: Graph, fuser: Fuser, kernels: Sequence[Kernel], apart: Collection[int]
) -> Iterator[Kernel]:
    """The same kernels; a read of what the fused ones before have at hand moves no bytes. The ops
    `apart` share nothing.
    """
    exits = (op.inputs for op in graph.ops if op.opcode == LOOP_EXIT)
    carried = {value for values in exits for value in values}
    for run, passes in _runs(graph, fuser, kernels):
        if graph.ops[run[0].op].opcode in OWN_KERNEL:
            yield from run
            continue
        for kernel in run:
            op, group = graph.ops[kernel.op], passes.group(kernel)
            # What the next trip begins with is written and stacked at once.
            is_stack = op.opcode == DYNAMIC_UPDATE_SLICE and (
                read_through(graph, op.inputs[1], VIEWS - {CONVERT}) not in carried
            )
            is_apart = kernel.op in apart or (is_stack and fuser.stacks == "written apart")
            yield kernel if is_apart else passes.with_at_hand(kernel, group)


def pass_groups(
    graph: Graph, fuser: Fuser, kernels: Sequence[Kernel]
) -> Iterator[list[tuple[Kernel, PassGroup]]]:
    """The kernels of each run, with their passes."""
    for run, passes in _runs(graph, fuser, kernels):
        yield [(kernel, passes.group(kernel)) for kernel in run]


def stacked_tiles(graph: Graph, fuser: Fuser, kernels: Sequence[Kernel]) -> Iterator[int]:
    """What tiles make that another kernel copies into an array that is there."""
    if fuser.sums != _IN_TILES:
        return
    for run in pass_groups(graph, fuser, kernels):
        for kernel, (_, in_tiles) in run:
            op = graph.ops[kernel.op]
            if in_tiles and op.opcode == DYNAMIC_UPDATE_SLICE:
                # What is in memory whole is only copied.
                if all(a.value != read_through(graph, op.inputs[1]) for a in kernel.reads):
                    yield read_through(graph, op.inputs[1], VIEWS - {CONVERT})


def _runs(
    graph: Graph, fuser: Fuser, kernels: Sequence[Kernel]
) -> Iterator[tuple[list[Kernel], "_Passes"]]:
    remade, has_tiles = frozenset[int](), fuser.sums == _IN_TILES
    orders = known_orders(graph).by_value if has_tiles else {}
    arrays = (k for k in kernels if graph.ops[k.op].opcode not in REDUCTIONS)
    makers = Counter(access.value for kernel in arrays for access in kernel.reads)
    for run in fused_runs(graph, kernels):
        if not has_tiles:
            yield run, _Passes(graph, frozenset(), remade, makers)
            continue
        tiled = tiled_reductions(graph, run, remade, orders)
        yield run, _Passes(graph, tiled, remade, makers)
        remade |= remade_sums(graph, tiled)


@dataclass
class _Passes:
    """The passes of a run, kernel by kernel; the sums `tiled` end none, as tiles hold their rows.
    Those of before that are `remade` are made again by tiles that read them. `makers` counts the
    kernels that are no sums and read a value.

    `after` is the first pass that may read a value of the run, and whether tiles hold it.
    """

    graph: Graph
    tiled: frozenset[int]
    remade: frozenset[int]
    makers: Mapping[int, int]
    after: dict[int, PassGroup] = field(default_factory=dict)
    at_hand: defaultdict[tuple[PassGroup, int], set[int]] = field(
        default_factory=lambda: defaultdict(set)
    )

    def with_at_hand(self, kernel: Kernel, group: PassGroup) -> Kernel:
        """A kernel of a pass, whose reads of what is at hand move nothing."""
        known = self.at_hand[group, worked_numbers(self.graph, self.graph.ops[kernel.op])]
        joins = any(self.graph.values[a.value].dims and a.value in known for a in kernel.reads)
        reads = tuple(replace(a, n_bytes=0) if a.value in known else a for a in kernel.reads)
        known.update(a.value for a in (*kernel.reads, *kernel.writes))
        # The next array of tiles is another kernel's, and so is what uses a sum that others use.
        if group[1] and (not self._is_sum(kernel) or self._serves_several(kernel)):
            known.clear()
        return replace(kernel, reads=reads, joins=joins or kernel.joins)

    def group(self, kernel: Kernel) -> PassGroup:
        """The pass of the next kernel."""
        given = [self.after[a.value] for a in kernel.reads if a.value in self.after]
        given += [(0, True) for a in kernel.reads if a.value in self.remade]
        is_sum = self._is_sum(kernel)
        is_tile = kernel.op in self.tiled or (not is_sum and any(in_tile for _, in_tile in given))
        # What tiles have summed others have to wait for.
        waits = (number + (in_tile and not is_tile) for number, in_tile in given)
        current = max(waits, default=0)
        after = current + (is_sum and not is_tile), is_tile
        self.after.update((access.value, after) for access in kernel.writes)
        return current, is_tile

    def _is_sum(self, kernel: Kernel) -> bool:
        return is_sum(self.graph, self.graph.ops[kernel.op])

    def _serves_several(self, kernel: Kernel) -> bool:
        """Whether several arrays use what a kernel sums, and several kernels make them."""
        op = self.graph.ops[kernel.op]
        return self.makers[op.outputs[0]] > 1 and uses(self.graph, op).arrays > 1


def fused_runs(graph: Graph, kernels: Sequence[Kernel]) -> Iterator[list[Kernel]]:
    """Kernels one after the other that may be fused; one of another kind is a run of its own.

    What ends a run is a kernel of another kind, or the edge of a loop.
    """
    run: list[Kernel] = []
    trips = 1
    for kernel in kernels:
        op = graph.ops[kernel.op]
        is_alone = op.opcode in OWN_KERNEL
        if run and (is_alone or op.trip_count != trips):
            yield run
            run = []
        trips = op.trip_count
        if is_alone:
            yield [kernel]
        else:
            run.append(kernel)
    if run:
        yield run
