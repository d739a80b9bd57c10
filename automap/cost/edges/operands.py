"""Operand edges: where operations read tensors, and the copies that gathering or exchanging makes
there.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from automap.backends import LoopMessages
from automap.cost.edges.loops import (
    FilledStack,
    filled_stacks,
    innermost_loops,
    part_of_message,
)
from automap.cost.edges.table import (
    CHOOSING_OPCODES,
    NO_LOOP,
    Copies,
    EdgeKey,
    EdgeList,
    Edges,
    Window,
    gathered_bytes,
    highest_rank,
    inners,
    last_size,
    majors,
    sized_dims,
)
from automap.program.problem import Problem
from hlo_tools.analyses.invariants import changes, passed_on
from hlo_tools.analyses.storage import Side
from hlo_tools.graph import Op
from hlo_tools.opcodes import DOT, LOOP_ENTER, REORDERS, STRUCTURAL, VIEWS
from hlo_tools.rules import FactorKind, Rule


@dataclass(frozen=True)
class _Messages:
    """Of how many messages a gathered tensor is at least; `together` as `gathered_together` has it,
    None where tensors go by themselves; `loops` are those that ops are in.
    """

    together: Sequence[int] | None
    loops: Sequence[int]

    @classmethod
    def build(cls, problem: Problem, sources: Sequence[int], *, are_merged: bool) -> "_Messages":
        """Those of a problem."""
        together = gathered_together(problem, sources) if are_merged else None
        return cls(together, innermost_loops(problem.graph))

    def least(self, n_bytes: int, index: int, trips: int) -> float:
        """For the operand of the op `index`, in so many trips."""
        # Nothing is merged over the trips of a loop, each has its own.
        if self.together is None:
            return float(trips > 1)
        return part_of_message(n_bytes, self.together[index], trips)

    def loop(self, index: int, trips: int) -> tuple[int, int]:
        """`EdgeKey.loop` of the operand of an op, which is gathered in so many trips."""
        return (self.loops[index], trips) if trips > 1 else NO_LOOP


@dataclass(frozen=True)
class _Moves:
    """How often operands are exchanged, and gathered, in a step; `changed` [values] is how often a
    value changes, `gathers_in_trips` whether a loop gathers what it does not change in every trip.
    """

    problem: Problem
    changed: Sequence[int]
    stacks: Mapping[int, FilledStack]
    gathers_in_trips: bool

    @classmethod
    def build(cls, problem: Problem, *, gathers_in_trips: bool) -> "_Moves":
        """Those of a problem."""
        graph = problem.graph
        return cls(problem, changes(graph), filled_stacks(graph), gathers_in_trips)

    def __call__(self, index: int, number: int) -> tuple[int, int]:
        """Of an operand of the op `index`; 0 of what is never moved."""
        graph, op = self.problem.graph, self.problem.graph.ops[index]
        value = op.inputs[number]
        if not _is_counted(self.problem, op, value):
            return 0, 0
        if number == 0 and index in self.stacks:
            stack = self.stacks[index]
            # A stack that begins as a constant begins as the loop has it.
            trips = stack.trips if graph.varies[stack.source] else 0
            return trips, trips
        # What the loop does not change is moved as often as it changes, outside; some leave what
        # grows when it is moved, as in a gather, where it is.
        moved = min(op.trip_count, self.changed[value])
        return moved, op.trip_count if self.gathers_in_trips else moved


def operand_edges(
    problem: Problem,
    row_of_value: np.ndarray,
    row_of_op: np.ndarray,
    op_rows: np.ndarray,
    *,
    narrows: bool,
    loop_gathers: Literal["before", "in every trip"] = "before",
    loop_messages: LoopMessages = "vectors",
    collective_dims: Literal["any", "first"] = "any",
) -> tuple[Edges, Copies]:
    """Operand edges, and the copies that gathering makes.

    `narrows` is whether the backend multiplies and gathers float32 as bfloat16 unless told
    otherwise; the others are those of `automap.backends.Backend`.

    Compilers gather a tensor once for all operations that want it alike, so uses of one value by
    operations with the same classes and demands count once; some gather before a loop what it does
    not change.
    """
    graph, edges = problem.graph, EdgeList(highest_rank(problem), op_rows.shape[1])
    classes_of_row = [tuple(sorted(row[:, ::2].ravel().tolist())) for row in op_rows]
    # (op row, demanded factors) -> the classes that each dimension of the operand is split by.
    wanted_by: dict[tuple[int, tuple[int, ...]], tuple[tuple[int, ...], ...]] = {}
    # What makes a copy distinct -> [edge, first op, last op that reads it].
    copies: dict[tuple[object, ...], list[int]] = {}
    # Source tensor -> its copies so far, as (copy, edge).
    copies_by_source: dict[int, list[tuple[int, int]]] = {}
    pairs: list[tuple[int, int, int]] = []
    values, side = row_of_value.tolist(), problem.storage.side.tolist()
    ops, sources = row_of_op.tolist(), _sources(problem)
    moves = _Moves.build(problem, gathers_in_trips=loop_gathers == "in every trip")
    turns = _is_product if collective_dims == "first" else lambda op: False
    messages = _Messages.build(problem, sources, are_merged=loop_messages == "all")
    for index, (op, rule) in enumerate(zip(graph.ops, problem.linkage.rules, strict=True)):
        slides = any(factor.halo is not None for factor in rule.factors)
        for number, (value, dims) in enumerate(zip(op.inputs, rule.operands)):
            exchanged, gathered = moves(index, number)
            if not gathered:
                continue
            demanded, row = majors(dims), ops[index]
            if (row, demanded) not in wanted_by:
                wanted_by[row, demanded] = _wanted(op_rows[row], demanded)
            wanted = wanted_by[row, demanded]
            windows = _windows(rule, number, graph.values[value].dims, op.opcode) if slides else ()
            # Two windows may exchange different halos: which of those are one is for
            # `automap.cost.edges.halos` to say. Operations that choose their factor may choose
            # differently under one point, so only those of one row share a copy.
            place = index if windows else op.opcode in CHOOSING_OPCODES and row
            key = (value, wanted, classes_of_row[row], place)
            if key in copies:
                copies[key][2] = index
                continue
            before = copies_by_source.setdefault(sources[value], [])
            n_bytes = gathered_bytes(graph, op, value, narrows=narrows)
            edge = edges.add(
                EdgeKey(
                    values[value],
                    row,
                    demanded,
                    (),
                    n_bytes,
                    int(problem.phases[index]),
                    side[value] != Side.NONE,
                    earlier=tuple(sorted({e for _, e in before})),
                    windows=windows,
                    least_messages=messages.least(n_bytes, index, gathered),
                    loop=messages.loop(index, gathered),
                    last_size=last_size(graph, value),
                    sized=sized_dims(graph, value, op, rule, dims) if turns(op) else (),
                    inner=inners(problem, index, dims),
                ),
                exchanged,
                value,
                index,
                gathered,
            )
            pairs += [(len(copies), copy, edges.repeats[edge, e]) for copy, e in before]
            before.append((len(copies), edge))
            copies[key] = [edge, index, index]
    return edges.edges(), Copies(
        *np.array(list(copies.values()), np.int64).reshape(-1, 3).T,
        repeats=np.array(pairs, np.int64).reshape(-1, 3),
    )


def _is_product(op: Op) -> bool:
    return op.opcode == DOT


def _wanted(op_row: np.ndarray, demanded: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The classes that an op of a row splits each dimension by."""
    return tuple(tuple(op_row[f].tolist()) if f >= 0 else () for f in demanded)


def _windows(rule: Rule, number: int, sizes: tuple[int, ...], opcode: str) -> tuple[Window, ...]:
    """The windows along an operand; where the window itself is split too, only the image moves."""
    windows = []
    for dim, factors in enumerate(rule.operands[number]):
        factor = rule.factors[factors[0]] if factors else None
        if factor is not None and factor.halo is not None:
            # Operand 0 is the image; the window itself, operand 1, is there on every device.
            is_moved = number == 0 or factor.kind is FactorKind.PERMUTATION
            if is_moved and factor.kind is not FactorKind.PASSTHROUGH:
                is_convolution = opcode == "convolution"
                windows.append(Window(dim, factors[0], sizes[dim], factor.halo, is_convolution))
    return tuple(windows)


def _sources(problem: Problem) -> list[int]:
    """For each value the one whose gathered copy serves it too.

    That is a parameter before it was reshaped, and what a loop carries along before the loop.
    """
    graph, side = problem.graph, problem.storage.side
    sources = list(range(len(graph.values)))
    for index, op in enumerate(graph.ops):
        if op.opcode == LOOP_ENTER:
            unchanged = passed_on(graph, index)
            for source, carried in zip(op.inputs, op.outputs):
                # Each loop gathers a parameter anew.
                if carried in unchanged and side[carried] != Side.PARAMETER:
                    sources[carried] = sources[source]
        elif op.opcode in REORDERS and side[op.outputs[0]] == side[op.inputs[0]] == Side.PARAMETER:
            sources[op.outputs[0]] = sources[op.inputs[0]]
    return sources


def gathered_together(problem: Problem, sources: Sequence[int]) -> list[int]:
    """For each op the bytes of all parameters that its innermost loop reads in one trip.

    A parameter counts once, however many ops read it, where it is read by what is no view of it.
    """
    graph, side = problem.graph, problem.storage.side
    loops = innermost_loops(graph)
    parameters: dict[int, dict[int, int]] = defaultdict(dict)
    for loop, op in zip(loops, graph.ops, strict=True):
        for value in op.inputs if op.opcode not in VIEWS | STRUCTURAL else ():
            if side[value] == Side.PARAMETER:
                parameters[loop][sources[value]] = graph.values[value].n_bytes
    totals = {loop: sum(n_bytes.values()) for loop, n_bytes in parameters.items()}
    return [totals.get(loop, 0) for loop in loops]


def _is_counted(problem: Problem, op: Op, value: int) -> bool:
    # What no input reaches is made on every device, and a scalar has nothing to split.
    return (
        op.opcode not in STRUCTURAL
        and problem.graph.varies[value]
        and bool(problem.graph.values[value].dims)
    )
