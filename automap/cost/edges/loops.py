"""Messages in loops: nothing is merged over the trips of a loop, but what one trip sends may be.

A collective of B bytes that goes together with others of its trip, T bytes in all, is B / T of a
message; outside of loops anything may be merged                        -> in: `part_of_message`
"""

from hlo_tools.graph import Graph
from hlo_tools.opcodes import LOOP_ENTER, LOOP_EXIT


def part_of_message(n_bytes: int, together: int, trips: int) -> float:
    """The part of a message that one is at least of which `together` bytes go in one of `trips`."""
    if trips == 1:
        return 0.0
    return min(n_bytes / together, 1.0) if together else 1.0


def innermost_loops(graph: Graph) -> list[int]:
    """For each op the one that enters the loop it is in, -1 for none."""
    innermost, around = [], [-1]
    for index, op in enumerate(graph.ops):
        if op.opcode == LOOP_ENTER:
            around.append(index)
        # Both ends of a loop count as inside of it.
        innermost.append(around[-1])
        if op.opcode == LOOP_EXIT:
            around.pop()
    return innermost
