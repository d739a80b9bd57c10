"""Kernels: which values XLA writes to memory, and what each kernel reads.

XLA fuses elementwise and data-moving ops into their users, so most values never exist.  A value is
*stored* if

    - a kernel of its own makes it (a contraction, a reduction, a scatter, a sort, ...), unless the
      ops that use it are fused with that kernel: then what they make of it is
                                                         -> in: `_fuse_product`, `_fuse_sum`
    - or it is the operand of a kernel that loads its operands (after undoing casts and transposes,
      which kernels read through, but for tables); a `Fuser` says which do on a backend,
    - or it is a step output or crosses a loop boundary, or another program reads it,
    - or it passes an optimization barrier,
    - or several ops use it and making it again would read much more than it holds
                                                         -> in: `hlo_tools.analyses.accesses`

Everything else is recomputed by each user from its *sources*: the stored values it is made from. A
kernel is one op whose result is stored; it reads the sources of its operands. Of what is sliced on
the way, or looked up by index, it reads only that part: a loop over stacked layers touches one at a
time.

What enters a loop may have to be written first, by kernels of the op that enters it: zeros that the
loop adds to or fills, and the rounded copy of what it multiplies (`hlo_tools.analyses.widths`)
                                                                            -> in: `_prepared`

Two programs that run one after the other fuse nothing over what one leaves for the other
                                                                         -> in: `kernels_apart`

Elementwise kernels and reductions between two kernels of other kinds are fused to one with several
results where the backend does so: what one of them reads or writes, the later ones have
                                                     -> in: `hlo_tools.analyses.passes`
Sums over rows are one kernel with others than those between the same two
                                             -> in: `hlo_tools.analyses.column_kernels`
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Final

from hlo_tools.analyses.accesses import (
    WHOLE,
    Access,
    Kernel,
    Sources,
    is_of_products,
    looked_up,
    part_of_result,
    read_through,
)
from hlo_tools.analyses.column_kernels import column_kernels, share_columns, sums_columns
from hlo_tools.analyses.fuser import Fuser
from hlo_tools.analyses.passes import share_reads
from hlo_tools.analyses.product_kernels import (
    at_hand,
    exponentials,
    on_the_way,
    product_that_does,
    stacks_in_products,
    used_at_hand,
)
from hlo_tools.analyses.rearranged import JOINS, rearranged
from hlo_tools.graph import PART_TYPES, Graph, Op
from hlo_tools.opcodes import (
    AT_RUN_TIME_OFFSET,
    CONTRACTIONS,
    CONVERT,
    CUSTOM_CALL,
    DYNAMIC_SLICE,
    DYNAMIC_UPDATE_SLICE,
    ELEMENTWISE,
    GATHER,
    LOOP_ENTER,
    MATRIX_OPS,
    OWN_KERNEL,
    REDUCTIONS,
    RESHAPE,
    REVERSE,
    SLICE,
    STORES_RESULT,
    STRUCTURAL,
    TRANSPOSE,
    VIEWS,
)


_MOVES_WHOLE: Final = JOINS | {REVERSE}
_MOVES: Final = JOINS | {DYNAMIC_SLICE, SLICE, TRANSPOSE}


def kernels(
    graph: Graph, fuser: Fuser, n_bytes: Sequence[int], summed: Collection[int] = ()
) -> list[Kernel]:
    """Kernels in program order; `n_bytes` are those of each value where it is in memory, `summed`
    the results of products that devices add up before anything else is computed of them.
    """
    return _shared(graph, fuser, _each(graph, fuser, n_bytes, summed))


def _each(
    graph: Graph, fuser: Fuser, n_bytes: Sequence[int], in_memory: Collection[int]
) -> list[Kernel]:
    """Kernels that share nothing; the values `in_memory` are there whatever is fused."""
    constants = _constants(graph).difference(in_memory)
    stored = _stored(graph, fuser)
    for value in (*in_memory, *_moved(graph, fuser)):
        stored[value] = True
    stored = [here and value not in constants for value, here in enumerate(stored)]
    kept = graph.held.union(in_memory, graph.outputs)
    for op in graph.ops if fuser.products != "bare" else ():
        if op.opcode in CONTRACTIONS and op.outputs[0] not in kept:
            fuse = _fuse_sum if fuser.products == "summed" else _fuse_product
            fuse(graph, stored, op.outputs[0])
    in_products = stacks_in_products(graph, fuser)
    by_products = at_hand(graph, fuser, in_memory)
    for value in exponentials(graph, by_products):
        stored[value] = True
    for value in used_at_hand(graph, stored, by_products, in_products):
        stored[value] = value in kept
    within = on_the_way(graph, by_products, in_products)
    sources = Sources(graph, stored, n_bytes, fuser, within)
    # Some are replaced by what is only stored as several ops use it.
    for value in used_at_hand(graph, stored, by_products, in_products):
        stored[value] = value in kept
    result, rounded = list[Kernel](), set[int]()
    for index, op in enumerate(graph.ops):
        if op.opcode == LOOP_ENTER:
            result.extend(_prepared(graph, index, n_bytes, rounded))
        written = [v for v in op.outputs if sources.stored[v]]
        if op.opcode in STRUCTURAL or not (written or fuser.runs_apart(graph, op)):
            continue
        if graph.unread.issuperset(op.outputs) or constants.issuperset(op.outputs):
            continue
        # What a product makes is at hand where its kernel stacks it.
        positions = () if index in in_products else range(len(op.inputs))
        if op.opcode == DYNAMIC_UPDATE_SLICE and fuser.stacks != "read and written":
            positions = positions[1:]
        reads = sources.whole(sources.parts(op, positions))
        product = in_products.get(index, product_that_does(graph, op, by_products))
        is_joined = product >= 0
        is_in_place = any(graph.varies[v] for v in op.inputs[:1])
        part = part_of_result(n_bytes, op) if is_in_place else WHOLE
        result.append(
            Kernel(
                op=index,
                reads=tuple(
                    Access(source, 0 if is_joined and source in by_products else n_read)
                    for source, n_read in reads.items()
                ),
                joins=is_joined,
                product=product,
                # What is scattered into zeros writes all of them first.
                writes=tuple(Access(v, min(part, n_bytes[v])) for v in written),
            )
        )
    return result


def kernels_apart(
    graph: Graph,
    fuser: Fuser,
    n_bytes: Sequence[int],
    is_later: Sequence[bool],
    left: frozenset[int],
    summed: frozenset[int] = frozenset(),
) -> list[Kernel]:
    """Kernels of two programs in the order of one: `is_later` says which ops are the second one's,
    `left` are the values that the first leaves in memory for it, `summed` as in `kernels`.
    """
    whole, apart = (_each(graph, fuser, n_bytes, v) for v in (summed, left | summed))
    first = [kernel for kernel in whole if not is_later[kernel.op]]
    known = {access.value for kernel in first for access in kernel.writes}
    more = [
        replace(kernel, writes=tuple(a for a in kernel.writes if a.value in left - known))
        for kernel in apart
        if not is_later[kernel.op]
    ]
    more = [kernel for kernel in more if kernel.writes]
    if fuser.results == "several":
        first, more = _with_more_results(graph, first, more)
    first = sorted([*first, *more], key=lambda kernel: kernel.op)
    second = [kernel for kernel in apart if is_later[kernel.op]]
    # Each program has at hand what its own kernels read. A stable sort: of one op, what it prepares
    # comes first.
    both = [*_shared(graph, fuser, first), *_shared(graph, fuser, second)]
    return sorted(both, key=lambda kernel: kernel.op)


def _with_more_results(
    graph: Graph, kernels: Sequence[Kernel], more: Sequence[Kernel]
) -> tuple[list[Kernel], list[Kernel]]:
    """(kernels, those of `more` that are left): the others are results of the next kernel that they
    are fused with, which has what that one reads and writes at hand.
    """
    result, rest = list(kernels), list[Kernel]()
    places = sorted((kernel.op, place) for place, kernel in enumerate(kernels))
    for kernel in more:
        at = bisect_left(places, (kernel.op, 0))
        if at == len(places) or not _is_fusible(graph, places[at][0], kernel.op):
            rest.append(kernel)
            continue
        host = result[place := places[at][1]]
        at_hand = {access.value for access in (*host.reads, *host.writes)}
        reads = tuple(access for access in kernel.reads if access.value not in at_hand)
        result[place] = replace(
            host, reads=(*host.reads, *reads), writes=(*host.writes, *kernel.writes)
        )
    return result, rest


def _is_fusible(graph: Graph, host: int, op: int) -> bool:
    """Whether the kernel of op `host` can have the result of another op too."""
    first, other = graph.ops[host], graph.ops[op]
    return first.opcode not in OWN_KERNEL | STRUCTURAL and first.trip_count == other.trip_count


def _prepared(
    graph: Graph, loop: int, n_bytes: Sequence[int], rounded: set[int]
) -> Iterator[Kernel]:
    """The kernels before a loop; `rounded` are values that have a rounded copy already."""
    op = graph.ops[loop]
    for value, carried in zip(op.inputs, op.outputs):
        if not graph.values[value].dims or not graph.varies[carried]:
            continue
        if carried in graph.unread:
            continue
        # Zeros that the loop adds to or fills: written, and nothing is read.
        if not graph.varies[value]:
            yield Kernel(op=loop, reads=(), writes=(Access(carried, n_bytes[carried]),))
        # The loop has it narrower than the program around: one rounded copy serves all loops.
        elif n_bytes[carried] < n_bytes[value] and value not in rounded:
            rounded.add(value)
            read, written = Access(value, n_bytes[value]), Access(carried, n_bytes[carried])
            yield Kernel(op=loop, reads=(read,), writes=(written,))


def _shared(graph: Graph, fuser: Fuser, kernels: list[Kernel]) -> list[Kernel]:
    if fuser.results == "one":
        return kernels
    if fuser.columns == "in their pass":
        moved = _MOVES if fuser.joins == "written" else frozenset[str]()
        apart = {kernel.op for kernel in kernels if graph.ops[kernel.op].opcode in moved}
        return [*share_reads(graph, fuser, kernels, apart)]
    columns = column_kernels(graph, fuser, kernels)
    sums = {kernel.op for kernel in kernels if sums_columns(graph, kernel.op)}
    return [*share_columns([*share_reads(graph, fuser, kernels, sums)], columns)]


def _stored(graph: Graph, fuser: Fuser) -> list[bool]:
    stored = [value.producer < 0 for value in graph.values]
    for value in graph.outputs:
        stored[value] = True
    for value in graph.held:
        stored[value] |= graph.varies[value]
    for op in graph.ops:
        if op.opcode in STRUCTURAL:
            # What crosses the edge of a loop or branch is in memory; constants are made anew
            # inside.
            for value in (*op.inputs, *op.outputs):
                stored[value] = graph.varies[value] and value not in graph.unread
        elif fuser.runs_apart(graph, op):
            copied = _parts_of_stacks(graph, op) if fuser.slices == "copied" else ()
            for value in (*op.outputs, *copied):
                stored[value] = True
            if op.opcode in fuser.loads:
                # Libraries for whole matrices, transforms and products of complex numbers read one
                # type.
                is_exact = op.opcode in MATRIX_OPS or (
                    op.opcode in CONTRACTIONS and graph.values[op.inputs[0]].dtype in PART_TYPES
                )
                views = VIEWS - {CONVERT} if is_exact else VIEWS
                # What is no op of the compiler's is given arrays.
                views = VIEWS & {RESHAPE} if op.opcode == CUSTOM_CALL else views
                is_narrowest = fuser.casts == "widening" and op.opcode in CONTRACTIONS
                for value in op.inputs:
                    loaded = read_through(graph, value, views, is_narrowest=is_narrowest)
                    stored[loaded] |= graph.varies[value]
            # The cast of an input comes before the look-up, of all rows: the table that is read is
            # the cast one.
            if op.opcode == GATHER and fuser.tables == "whole":
                table = read_through(graph, op.inputs[0])
                if graph.values[table].producer < 0:
                    stored[looked_up(graph, op)] = True
        elif op.opcode in STORES_RESULT:
            for value in op.outputs:
                stored[value] = True
    return stored


def _constants(graph: Graph) -> frozenset[int]:
    """What is the same in every step, and no result: a compiler computes that itself, or where it
    is used. Nobody knows it of a call.
    """
    kept = graph.held.union(graph.outputs)
    made = (v for op in graph.ops if op.opcode != CUSTOM_CALL for v in op.outputs)
    return frozenset(v for v in made if v not in kept and not graph.varies[v])


def _moved(graph: Graph, fuser: Fuser) -> Iterator[int]:
    """What is joined, cut or brought to other places by kernels of their own."""
    if fuser.joins == "written":
        yield from _used_joins(graph)
        yield from _moved_operands(graph)
        yield from rearranged(graph)


def _used_joins(graph: Graph) -> Iterator[int]:
    """What several ops use of what is concatenated or padded, unless all of them are products,
    which join their operands as they load them.
    """
    for op in graph.ops:
        if op.opcode in JOINS and len(graph.users[op.outputs[0]]) > 1:
            if not is_of_products(graph, op.outputs[0]):
                yield op.outputs[0]


def _moved_operands(graph: Graph) -> Iterator[int]:
    """What is computed element by element and then joined, padded or reversed, or is cut and used
    otherwise too, as the halves of rotary embeddings are; and what is cut and joined with that. A
    cut that is the only use is made first, and the sum of what is joined is the sum of sums.
    """
    for op in graph.ops:
        is_moved = op.opcode in _MOVES_WHOLE
        if not is_moved and op.opcode != SLICE:
            continue
        users = [graph.ops[user].opcode for user in graph.users[op.outputs[0]]]
        if is_moved and users and REDUCTIONS.issuperset(users):
            continue
        computed, cut = list[int](), list[int]()
        for operand in op.inputs:
            value = read_through(graph, operand, frozenset({RESHAPE}))
            producer = graph.values[value].producer
            made = graph.ops[producer].opcode if producer >= 0 and graph.varies[value] else ""
            if made in ELEMENTWISE and (is_moved or len(graph.users[value]) > 1):
                computed.append(value)
            elif made == SLICE and is_moved:
                cut.append(value)
        yield from (*computed, *cut) if computed else ()


def _parts_of_stacks(graph: Graph, op: Op) -> Iterator[int]:
    """What a contraction's operands are views of that was cut out at an offset known at run
    time.
    """
    for value in op.inputs if op.opcode in CONTRACTIONS else ():
        cut = read_through(graph, value, VIEWS - AT_RUN_TIME_OFFSET)
        producer = graph.values[cut].producer
        if producer >= 0 and graph.ops[producer].opcode in AT_RUN_TIME_OFFSET & VIEWS:
            yield cut


def _fuse_product(graph: Graph, stored: list[bool], value: int) -> None:
    """Store what the last elementwise op makes of a contraction's result, and not the result."""
    dims = graph.ops[graph.values[value].producer].instruction.attributes.dot
    has_matrices = dims is not None and len(dims.lhs_batch) > 0
    last = value  # as far as each op is the only user of what the one before has made
    while (user := _only_user(graph, last)) is not None:
        # Matrices are written as such, whatever they are read as.
        if has_matrices and user.opcode == RESHAPE:
            user = None
        if user is None or stored[user.outputs[0]]:
            break
        last = user.outputs[0]
    if last != value or user is not None:
        # Where the last op's user has its result in memory the fused kernel ends.
        stored[value] = False
        stored[last] = user is None


def _fuse_sum(graph: Graph, stored: list[bool], value: int) -> None:
    """Store the sum of a contraction and what a loop carries for it alone, not its result."""
    last = value
    while (user := _only_user(graph, last)) is not None and user.opcode in VIEWS:
        last = user.outputs[0]
    if user is None or user.opcode != "add":
        return
    for other in {*user.inputs} - {last}:
        at = graph.values[other].producer
        if at >= 0 and graph.ops[at].opcode == LOOP_ENTER and len(graph.users[other]) == 1:
            stored[value], stored[user.outputs[0]] = False, True


def _only_user(graph: Graph, value: int) -> Op | None:
    """The one op that uses a value, if it makes another as large of it, and nothing else."""
    users = graph.users[value]
    if len(users) != 1:
        return None
    op = graph.ops[users[0]]
    if op.opcode in STRUCTURAL or op.opcode in OWN_KERNEL or op.opcode in REDUCTIONS:
        return None
    is_update = op.opcode == DYNAMIC_UPDATE_SLICE and op.inputs[0] != value
    before, after = (graph.values[v].n_bytes for v in (value, op.outputs[0]))
    return op if is_update or before == after else None
