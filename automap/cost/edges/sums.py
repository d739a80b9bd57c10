"""Sums that backends do not reduce where the plan makes them: added up first, or after a loop's
last trip.

Compilers turn all-reduce(a) + all-reduce(b) into all-reduce(a + b), and a loop whose carry is

    c <- c + all-reduce(d)     into     c <- c + d,  with one all-reduce of what the loop ends with

(XLA's all-reduce-reassociate and while-loop-all-reduce-code-motion). So a value that is only added
to others of its kind is a *term*, all terms of one sum have one name (those are added first that
come before any that is reduced otherwise, `automap.cost.traffic.flows.clear_merged_terms`), and a
sum may be reduced at the trip count outside of a loop instead of its own; reduce-scatters stay
where they are, and so does what is sliced before it is added. A scatter-add is first merged with
what it is added to, whatever that is.

Terms that are added to something else besides cannot be added up first, as the gradients of
queries, keys and values that meet in the residual stream. They are reduced side by side: nothing of
one chain of additions is made of another part of it                     -> in: `addition_chains`

A term may be converted before a loop adds it up (d made in bfloat16, c in float32): what leaves
the loop is of the carry's type, `Sums.widened`. A compiler that takes sums out of loops before it
merges any leaves those that a trip adds to each other; one that merges first does so also with
what is converted                                                             -> in: `Order`
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Literal

from automap.cost.edges.loops import innermost_loops
from hlo_tools.graph import DTYPE_BITS, Graph, Op
from hlo_tools.opcodes import CONTRACTIONS, LOOP_EXIT


Order = Literal["loops first", "terms first"]
"""What a backend does first: take sums out of loops, or merge terms."""


@dataclass(frozen=True)
class Sums:
    """The sum of each term, named by its first term, and how often those terms are reduced that are
    not in every trip.

    `widened` is how many times its bytes an all-reduce of a term has that is reduced in a wider
    type.
    """

    sum_by_term: Mapping[int, int]
    trips_by_term: Mapping[int, int]
    widened: Mapping[int, float]

    def trips(self, value: int, otherwise: int) -> int:
        """How often a value is reduced in a step."""
        return self.trips_by_term.get(value, otherwise)

    def whole(self, graph: Graph) -> Mapping[int, int]:
        """For each term the last that a trip of its loop makes of it and others of its sum."""
        loops = innermost_loops(graph)
        last: dict[tuple[int, int], int] = {}
        place = {}
        for term, name in self.sum_by_term.items():
            made = graph.values[term].producer
            place[term] = one = name, loops[made]
            # What only moves elements of a term may be part of a kernel that comes much later.
            if not keeps_elements(graph, graph.ops[made]) and (
                one not in last or made > graph.values[last[one]].producer
            ):
                last[one] = term
        return {term: last[one] for term, one in place.items() if one in last}


def merged_sums(graph: Graph, order: Order) -> Sums:
    """The sums of a step, as the backends that merge them have them."""
    terms = _Terms(graph)
    trips_by_term: dict[int, int] = {}
    # Only what nobody else reads may be left unreduced.
    used_once = [len(users) == 1 for users in graph.users]
    for value in graph.outputs:
        used_once[value] = False
    entry_by_exit = {leave: graph.ops[enter] for enter, leave in graph.exit_by_entry.items()}
    leaves_loops, is_term = terms.is_single, terms.is_unconverted
    # With terms merged before loops are looked at, a sum of terms, or a converted one, is one more
    # term that may leave the loop.
    if order == "terms first":
        leaves_loops = is_term = terms.is_any
    for index, op in enumerate(graph.ops):
        if op.opcode == LOOP_EXIT:
            enter = entry_by_exit[index]
            for value, result in _accumulated(graph, enter, op, used_once):
                if leaves_loops(value):
                    inside = terms.like(value)
                    trips_by_term.update(dict.fromkeys(inside, enter.trip_count))
                    terms.merge(terms.source(value), result)
        elif op.opcode == "add":
            left, right = op.inputs
            # x + x is one term twice, which stays as it is.
            if left != right and all(used_once[v] and is_term(v) for v in op.inputs):
                terms.add(left, right, op.outputs[0])
        elif op.opcode == "convert" or keeps_elements(graph, op):
            if used_once[op.inputs[0]]:
                terms.hand_on(op)
        # What sums over a dimension makes a term: partial, if that dimension is split.
        elif op.opcode in CONTRACTIONS or _is_sum(op):
            terms.merge(op.outputs[0], op.outputs[0])
    return Sums({**_scatters(graph), **terms.sum_by_term}, trips_by_term, terms.widened)


def keeps_elements(graph: Graph, op: Op) -> bool:
    """Whether an op permutes dimensions, or adds or drops some of one: the gradient of a broadcast
    does.
    """
    if op.opcode == "transpose":
        return True
    if op.opcode not in ("reshape", "reduce") or op.is_joint_reduction:
        return False
    before, after = (
        [size for size in graph.values[v].dims if size > 1] for v in (op.inputs[0], op.outputs[0])
    )
    # Sizes of 1 do not count: a reduction over one element only drops it.
    return before == after


def _is_sum(op: Op) -> bool:
    return op.opcode == "reduce" and op.instruction.attributes.combiner == "add"


@dataclass(frozen=True)
class _Terms:
    """Terms of sums so far; the name of a sum is its first term.

    `converted` are terms in a wider type, and what they were; `added` those that are sums of
    several.
    """

    graph: Graph
    sum_by_term: dict[int, int] = field(default_factory=dict)
    members: dict[int, list[int]] = field(default_factory=dict)
    converted: dict[int, int] = field(default_factory=dict)
    added: set[int] = field(default_factory=set)
    widened: dict[int, float] = field(default_factory=dict)

    def source(self, value: int) -> int:
        """What a value was before it was converted."""
        return self.converted.get(value, value)

    def is_any(self, value: int) -> bool:
        """Whether a value is a term, perhaps in a wider type."""
        return self.source(value) in self.sum_by_term

    def is_unconverted(self, value: int) -> bool:
        """Whether it is one in the type that it was made in."""
        return value in self.sum_by_term

    def is_single(self, value: int) -> bool:
        """Whether it is one that is no sum of others."""
        return self.is_any(value) and value not in self.added

    def like(self, value: int) -> list[int]:
        """All terms of its sum."""
        return self.members[self.sum_by_term[self.source(value)]]

    def add(self, left: int, right: int, result: int) -> None:
        """Make two terms, and what is their sum, terms of one."""
        self.merge(self.source(left), self.source(right))
        self.merge(self.source(left), result)
        self.added.add(result)

    def hand_on(self, op: Op) -> None:
        """Make what an op that moves or converts elements makes of a term one, too."""
        value, result = op.inputs[0], op.outputs[0]
        if not self.is_any(value):
            return
        if value in self.added:
            self.added.add(result)
        if value in self.converted or op.opcode == "convert":
            if self._bits(result) > self._bits(self.source(value)):
                self.converted[result] = self.source(value)
        else:
            self.merge(value, result)

    def merge(self, value: int, other: int) -> None:
        """Make both terms of one sum, reduced in the type of the wider."""
        # The union of two sets with lists of members: the second takes the first's name.
        kept, gone = (self.sum_by_term.get(v, v) for v in (value, other))
        moved = [gone] if kept == gone else self.members.pop(gone, [gone])
        self.members.setdefault(kept, []).extend(moved)
        for member in moved:
            self.sum_by_term[member] = kept
        widest = max(self._bits(value), self._bits(other))
        if self._bits(value) != self._bits(other):
            self.widened.update({m: widest / self._bits(m) for m in self.members[kept]})

    def _bits(self, value: int) -> int:
        return DTYPE_BITS[self.graph.values[value].dtype]


def _accumulated(
    graph: Graph, enter: Op, leave: Op, used_once: Sequence[bool]
) -> Iterator[tuple[int, int]]:
    """(term, result of the loop) for each carry that the term is added to in every trip, and no
    more.
    """
    for carried, root, result in zip(enter.outputs, leave.inputs, leave.outputs, strict=True):
        producer = graph.values[root].producer
        if producer >= 0 and graph.ops[producer].opcode == "add" and used_once[root]:
            # An addition may have the carry on either side.
            for term, other in permutations(graph.ops[producer].inputs):
                if other == carried and used_once[carried] and used_once[term]:
                    yield term, result


def _scatters(graph: Graph) -> dict[int, int]:
    """Scatters that are added up, and a name of the chain of additions."""
    chain = addition_chains(graph, hands_on=lambda op: False)
    return {
        op.outputs[0]: chain[op.outputs[0]]
        for op in graph.ops
        if op.opcode == "scatter" and op.outputs[0] in chain
    }


def addition_chains(graph: Graph, hands_on: Callable[[Op], bool]) -> Mapping[int, int]:
    """For each value that is only added to something, also after an op that `hands_on` what it
    reads, a name of the chain of additions: none of one chain is made of another.
    """
    returned = set(graph.outputs)
    chain: dict[int, int] = {}
    # From the last addition backwards, so that all terms get the name of the outermost sum.
    for op in reversed(graph.ops):
        is_handed_on = bool(op.outputs) and op.outputs[0] in chain and hands_on(op)
        if op.opcode == "add" or is_handed_on:
            name = chain.get(op.outputs[0], op.outputs[0])
            for term in op.inputs if op.opcode == "add" else op.inputs[:1]:
                if len(graph.users[term]) == 1 and term not in returned:
                    chain[term] = name
    return chain
