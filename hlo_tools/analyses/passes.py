"""What kernels that are fused to one read once.

Elementwise kernels and reductions between two kernels of other kinds are one kernel with several
results where a backend's fusion makes such: what one of them reads or writes, the later ones have
at hand. But what waits for a sum has to go through its arrays a second time: it is done by another
kernel, in the next *pass*. With D(k) the kernels of the run that k reads a result of,

    pass(k) = max over j in D(k) of pass(j) + (1 if j is a reduction that ends a pass, else 0)
    k has at hand what kernels of its own pass read or wrote that work on as many numbers: those
      that work on parts of an array are no kernel with others                -> in: `_Passes`

Rows that a block of threads holds whole are the exception, as a softmax and a normalization have
them from Triton: a reduction along them ends no pass for what goes on with them. A kernel of tiles
stands by itself: it writes one array of that size, and shares nothing with sums over other
dimensions or with elementwise kernels beside it, which wait for its sums like for any other. Rows
are those of the array as it lies (`hlo_tools.analyses.orders`): scores of grouped attention, which
their product writes with queries as the innermost dimension, have none along the keys.

XLA:GPU begins a kernel of tiles where it sees a *diamond*, and takes in more of what works on its
rows:

        v ----> reduce along the row ----> broadcast
         \\                                     |
          `-----------------------------> e(v', sum)      v' is made of v alone, or v of v'

(softmax_rewriter_triton.cc of XLA.) Between the sum and the broadcast each operation has one
operand that is no constant: a maximum that is tested to be finite begins no tile. A softmax and a
normalization are such diamonds. The gradient of a softmax, p * (d - sum(p * d)), is none: d and
p * d are made of different arrays                                     -> in: `tiled_reductions`

A sum that several arrays use, as the denominator of a softmax whose gradient is at hand too, is a
kernel of its own, and each of these arrays is made by a kernel of tiles that goes through the rows
again. A sum that one array waits for and nothing else, as the maximum of a softmax, is made again
by each kernel that makes that array: they are kernels of tiles as well, past products too, with the
sums along rows that they need, as the gradient of a softmax that is computed again   -> in: `_uses`

The rows of a block follow each other, unless an array repeats over matrices of which each row needs
a row of its own, as the mask of a causal attention: then XLA takes the same row of several
matrices, which are not beside each other in memory                       -> in: `strided_tiles`
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Final, TypeAlias

from hlo_tools.analyses.accesses import Kernel
from hlo_tools.analyses.fuser import Fuser
from hlo_tools.analyses.orders import Order, known_orders
from hlo_tools.graph import Graph, Op
from hlo_tools.opcodes import (
    BROADCAST,
    DYNAMIC_UPDATE_SLICE,
    ELEMENTWISE,
    OWN_KERNEL,
    REDUCTIONS,
    RESHAPE,
    TRANSPOSE,
)


# Numbers of a block's rows from which a tile of strided rows is slow: what XLA gives eight warps.
LARGE_TILE: Final = 16384
_ON_THE_WAY: Final = ELEMENTWISE | {BROADCAST, RESHAPE, TRANSPOSE}

PassGroup: TypeAlias = tuple[int, bool]
"""A pass, and whether it is of tiles."""


def share_reads(
    graph: Graph, fuser: Fuser, kernels: Sequence[Kernel], apart: Collection[int]
) -> Iterator[Kernel]:
    """The same kernels; a read of what the fused ones before have at hand moves no bytes. The ops
    `apart` share nothing.
    """
    for run, passes in _runs(graph, fuser, kernels):
        if graph.ops[run[0].op].opcode in OWN_KERNEL:
            yield from run
            continue
        for kernel in run:
            is_stack = graph.ops[kernel.op].opcode == DYNAMIC_UPDATE_SLICE
            group = passes.group(kernel)
            is_apart = kernel.op in apart or (is_stack and fuser.stacks == "written apart")
            yield kernel if is_apart else passes.with_at_hand(kernel, group)


def pass_groups(
    graph: Graph, fuser: Fuser, kernels: Sequence[Kernel]
) -> Iterator[list[tuple[Kernel, PassGroup]]]:
    """The kernels of each run, with their passes."""
    for run, passes in _runs(graph, fuser, kernels):
        yield [(kernel, passes.group(kernel)) for kernel in run]


def _runs(
    graph: Graph, fuser: Fuser, kernels: Sequence[Kernel]
) -> Iterator[tuple[list[Kernel], "_Passes"]]:
    remade, has_tiles = frozenset[int](), fuser.sums == "end a pass but in tiles"
    orders = known_orders(graph).by_value if has_tiles else {}
    arrays = (k for k in kernels if graph.ops[k.op].opcode not in REDUCTIONS)
    makers = Counter(access.value for kernel in arrays for access in kernel.reads)
    for run in fused_runs(graph, kernels):
        if not has_tiles:
            yield run, _Passes(graph, frozenset(), remade, makers)
            continue
        tiled = tiled_reductions(graph, run, remade, orders)
        yield run, _Passes(graph, tiled, remade, makers)
        remade |= _remade(graph, tiled)


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
        return _is_sum(self.graph, self.graph.ops[kernel.op])

    def _serves_several(self, kernel: Kernel) -> bool:
        """Whether several arrays use what a kernel sums, and several kernels make them."""
        op = self.graph.ops[kernel.op]
        return self.makers[op.outputs[0]] > 1 and _uses(self.graph, op).arrays > 1


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


def tiled_reductions(
    graph: Graph, run: Sequence[Kernel], remade: Collection[int], orders: Mapping[int, Order]
) -> frozenset[int]:
    """The ops of a run that reduce rows which a block holds; `remade` are sums that tiles make
    again, `orders` those of dimensions in memory that are not the program's.
    """
    rows = [kernel for kernel in run if _sums_rows(graph, graph.ops[kernel.op], orders)]
    tiled = {
        kernel.op
        for kernel in rows
        if _uses(graph, graph.ops[kernel.op]).is_diamond or _reads(kernel, remade)
    }
    # More sums of what a tile holds are part of it.
    held = {a.value for k in rows if k.op in tiled for a in (*k.reads, *k.writes)}
    for kernel in rows if tiled else ():
        if held & {access.value for access in kernel.reads}:
            tiled.add(kernel.op)
            held.update(access.value for access in (*kernel.reads, *kernel.writes))
    return frozenset(tiled)


def strided_tiles(graph: Graph, kernels: Sequence[Kernel]) -> Mapping[int, tuple[int, ...]]:
    """The ops whose kernels hold the same row of several matrices, and the dimensions that a
    block's rows stand for, counted from the program's last one.
    """
    strided: dict[int, tuple[int, ...]] = {}
    remade, orders = frozenset[int](), known_orders(graph).by_value
    masked: dict[int, tuple[int, ...]] = {}  # values of tiles with such an array
    for run in fused_runs(graph, kernels):
        if graph.ops[run[0].op].opcode in OWN_KERNEL:
            continue
        tiled = tiled_reductions(graph, run, remade, orders)
        remade |= _remade(graph, tiled)
        # Arrays that are written are read as they lie.
        masked = {value: dims for value, dims in masked.items() if value in remade}
        for kernel in run if tiled or remade else ():
            op = graph.ops[kernel.op]
            held = next((masked[a.value] for a in kernel.reads if a.value in masked), ())
            if kernel.op in tiled:
                dims = _repeated_rows(graph, kernel, orders) or held
            else:
                # Other sums of what a tile makes are done by another kernel, of rows as they lie.
                dims = () if _is_sum(graph, op) else held
            if dims:
                strided[kernel.op] = dims
                masked.update(dict.fromkeys(op.outputs, dims))
    return strided


def _remade(graph: Graph, tiled: Collection[int]) -> frozenset[int]:
    """What those of the `tiled` sums make that one array waits for, and nothing else."""
    ops = (graph.ops[op] for op in tiled)
    return frozenset(v for op in ops if _uses(graph, op) == _ALONE for v in op.outputs)


def _is_sum(graph: Graph, op: Op) -> bool:
    """Whether an op reduces anything: dimensions of one number are nothing."""
    if op.opcode not in REDUCTIONS:
        return False
    return worked_numbers(graph, op) > prod(graph.values[op.outputs[0]].dims)


def _reads(kernel: Kernel, values: Collection[int]) -> bool:
    return any(access.value in values for access in kernel.reads)


def _repeated_rows(graph: Graph, kernel: Kernel, orders: Mapping[int, Order]) -> tuple[int, ...]:
    """The dimensions of a block's rows, if a kernel needs rows of an array that repeats over
    matrices before.
    """
    worked = _worked_value(graph.ops[kernel.op])
    stored = {access.value for access in kernel.reads}
    dims = _worked_on(graph, graph.ops[kernel.op])
    todo, seen = [*graph.ops[kernel.op].inputs], set[int]()
    while todo:
        value = todo.pop()
        if value in seen or value in stored or graph.values[value].producer < 0:
            continue
        seen.add(value)
        op = graph.ops[graph.values[value].producer]
        if op.opcode == BROADCAST and graph.values[value].dims == dims:
            order = orders.get(worked, range(len(dims)))
            repeated = _repeated_dims(_different_dims(graph, value), dims, order)
            if repeated:
                return repeated
        elif op.opcode in _ON_THE_WAY:
            todo.extend(op.inputs)
    return ()


def _different_dims(graph: Graph, value: int) -> set[int]:
    """The dimensions of more than one number that a value does not repeat over: XLA makes one
    broadcast of several.
    """
    dims = graph.values[value].dims
    long = [d for d, size in enumerate(dims) if size > 1]
    producer = graph.values[value].producer
    if producer < 0:
        return set(long)
    op = graph.ops[producer]
    if op.opcode == BROADCAST:
        before = _different_dims(graph, op.inputs[0])
        return {d for place, d in enumerate(op.instruction.dimensions) if place in before}
    if op.opcode == RESHAPE:
        sizes = graph.values[op.inputs[0]].dims
        read = [d for d, size in enumerate(sizes) if size > 1]
        if [sizes[d] for d in read] == [dims[d] for d in long]:
            before = _different_dims(graph, op.inputs[0])
            return {d for d, own in zip(long, read) if own in before}
    return set(long)


def worked_numbers(graph: Graph, op: Op) -> int:
    """How many numbers a kernel works on: of a stack the part that it writes."""
    is_update = op.opcode == DYNAMIC_UPDATE_SLICE
    return prod(graph.values[op.inputs[1]].dims if is_update else _worked_on(graph, op))


def _worked_on(graph: Graph, op: Op) -> tuple[int, ...]:
    return graph.values[_worked_value(op)].dims


def _worked_value(op: Op) -> int:
    return op.inputs[0] if op.opcode in REDUCTIONS else op.outputs[0]


def repeats_matrices(kept: Collection[int], dims: Sequence[int]) -> bool:
    """Whether a broadcast to `dims` has the last two dimensions, and repeats over so many matrices
    before that tiles of it are slow: `kept` are the dimensions that it has.
    """
    repeated = _repeated_dims(kept, dims, range(len(dims)))
    return bool(repeated) and prod(dims[d] for d in repeated) >= LARGE_TILE


def _repeated_dims(
    kept: Collection[int], dims: Sequence[int], order: Sequence[int]
) -> tuple[int, ...]:
    """The dimensions that a broadcast with the last two dimensions in memory repeats over, and the
    last, counted from the program's last one; none if it repeats over none.
    """
    real = [d for d in order if dims[d] > 1]
    repeated = [d for d in real[:-2] if d not in kept]
    if not repeated or not {*real[-2:]} <= {*kept}:
        return ()
    return tuple(d - len(dims) for d in (*repeated, real[-1]))


def _sums_rows(graph: Graph, op: Op, orders: Mapping[int, Order]) -> bool:
    """Whether an op reduces the innermost dimensions of an array in memory, and no other."""
    if op.opcode not in REDUCTIONS or op.is_joint_reduction:
        return False
    rank, reduced = len(graph.values[op.inputs[0]].dims), sorted(op.instruction.dimensions)
    order = orders.get(op.inputs[0], range(rank))
    return 0 < len(reduced) < rank and reduced == sorted(order[rank - len(reduced) :])


@dataclass(frozen=True, slots=True)
class _Uses:
    """What uses a reduction's result: how many arrays of the reduced size, how many other values,
    and whether one of the arrays is made of the reduced one too.
    """

    arrays: int
    others: int
    is_diamond: bool


_ALONE: Final = _Uses(1, 0, is_diamond=True)


def _uses(graph: Graph, op: Op) -> _Uses:
    array = op.inputs[0]
    dims, before = graph.values[array].dims, _made_of_one(graph, array)
    seen, todo = set[int](), [*op.outputs]
    arrays, others, is_diamond = 0, 0, False
    while todo:
        value = todo.pop()
        for user in graph.users[value]:
            made = graph.ops[user]
            if user in seen:
                continue
            seen.add(user)
            if made.opcode in ELEMENTWISE and graph.values[made.outputs[0]].dims == dims:
                beside = (v for v in made.inputs if v != value)
                is_diamond |= any(before & _made_of_one(graph, v) for v in beside)
                arrays += 1
            elif made.opcode in _ON_THE_WAY and sum(graph.varies[v] for v in made.inputs) == 1:
                todo.extend(made.outputs)
            else:
                others += 1
    return _Uses(arrays, others, is_diamond)


def _made_of_one(graph: Graph, value: int) -> set[int]:
    """A value, and the arrays that it is made of element by element, as far back as each is made of
    one such array alone.
    """
    chain = {value}
    while (producer := graph.values[value].producer) >= 0:
        op = graph.ops[producer]
        if op.opcode not in ELEMENTWISE:
            break
        arrays = {v for v in op.inputs if graph.varies[v] and not _is_repeated(graph, v)}
        if len(arrays) != 1:
            break
        (value,) = arrays
        chain.add(value)
    return chain


def _is_repeated(graph: Graph, value: int) -> bool:
    """Whether a value is a smaller one, broadcast."""
    producer = graph.values[value].producer
    return producer >= 0 and graph.ops[producer].opcode == BROADCAST
