"""What a kernel is to its analyses: an op that runs by itself, and the memory that it touches; and
the *sources* that it reads, the stored values that what it is given is made from.

A value that is not in memory is made again by each op that uses it       -> in: `Sources`
Of what is sliced on the way, or looked up by index, only that part is read
                                                                          -> in: `part_of_operand`
What a step makes and casts to a wider type before rows are looked up in it, as it does with logits
of two bytes for their loss, is written for the look-up alone: others cast what they read themselves
                                                                          -> in: `wide_tables`
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from hlo_tools.analyses.fuser import Fuser
from hlo_tools.graph import DTYPE_BITS, Graph, Op
from hlo_tools.opcodes import (
    CONTRACTIONS,
    CONVERT,
    COPY,
    DOT,
    DYNAMIC_UPDATE_SLICE,
    EACH_ELEMENT,
    GATHER,
    READS_PART,
    SCATTER,
    VIEWS,
)


@dataclass(frozen=True, slots=True)
class Access:
    """A stored value that a kernel reads or writes, and how many bytes of the whole (unsharded)
    value.
    """

    value: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """One op that runs by itself: stored values read and written.

    `joins` is whether it is one kernel with others before it, of which it has some of what it
    reads at hand. With `copied` it does not do what the op does, but copies an operand before it,
    or what it makes behind it: these are dimensions of that of which none may have a single
    element, else there is no copy. `product` is the number of the product whose kernel does it
    besides, -1 for none.
    """

    op: int
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    joins: bool = False
    copied: frozenset[int] | None = None
    product: int = -1

    def work(self, graph: Graph) -> Op:
        """What it does: its op, or a copy."""
        op, read = graph.ops[self.op], tuple(access.value for access in self.reads)
        copy = replace(op, opcode=COPY, inputs=read, outputs=read)
        return op if self.copied is None else copy


Parts: TypeAlias = dict[tuple[int, int], int]
"""Bytes read of (a stored value, the cut of it that they are of, or itself)."""

# No limit: all bytes of a value.
WHOLE = 1 << 62
# Two products each make an operand for themselves of up to so many times its own bytes, as those of
# queries and keys make the gradient of scores of what is as wide; more find it in memory.
_PRODUCTS_REMAKE_RATIO = 2.5
# A value used twice is kept if remaking it reads more than this many times its own bytes, before it
# is rounded.
_RECOMPUTE_RATIO = 1.5


def read_through(
    graph: Graph, value: int, opcodes: frozenset[str] = VIEWS, *, is_narrowest: bool = False
) -> int:
    """The value a kernel really loads when it is given a cast or transposed view of it; with
    `is_narrowest` none of a wider type than the view's.
    """
    while (producer := graph.values[value].producer) >= 0 and value not in graph.held:
        op = graph.ops[producer]
        if op.opcode not in opcodes or not op.inputs:
            break
        types = [DTYPE_BITS[graph.values[v].dtype] for v in (value, op.inputs[0])]
        if is_narrowest and types[0] < types[1]:
            break
        value = op.inputs[0]
    return value


def looked_up(graph: Graph, lookup: Op) -> int:
    """The value that a look-up by index reads rows of, where they are cast before."""
    return read_through(graph, lookup.inputs[0], VIEWS - {CONVERT})


def wide_tables(graph: Graph, fuser: Fuser) -> frozenset[int]:
    """Tables that are cast to a wider type, of a backend that casts tables whole."""
    tables = set[int]()
    for op in graph.ops if fuser.tables == "whole" else ():
        if op.opcode != GATHER or not graph.varies[table := looked_up(graph, op)]:
            continue
        producer = graph.values[table].producer
        if producer >= 0 and (cast := graph.ops[producer]).opcode == CONVERT:
            before, after = (DTYPE_BITS[graph.values[v].dtype] for v in (cast.inputs[0], table))
            if before < after:
                tables.add(table)
    return frozenset(tables)


def is_of_products(graph: Graph, value: int) -> bool:
    """Whether products of matrices alone use a value, in whatever order of dimensions or type."""
    todo = [value]
    while todo:
        for user in graph.users[todo.pop()]:
            op = graph.ops[user]
            if op.opcode in EACH_ELEMENT:
                todo.extend(op.outputs)
            elif op.opcode != DOT:
                return False
    return True


def part_of_operand(n_bytes: Sequence[int], op: Op, position: int) -> int:
    """Bytes an op looks at of one operand."""
    if position == 0 and op.opcode in READS_PART:
        return n_bytes[op.outputs[0]]
    if position == 0:
        return part_of_result(n_bytes, op)
    return WHOLE


def part_of_result(n_bytes: Sequence[int], op: Op) -> int:
    """Bytes an op changes of its result (and of the operand it updates in place)."""
    if op.opcode == DYNAMIC_UPDATE_SLICE:
        return n_bytes[op.inputs[1]]
    if op.opcode == SCATTER:
        return n_bytes[op.inputs[-1]]
    return WHOLE


class Sources:
    """Stored values each value is made from; decides what recomputing would cost too much, but for
    what is `on_the_way` within a product's kernel.
    """

    def __init__(
        self,
        graph: Graph,
        stored: list[bool],
        n_bytes: Sequence[int],
        fuser: Fuser,
        on_the_way: Collection[int],
    ):
        self.graph = graph
        self._remade, self._cuts = fuser.remade, fuser.cuts
        self._on_the_way = on_the_way
        self._has_products = fuser.products == "fused"
        self.stored = stored
        self.n_bytes = n_bytes
        self._tables = {v for v in wide_tables(graph, fuser) if not stored[v]}
        # Of each value (stored value, the cut that it is read through or itself): bytes.
        self._parts_by_value: list[Parts] = [{} for _ in graph.values]
        for value, is_stored in enumerate(stored):
            if is_stored:
                self._parts_by_value[value] = {(value, value): n_bytes[value]}
        for op in graph.ops:
            # What a contraction makes and does not store is at hand for the op that it is fused
            # with.
            if op.opcode not in CONTRACTIONS:
                self._visit(op)
        for value in self._tables:
            stored[value] = True

    def parts(self, op: Op, positions: Sequence[int]) -> Parts:
        """What is read to have the operands of an op at these positions.

        What several of them are made of is read once, but of each cut its own part. In the order of
        the operands, which says whose memory a result takes.
        """
        result: Parts = {}
        for position in positions:
            own = self._parts_by_value[op.inputs[position]]
            if op.opcode == GATHER and position == 0:
                table = looked_up(self.graph, op)
                own = {(table, table): self.n_bytes[table]} if table in self._tables else own
            part = part_of_operand(self.n_bytes, op, position)
            # Through a slice only the slice is read, however large what it is cut from is.
            if position == 0 and op.opcode in READS_PART:
                own = {
                    (source, op.outputs[0]): n_read for source, n_read in self.whole(own).items()
                }
            for key, n_read in sorted(own.items()):
                result[key] = max(result.get(key, 0), min(n_read, part))
        return result

    def whole(self, parts: Parts) -> dict[int, int]:
        """Bytes of each stored value in `parts`: several cuts of one, which may overlap, are at
        most all of it where they are not read one by one.
        """
        result: dict[int, int] = {}
        for (source, _), n_read in parts.items():
            most = self.n_bytes[source] if self._cuts == "overlap" else WHOLE
            result[source] = min(result.get(source, 0) + n_read, most)
        return result

    def _visit(self, op: Op) -> None:
        for value in op.outputs:
            if self.stored[value] or not self.graph.varies[value]:
                continue
            parts = self.parts(op, range(len(op.inputs)))
            if self._is_kept(value, sum(self.whole(parts).values())):
                self.stored[value] = True
                parts = {(value, value): self.n_bytes[value]}
            self._parts_by_value[value] = parts

    def _is_kept(self, value: int, source_bytes: int) -> bool:
        """Whether a value is written that each of its users could make of `source_bytes`."""
        users, own_bytes = len(self.graph.users[value]), self.graph.values[value].n_bytes
        if self._remade == "if all read less":
            users = self._readers(value)
        if users < 2 or value in self._on_the_way:
            return False
        if self._remade == "cheap":
            is_of_two = self._has_products and users == 2 and is_of_products(self.graph, value)
            ratio = _PRODUCTS_REMAKE_RATIO if is_of_two else _RECOMPUTE_RATIO
            return source_bytes > ratio * own_bytes
        return users * source_bytes > source_bytes + (1 + users) * own_bytes

    def _readers(self, value: int) -> int:
        """The ops that use a value, cast to a wider type or not: narrow it would be written."""
        ops = [self.graph.ops[user] for user in self.graph.users[value]]
        return sum(self._readers(op.outputs[0]) if self._widens(op) else 1 for op in ops)

    def _widens(self, op: Op) -> bool:
        if op.opcode != CONVERT:
            return False
        given, made = (self.graph.values[v].dtype for v in (op.inputs[0], op.outputs[0]))
        return DTYPE_BITS[given] < DTYPE_BITS[made]
