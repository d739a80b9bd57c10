"""The program of one representative device under a plan, as a region (`automap.simulate.region`).

Every device runs the same program on parts of the same size, so one of them stands for all. The ops
are walked in the order of the schedule; what is fused to a kernel hands on what it waits for:

    operand edge that communicates    kernels of the operand -> collective -> kernels with the op,
                                      of which the first may turn what was gathered
    result edge that communicates     kernels with the op -> collective -> kernels that read it
    parameters, and all that was there before the step or the trip: nothing to wait for

A sum that leaves its loops (`automap.cost.edges.sums`) follows the outermost of them. What a table
row runs in a step is shared among its places in the program as `automap.cost.schedule.order` says.
"""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from automap.cost.evaluate import Priced
from automap.cost.schedule.order import ENTER, EXIT, LATE, SPARE, Places
from automap.cost.tables import Tables
from automap.cost.traffic.flows import ALL_REDUCE
from automap.simulate.region import Node, NodeKind, Region
from hlo_tools.graph import Graph
from hlo_tools.opcodes import LOOP_ENTER, LOOP_EXIT


# `Node.number` of what is no op: the first touch of the step's memory, and the wait for state that
# the host's memory has.
NEW_MEMORY = -1
HOST_MEMORY = -2
_NOTHING: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class _Message:
    """A collective at one place of the program; `total_seconds` of all its runs in a step, and
    `copying_seconds` of the kernels that copy what it sends, or has sent.
    """

    entry: int
    edge: int
    total_seconds: float
    copying_seconds: float
    slot: int
    is_urgent: bool
    leaves_loops: bool


@dataclass
class _Frame:
    """A region that is being built, which runs `runs` times in a step; `enters` is the op that
    enters the loop and `after` what the loop waits for. `made_by` are the nodes that make each
    value available, `gathered` the collective that did so for an operand edge.
    """

    runs: int
    enters: int = -1
    after: frozenset[int] = _NOTHING
    nodes: list[Node] = field(default_factory=list)
    made_by: dict[int, frozenset[int]] = field(default_factory=dict)
    gathered: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1


class _Builder:
    """Walks the ops of a graph once; `messages` by (value, op) of operand and result edges."""

    def __init__(self, tables: Tables, priced: Priced):
        order, problem = tables.order, tables.program.problem
        self.graph: Graph = problem.graph
        is_end = (order.kind == ENTER) | (order.kind == EXIT)
        self.end_by_op = {int(order.op[slot]): int(slot) for slot in np.flatnonzero(is_end)}
        # Of a loop what is written before it; of other ops their kernel, and copies behind it.
        self.kernels: dict[int, list[int]] = defaultdict(list)
        for slot in np.flatnonzero(~is_end):
            self.kernels[int(order.op[slot])].append(int(slot))
        self.is_spare = (order.kind == SPARE) | (order.kind == LATE)
        self.row = order.row
        self.kernel_seconds = priced.kernel_seconds
        self.operands = _messages(order.operands, priced, len(order.kind), on_operand=True)
        self.results = _messages(order.results, priced, len(order.kind), on_operand=False)
        # Operands that an earlier op gathered in the same region: they are there already.
        self.repeats = _repeats(tables, priced)
        self.frames = [_Frame(runs=1)]
        # Sums that leave their loops: they are made once, after the outermost of them.
        self.late: list[tuple[_Message, int, int]] = []

    def walk(self, index: int) -> None:
        """Add what one op does."""
        op, frame = self.graph.ops[index], self.frames[-1]
        if op.opcode == LOOP_EXIT:
            self._leave(index)
            return
        # Each value once, in the order of inputs, which is that of the op's collectives.
        before = [self._read(frame, value, index) for value in dict.fromkeys(op.inputs)]
        made = _NOTHING.union(*before)
        if op.opcode == LOOP_ENTER:
            # The op after it in the graph is in the body, or ends the loop.
            runs = self.graph.ops[index + 1].trip_count
            written = [
                frame.add(self._kernel(index, slot, made)) for slot in self.kernels.get(index, ())
            ]
            made = made.union(written)
            self.frames.append(_Frame(runs=runs, enters=index, after=made))
            return
        # An op without a slot is fused to others: its readers wait for what it would wait for.
        for slot in self.kernels.get(index, ()):
            made = frozenset({frame.add(self._kernel(index, slot, made))})
        for value in op.outputs:
            frame.made_by[value] = self._written(frame, value, index, made)

    def _kernel(self, index: int, slot: int, after: frozenset[int]) -> Node:
        return Node(
            kind=NodeKind.SPARE if self.is_spare[slot] else NodeKind.KERNEL,
            number=index,
            slot=slot,
            after=tuple(sorted(after)),
            seconds=float(self.kernel_seconds[self.row[slot]]),
        )

    def _read(self, frame: _Frame, value: int, op: int) -> frozenset[int]:
        """What an op waits for to read a value, with the collectives that it needs."""
        made = frame.made_by.get(value, _NOTHING)
        earlier = self.repeats.get((value, op))
        if earlier is not None and (earlier[0], value) in frame.gathered:
            node = frame.gathered[earlier[0], value]
            frame.gathered[earlier[1], value] = node
            made = frozenset({node})
        for message in self.operands.get((value, op), ()):
            # Of several collectives on one edge each takes what the one before it made.
            made = frozenset({frame.add(_collective(message, frame, value, op, made))})
            made = self._copied(NodeKind.KERNEL, message, frame, op, made)
            (frame.gathered[message.edge, value],) = made
        return made

    def _written(self, frame: _Frame, value: int, op: int, made: frozenset[int]) -> frozenset[int]:
        """What reading an op's result waits for, with the collectives it goes through."""
        for message in self.results.get((value, op), ()):
            if message.leaves_loops and len(self.frames) > 1:
                self.late.append((message, value, op))
            else:
                made = self._sent(message, frame, value, op, made)
        return made

    def _sent(
        self, message: _Message, frame: _Frame, value: int, op: int, made: frozenset[int]
    ) -> frozenset[int]:
        """A collective of a result, behind the kernels that copy it."""
        made = self._copied(NodeKind.SPARE, message, frame, op, made)
        return frozenset({frame.add(_collective(message, frame, value, op, made))})

    @staticmethod
    def _copied(
        kind: NodeKind, message: _Message, frame: _Frame, op: int, after: frozenset[int]
    ) -> frozenset[int]:
        """What is made when the kernels have run that copy what a collective sends or has sent."""
        if not message.copying_seconds or not frame.runs:
            return after
        copies = Node(
            kind=kind,
            number=op,
            slot=message.slot,
            after=tuple(sorted(after)),
            seconds=message.copying_seconds / frame.runs,
        )
        return frozenset({frame.add(copies)})

    def _leave(self, index: int) -> None:
        body, op = self.frames.pop(), self.graph.ops[index]
        frame = self.frames[-1]
        # Both count runs in a step, so their quotient is the loop's own number of trips.
        trips = body.runs // frame.runs if frame.runs else 0
        loop = frame.add(
            Node(
                kind=NodeKind.LOOP,
                number=body.enters,
                slot=self.end_by_op[body.enters],
                after=tuple(sorted(body.after)),
                trips=trips,
                body=Region(tuple(body.nodes)),
            )
        )
        for value in op.outputs:
            frame.made_by[value] = self._written(frame, value, index, frozenset({loop}))
        # Outside of all loops: here the sums that were put off have all of their terms.
        if len(self.frames) == 1:
            for message, value, inner in self.late:
                self._sent(message, frame, value, inner, frozenset({loop}))
            self.late.clear()


def device_program(
    tables: Tables, priced: Priced, fresh_seconds: float = 0.0, host_seconds: float = 0.0
) -> Region:
    """The program of one device: one run of each kernel and collective takes what `priced` says.

    It begins with taking the memory that is new to it, if that takes `fresh_seconds`, and ends with
    `host_seconds` of waiting for the host's memory.
    """
    builder = _Builder(tables, priced)
    if fresh_seconds:
        builder.frames[0].add(
            Node(kind=NodeKind.KERNEL, number=NEW_MEMORY, slot=-1, after=(), seconds=fresh_seconds)
        )
    for index in np.argsort(tables.program.position, kind="stable").tolist():
        builder.walk(index)
    frame = builder.frames[0]
    if host_seconds:
        after = tuple(range(len(frame.nodes)))
        slot = len(tables.order.kind)
        frame.add(
            Node(
                kind=NodeKind.KERNEL,
                number=HOST_MEMORY,
                slot=slot,
                after=after,
                seconds=host_seconds,
            )
        )
    return Region(tuple(builder.frames[0].nodes))


def _collective(
    message: _Message, frame: _Frame, value: int, op: int, after: frozenset[int]
) -> Node:
    return Node(
        kind=NodeKind.COLLECTIVE,
        number=message.entry,
        slot=message.slot,
        after=tuple(sorted(after)),
        # A node has the seconds of one run of its region; the price is that of a whole step.
        seconds=message.total_seconds / frame.runs if frame.runs else 0.0,
        edge_op=op,
        edge_value=value,
        is_urgent=message.is_urgent,
    )


def _messages(
    places: Places, priced: Priced, n_slots: int, *, on_operand: bool
) -> dict[tuple[int, int], list[_Message]]:
    """The collectives at each (value, op)."""
    collectives, result = priced.collectives, defaultdict[tuple[int, int], list[_Message]](list)
    total = priced.collective_seconds * collectives.count
    joined = priced.copying_seconds * collectives.count
    chosen = np.flatnonzero((collectives.on_operand == on_operand) & (total > 0))
    for entry in chosen.tolist():
        edge, is_sum = (
            int(collectives.edge[entry]),
            not on_operand and collectives.kind[entry] == ALL_REDUCE,
        )
        is_late = bool(collectives.combinable[entry]) and not on_operand
        for at in range(int(places.first[edge]), int(places.first[edge + 1])):
            _, value, op, times, trips, _ = places.incidences[at].tolist()
            # What nothing of importance waits for comes after all slots, the first ready first.
            slot = n_slots + places.ready[at] if is_late else places.needed[at]
            result[value, op].append(
                _Message(
                    entry=entry,
                    edge=edge,
                    total_seconds=float(total[entry] * places.share[at]),
                    copying_seconds=float(joined[entry] * places.share[at]),
                    slot=int(slot),
                    is_urgent=not collectives.combinable[entry],
                    leaves_loops=is_sum and times < trips,
                )
            )
    return result


def _repeats(tables: Tables, priced: Priced) -> dict[tuple[int, int], tuple[int, int]]:
    """(value, op) whose operand is gathered already -> (the edge that gathered it, its own)."""
    edges, result = tables.operands, dict[tuple[int, int], tuple[int, int]]()
    earlier_edge = {
        int(later): int(earlier)
        for (later, earlier), repeats in zip(edges.repeats, priced.collectives.is_repeat)
        if repeats
    }
    for edge, value, op, *_ in edges.incidences.tolist():
        if edge in earlier_edge:
            result[value, op] = earlier_edge[edge], edge
    return result
