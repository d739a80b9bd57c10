"""How often a value changes in a step: what a loop only carries along is the same in every trip.

    changes(v) = 1                                       a step input, a constant
               = changes(source)                         a carry that the body passes on as it is
               = trips of the loop                       any other carry
               = min(trips(op), max over inputs changes) what an op makes

XLA moves work on such values out of the loop, collectives too.
"""

from collections.abc import Sequence

from hlo_tools.graph import Graph
from hlo_tools.opcodes import LOOP_ENTER, LOOP_EXIT


_EVERY_TRIP = 1 << 60


def changes(graph: Graph) -> Sequence[int]:
    """For each value, how often it takes a new value in one step."""
    result = [1] * len(graph.values)
    for index, op in enumerate(graph.ops):
        if op.opcode == LOOP_ENTER:
            kept = passed_on(graph, index)
            for source, carried in zip(op.inputs, op.outputs):
                result[carried] = result[source] if carried in kept else _EVERY_TRIP
        else:
            # A loop's results are new whenever the loop runs.
            read = op.inputs if op.opcode != LOOP_EXIT else ()
            most = max((result[v] for v in read), default=1 if not op.inputs else op.trip_count)
            for value in op.outputs:
                result[value] = min(op.trip_count, most)
    return result


def passed_on(graph: Graph, loop: int) -> frozenset[int]:
    """The carries of the loop that `graph.ops[loop]` enters that its body passes on as they are."""
    enter, leave = graph.ops[loop], graph.ops[graph.exit_by_entry[loop]]
    return frozenset(c for c, last in zip(enter.outputs, leave.inputs) if c == last)
