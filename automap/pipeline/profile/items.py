"""The forward pass as a line of items: what a pipeline can be cut between.

An *item* is a kernel of the forward pass that works on the batch, with all that is fused to it, in
program order. Cuts are between items, so no fusion is cut, and what crosses is in memory anyway. A
loop is one item, unless it is a scan over layers, whose trips each read a slice of their own of
some parameter: such a loop is unrolled, one item a trip                   -> in: `_is_over_layers`

Work that does not depend on the batch belongs to its first reader           -> in: `_first_readers`

    span[o] = (first, last) item of op o: equal but for an unrolled loop

Auto-MAP's pivots (section 3.4) are single instructions instead: more places, many of which would
cut a fusion.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from automap.pipeline.profile.flow import Flow, is_sliced, trips_per_entry
from automap.program.problem import Problem
from hlo_tools.analyses.accesses import Kernel
from hlo_tools.analyses.phases import Phase
from hlo_tools.graph import Graph


Span = tuple[int, int]


@dataclass(frozen=True)
class Loop:
    """An outermost loop of the forward pass: ops `enter` to `leave`; `trips` > 1 only if it is
    unrolled.
    """

    enter: int
    leave: int
    trips: int
    first_item: int

    @property
    def span(self) -> Span:
        """Its first and last item."""
        return self.first_item, self.first_item + self.trips - 1


@dataclass(frozen=True)
class Items:
    """`op_of_item[t]` is the op whose kernel item t is, the op that enters it for a loop."""

    op_of_item: Sequence[int]
    loops: Sequence[Loop]
    first_reader: Mapping[int, int]
    _first_items: Mapping[int, int] = field(repr=False)
    _ends: Sequence[int] = field(repr=False)

    def __len__(self) -> int:
        """Number of items."""
        return len(self.op_of_item)

    def span(self, op: int) -> Span:
        """Items of a forward op; of one fused into a later kernel, that kernel's."""
        for loop in self.loops:
            if loop.enter <= op <= loop.leave:
                return loop.span
        if op in self.first_reader:
            return self.first_reader[op], self.first_reader[op]
        # A kernel is known by its last op, so what is fused to it comes before that one.
        place = min(bisect_left(self._ends, op), len(self._ends) - 1)
        item = self._first_items[self._ends[place]]
        return item, item


def forward_items(problem: Problem, kernels: Sequence[Kernel], flow: Flow) -> Items:
    """The line of items of a step."""
    graph = problem.graph
    loops = list(_outermost(graph))
    inside = [False] * len(graph.ops)
    for enter, leave in loops:
        inside[enter : leave + 1] = [True] * (leave + 1 - enter)
    starts: dict[int, int] = {
        enter: leave for enter, leave in loops if problem.phases[enter] is Phase.FORWARD
    }
    made = {k.op for k in kernels if problem.phases[k.op] is Phase.FORWARD and not inside[k.op]}
    batched = {op for op in made if any(flow.batched[v] for v in graph.ops[op].outputs)}
    op_of_item: list[int] = []
    outermost: list[Loop] = []
    first_items: dict[int, int] = {}
    for op in sorted(batched | set(starts)):
        trips = 1
        if op in starts:
            trips = trips_per_entry(graph, op) if _is_over_layers(graph, flow, op) else 1
            outermost.append(Loop(op, starts[op], trips, len(op_of_item)))
        first_items[op] = len(op_of_item)
        op_of_item.extend([op] * trips)
    ends = sorted(first_items)
    # First readers are found along the line without them.
    line = Items(op_of_item, outermost, {}, first_items, ends)
    return Items(op_of_item, outermost, _first_readers(problem, flow, line), first_items, ends)


def _outermost(graph: Graph) -> Iterator[tuple[int, int]]:
    """(enter, leave) of loops that are in no other; ops are in program order, a body in between."""
    end = -1
    for enter, leave in sorted(graph.exit_by_entry.items()):
        if enter > end:
            end = leave
            yield enter, leave


def _is_over_layers(graph: Graph, flow: Flow, enter: int) -> bool:
    trips = trips_per_entry(graph, enter)
    return trips > 1 and any(
        flow.roots[carry] and is_sliced(graph, carry, trips) for carry in graph.ops[enter].outputs
    )


def _first_readers(problem: Problem, flow: Flow, line: Items) -> Mapping[int, int]:
    """For ops outside loops that do not depend on the batch, the first item that needs what they
    make.
    """
    graph = problem.graph
    first_readers: dict[int, int] = {}
    # From the last op back: what reads an op's results has its place already.
    for index in range(len(graph.ops) - 1, -1, -1):
        op = graph.ops[index]
        if problem.phases[index] is not Phase.FORWARD or not op.outputs or not line.op_of_item:
            continue
        if any(flow.batched[v] for v in op.outputs):
            continue
        readers = [
            first_readers[u] if u in first_readers else line.span(u)[0]
            for v in op.outputs
            for u in graph.users[v]
            if problem.phases[u] is Phase.FORWARD
        ]
        if readers and not any(loop.enter <= index <= loop.leave for loop in line.loops):
            first_readers[index] = min(readers)
    return first_readers
