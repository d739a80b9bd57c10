"""Sums that backends do not reduce where the plan makes them: added up first, or after a loop's last trip.

The pipelines of TPU and GPU turn all-reduce(a) + all-reduce(b) into all-reduce(a + b), and a loop whose carry is

    c <- c + all-reduce(d)     into     c <- c + d,  with one all-reduce of what the loop ends with

(XLA's all-reduce-reassociate and while-loop-all-reduce-code-motion; compared with the TPU compiler, for GPUs only
read from its list of passes).  So a value that is only added to others of its
kind is a *term*, all terms of one sum have one name (those are added first that come before any that is reduced otherwise,
`automap.cost.flows.without_merged_terms`), and a sum may be reduced at the trip count outside of a
loop instead of its own; reduce-scatters stay where they are, and so does what is sliced before it is added.  A scatter-add is first merged with what it is added to, whatever that is.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations

from hlo_tools.graph import LOOP_EXIT, Graph, Op
from hlo_tools.kernels import CONTRACTIONS


@dataclass(frozen=True)
class Sums:
    """The name of each term's sum, and how often those terms are reduced that are not in every trip."""

    name_of: Mapping[int, int]
    trips_of: Mapping[int, int]

    def trips(self, value: int, otherwise: int) -> int:
        """How often a value is reduced in a step."""
        return self.trips_of.get(value, otherwise)


def merged_sums(graph: Graph) -> Sums:
    """The sums of a step, as the backends that merge them have them."""
    terms = _Terms()
    trips_of: dict[int, int] = {}
    used_once = [len(users) == 1 for users in graph.users]
    for value in graph.outputs:
        used_once[value] = False
    enter_of = {leave: graph.ops[enter] for enter, leave in graph.exit_of.items()}
    for index, op in enumerate(graph.ops):
        if op.opcode == LOOP_EXIT:
            enter = enter_of[index]
            for term, result in _accumulated(graph, enter, op, used_once):
                if term in terms.name_of:
                    inside = terms.members[terms.name_of[term]]
                    trips_of.update(dict.fromkeys(inside, enter.trip_count))
                    terms.merge(term, result)
        elif op.opcode == "add":
            left, right = op.inputs
            if left != right and all(used_once[v] and v in terms.name_of for v in op.inputs):
                terms.merge(left, right)
                terms.merge(left, op.outputs[0])
        elif keeps_elements(graph, op):
            if used_once[op.inputs[0]] and op.inputs[0] in terms.name_of:
                terms.merge(op.inputs[0], op.outputs[0])
        elif op.opcode in CONTRACTIONS or _is_sum(op):
            terms.merge(op.outputs[0], op.outputs[0])
    return Sums({**_scatters(graph), **terms.name_of}, trips_of)


def keeps_elements(graph: Graph, op: Op) -> bool:
    """Whether an op permutes dimensions, or adds or drops some of one: the gradient of a broadcast does."""
    if op.opcode == "transpose":
        return True
    if op.opcode not in ("reshape", "reduce") or op.is_joint_reduction:
        return False
    before, after = (
        [size for size in graph.values[v].dims if size > 1] for v in (op.inputs[0], op.outputs[0])
    )
    return before == after


def _is_sum(op: Op) -> bool:
    return op.opcode == "reduce" and op.instruction.attributes.combiner == "add"


@dataclass(frozen=True)
class _Terms:
    """Terms of sums so far; the name of a sum is its first term."""

    name_of: dict[int, int] = field(default_factory=dict)
    members: dict[int, list[int]] = field(default_factory=dict)

    def merge(self, value: int, other: int) -> None:
        """Make both terms of one sum."""
        kept, gone = (self.name_of.get(v, v) for v in (value, other))
        moved = [gone] if kept == gone else self.members.pop(gone, [gone])
        self.members.setdefault(kept, []).extend(moved)
        for member in moved:
            self.name_of[member] = kept


def _accumulated(
    graph: Graph, enter: Op, leave: Op, used_once: Sequence[bool]
) -> Iterator[tuple[int, int]]:
    """(term, result of the loop) for each carry that the term is added to in every trip, and no more."""
    for carried, root, result in zip(enter.outputs, leave.inputs, leave.outputs, strict=True):
        producer = graph.values[root].producer
        if producer >= 0 and graph.ops[producer].opcode == "add" and used_once[root]:
            for term, other in permutations(graph.ops[producer].inputs):
                if other == carried and used_once[carried] and used_once[term]:
                    yield term, result


def _scatters(graph: Graph) -> dict[int, int]:
    """Scatters that are added up, and a name of the chain of additions."""
    returned = set(graph.outputs)
    chain: dict[int, int] = {}
    for op in reversed(graph.ops):
        if op.opcode == "add":
            name = chain.get(op.outputs[0], op.outputs[0])
            for term in op.inputs:
                if len(graph.users[term]) == 1 and term not in returned:
                    chain[term] = name
    return {
        op.outputs[0]: chain[op.outputs[0]]
        for op in graph.ops
        if op.opcode == "scatter" and op.outputs[0] in chain
    }
