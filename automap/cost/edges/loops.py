"""Messages in loops: nothing is merged over the trips of a loop, but what one trip sends may be.

A collective of B bytes that goes together with others of its trip, T bytes in all, is B / T of a
message; outside of loops anything may be merged                        -> in: `part_of_message`
Those over the same axes are a message at least, whatever others there are, and outside of loops
those of one phase                                                         -> in: `whole_messages`

A stack that a loop carries and fills slice by slice has one sharding all the while, that of its
updates: it is moved where the loop begins and ends                        -> in: `filled_stacks`

What a trip hands to the next is as well made at its end, and sums that it is made of are waited for
no earlier                                                                  -> in: `carried_ops`
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from hlo_tools.graph import Graph
from hlo_tools.opcodes import DYNAMIC_UPDATE_SLICE, ELEMENTWISE, LOOP_ENTER, LOOP_EXIT


def part_of_message(n_bytes: int, together: int, trips: int) -> float:
    """The part of a message that one is at least of which `together` bytes go in one of `trips`."""
    if trips == 1:
        return 0.0
    return min(n_bytes / together, 1.0) if together else 1.0


def whole_messages(
    messages: np.ndarray, group: np.ndarray, loop: np.ndarray, runs: np.ndarray
) -> np.ndarray:
    """`messages`, the parts that collectives are of messages, but where those that go together in
    one trip of a loop, or outside of loops, are less than a whole one.

    All arrays are [collectives]: `group` those that can be merged (one kind, over the same axes,
    sums of one type), `loop` -1 outside and -2 of what is never merged, `runs` of one trip. Where
    none of them has a byte nothing is sent.
    """
    # One number for each pair: of rows numpy finds the different ones much more slowly.
    pair = (loop + 2) * (group.max(initial=0) + 1) + group
    together = np.unique(pair, return_inverse=True)[1]
    parts = np.bincount(together, messages * runs)[together]
    is_less = (loop >= -1) & (parts > 0.0) & (parts < 1.0)
    return np.divide(messages, parts, out=messages.copy(), where=is_less)


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


class FilledStack(NamedTuple):
    """A stack: what it begins as, how often its loop runs in a step, and the op that enters the
    loop around that one, -1 for none.
    """

    source: int
    trips: int
    around: int


def filled_stacks(graph: Graph) -> Mapping[int, FilledStack]:
    """The ops that update a stack which the loop around them hands on."""
    updates, around = dict[int, FilledStack](), [-1]
    for index, op in enumerate(graph.ops):
        if op.opcode == LOOP_ENTER:
            around.append(index)
        elif op.opcode == LOOP_EXIT:
            around.pop()
        elif op.opcode == DYNAMIC_UPDATE_SLICE and around[-1] >= 0:
            enter = graph.ops[around[-1]]
            leave = graph.ops[graph.exit_by_entry[around[-1]]]
            for source, *carried in zip(enter.inputs, enter.outputs, leave.inputs):
                if carried == [op.inputs[0], op.outputs[0]]:
                    updates[index] = FilledStack(source, enter.trip_count, around[-2])
    return updates


def carried_ops(graph: Graph) -> Mapping[int, int]:
    """The ops whose results only the end of a loop reads, or other ops element by element that are
    so too, and the op that ends the loop.
    """
    return graph.remember(_carried_ops)


def _carried_ops(graph: Graph) -> Mapping[int, int]:
    carried = dict[int, int]()
    # From the last op to the first, so that all readers come before what they read.
    for index in range(len(graph.ops) - 1, -1, -1):
        op = graph.ops[index]
        readers = {user for value in op.outputs for user in graph.users[value]}
        leaves = {user for user in readers if graph.ops[user].opcode == LOOP_EXIT}
        if op.opcode in ELEMENTWISE:
            handed_on = {u for u in readers & carried.keys() if graph.ops[u].opcode in ELEMENTWISE}
            leaves |= {carried[user] for user in handed_on}
            readers -= handed_on
        if len(leaves) == 1 and readers <= leaves:
            (carried[index],) = leaves
    return carried
