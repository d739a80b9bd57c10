"""What depends on the batch and what on parameters alone, value by value.

    batched[v]   whether v depends on a batch input: it is a part of each microbatch, and crosses
                 cuts
    roots[v]     of a value that does not: the parameters it is made of. Every stage that reads it
                 makes it itself, so a cut costs it no transfer, but the stage holds those
                 parameters

Forward and backward passes are programs of their own: what one reads of the other is in memory, and
nothing is fused over it                                                -> in: `left_for_backward`

A loop's carry depends on what enters and on what a trip makes of it, so the program is read until
nothing changes                                                              -> in: `data_flow`
"""

from collections.abc import Sequence
from dataclasses import dataclass

from automap.program.problem import Problem
from hlo_tools.analyses.phases import Phase
from hlo_tools.analyses.roles import Role
from hlo_tools.graph import Graph, HandOver
from hlo_tools.opcodes import DYNAMIC_SLICE, DYNAMIC_UPDATE_SLICE, LOOP_ENTER, LOOP_EXIT


_NOTHING: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Flow:
    """Per value: `batched`, and `roots` (positions in `Graph.inputs`) of one that is not."""

    batched: Sequence[bool]
    roots: Sequence[frozenset[int]]


def data_flow(problem: Problem) -> Flow:
    """The flow of a whole step."""
    graph = problem.graph
    batched = [False] * len(graph.values)
    roots = [_NOTHING] * len(graph.values)
    for position, (value, role) in enumerate(zip(graph.inputs, problem.roles, strict=True)):
        batched[value] = role is Role.BATCH
        if role in (Role.PARAMETER, Role.STATE):
            roots[value] = frozenset((position,))
    # A fixed point: it only grows, so the loop ends after at most one pass for each carry.
    carried: set[int] = set()
    while True:
        _read(graph, batched, roots, carried)
        depending = {
            carry
            for enter, leave in graph.exit_by_entry.items()
            for carry, made in zip(graph.ops[enter].outputs, graph.ops[leave].inputs, strict=True)
            if batched[made]
        }
        if depending <= carried:
            return Flow(batched, roots)
        carried |= depending


def _read(
    graph: Graph, batched: list[bool], roots: list[frozenset[int]], carried: set[int]
) -> None:
    """One pass; `carried` are the loop carries that are known to depend on the batch."""
    for op in graph.ops:
        if op.opcode in (LOOP_ENTER, LOOP_EXIT):
            for source, value in zip(op.inputs, op.outputs):
                batched[value] = batched[source] or value in carried
                roots[value] = _NOTHING if batched[value] else roots[source]
            continue
        depends = any(batched[v] for v in op.inputs)
        # The union is made only where there is something: most values share one set of roots.
        sources_by_output = _NOTHING
        if not depends:
            for value in op.inputs:
                if roots[value]:
                    sources_by_output = (
                        sources_by_output | roots[value] if sources_by_output else roots[value]
                    )
        for value in op.outputs:
            batched[value], roots[value] = depends, sources_by_output


def left_for_backward(problem: Problem, flow: Flow) -> frozenset[int]:
    """The values of the forward pass, of examples, that ops of the backward pass read."""
    graph, phases = problem.graph, problem.phases

    def is_left(value: int) -> bool:
        producer = graph.values[value].producer
        return producer >= 0 and phases[producer] is Phase.FORWARD and flow.batched[value]

    backward = (op for op, phase in zip(graph.ops, phases, strict=True) if phase is Phase.BACKWARD)
    return frozenset(value for op in backward for value in op.inputs if is_left(value))


def is_stack(graph: Graph, leave: int, position: int) -> bool:
    """Whether a loop fills its carry at `position` slice by slice; `leave` is the op that ends
    it.
    """
    producer = graph.values[graph.ops[leave].inputs[position]].producer
    return producer >= 0 and graph.ops[producer].opcode == DYNAMIC_UPDATE_SLICE


def is_sliced(graph: Graph, carry: int, trips: int) -> bool:
    """Whether every trip of a loop reads a slice of its own of a carry that the trips hand on
    unchanged.
    """
    dims, users = graph.values[carry].dims, graph.users[carry]
    readers = [graph.ops[u] for u in users if graph.ops[u].opcode != LOOP_EXIT]
    return (
        bool(dims)
        and dims[0] == trips
        and graph.hand_over(carry) is HandOver.KEPT
        and bool(readers)
        and all(op.opcode == DYNAMIC_SLICE and op.inputs[0] == carry for op in readers)
    )


def trips_per_entry(graph: Graph, enter: int) -> int:
    """How often the loop that op `enter` enters runs its body each time."""
    # Trip counts are products over all loops that an op is in: the quotient is this loop's own.
    first = enter + 1
    if first == graph.exit_by_entry[enter]:
        return 1
    return graph.ops[first].trip_count // graph.ops[enter].trip_count
