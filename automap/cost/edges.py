"""Edges: every place where a tensor meets an op, folded to distinct rows.

An operand edge says what must be gathered before an op can run, a result edge what must be summed,
scattered or gathered after it; `automap.cost.traffic` reads them under a plan.
"""

from dataclasses import dataclass, replace

import numpy as np

from automap.space.problem import Problem
from hlo_tools.graph import LOOP_ENTER, STRUCTURAL, Op
from hlo_tools.invariants import changes, passed_on
from hlo_tools.kernels import CONTRACTIONS
from hlo_tools.rules import FactorKind, Halo, Rule
from hlo_tools.rules.convolution import partitioned_alone
from hlo_tools.storage import Side


# Ops that may choose which of their factors an axis splits, see `automap.cost.contests`.
CONTESTED_OPCODES = frozenset(
    {"dot", "ragged-dot", "convolution", "gather", "scatter", "reduce", "custom-call"}
)
_SUMS_AT_ONCE = frozenset({"reduce", "scatter"})
_SUMS_APART = frozenset({"reduce", "scatter", "dot"})
_REARRANGING = frozenset({"transpose", "reshape", "bitcast"})


@dataclass(frozen=True, slots=True)
class Window:
    """A window along dimension `dim` of `size` elements, of which `factor` is the factor."""

    dim: int
    factor: int
    size: int
    halo: Halo
    is_convolution: bool


@dataclass(frozen=True)
class Edges:
    """Tensor-to-op incidences. Arrays are [edges] unless said.

    `factor_of_dim` [edges, rank]: the op's factor a dimension is major in, -1 if none.
    `is_reduced` [edges, factors]: whether the op sums over a factor (result edges only).
    `combinable`: whether XLA merges these collectives into few messages (gradients and parameters).
    `sums_at_once`: whether the op's partial sums over all axes end in one all-reduce, also where part of
    it could be scattered (reduce, scatter; contractions scatter first).
    `sum_of_factor` [edges, factors]: factors of one number are summed over in one all-reduce.
    `is_alone` [edges, factors]: whether all is summed at once if the factor is split
    (`hlo_tools.rules.convolution.partitioned_alone`).
    `gathers_partials`: whether partial results are gathered and combined on every device (a reduce of
    several arrays at once, such as argmax).
    `value`, `op`: one example incidence each row stands for, to name it.
    `repeats` [pairs, 2]: (edge, an edge of the same tensor or the same sum before it); if both gather or
    reduce over the same axes, the second does nothing.
    `windows`: of each edge, the dimensions that the op slides a window along.
    """

    value_row: np.ndarray
    op_row: np.ndarray
    factor_of_dim: np.ndarray
    is_reduced: np.ndarray
    n_bytes: np.ndarray
    count: np.ndarray
    phase: np.ndarray
    combinable: np.ndarray
    sums_at_once: np.ndarray
    sum_of_factor: np.ndarray
    is_alone: np.ndarray
    gathers_partials: np.ndarray
    value: np.ndarray
    op: np.ndarray
    repeats: np.ndarray
    windows: tuple[tuple[Window, ...], ...]


@dataclass(frozen=True)
class Copies:
    """Gathered copies of tensors, one per distinct demand of an op for one; [copies] unless said.

    `first`, `last`: the ops that use it. `repeats` [pairs, 3]: (copy, an earlier copy of the same
    tensor, row of the two edges in `Edges.repeats`).
    """

    edge: np.ndarray
    first: np.ndarray
    last: np.ndarray
    repeats: np.ndarray


@dataclass(frozen=True, slots=True)
class _EdgeKey:
    """What makes two incidences the same row; `earlier` are edges of the same tensor before it."""

    value_row: int
    op_row: int
    factor_of_dim: tuple[int, ...]
    reduced: tuple[int, ...]
    n_bytes: int
    phase: int
    combinable: bool
    sums_at_once: bool = False
    sum_of_factor: tuple[int, ...] = ()
    alone: tuple[int, ...] = ()
    gathers_partials: bool = False
    earlier: tuple[int, ...] = ()
    windows: tuple[Window, ...] = ()


class _EdgeList:
    """Collects incidences and folds equal ones."""

    def __init__(self, rank: int, width: int):
        self.rank, self.width = rank, width
        self.index: dict[_EdgeKey, int] = {}
        self.counts: list[int] = []
        self.examples: list[tuple[int, int]] = []
        self.repeats: dict[tuple[int, int], int] = {}

    def add(self, key: _EdgeKey, count: int, value: int, op: int) -> int:
        row = self.index.setdefault(key, len(self.index))
        if row == len(self.counts):
            self.counts.append(0)
            self.examples.append((value, op))
            for earlier in key.earlier:
                self.repeats.setdefault((row, earlier), len(self.repeats))
        self.counts[row] += count
        return row

    def edges(self) -> Edges:
        n = len(self.index)
        dims = np.full((n, self.rank), -1, np.int64)
        reduced = np.zeros((n, self.width), bool)
        alone = np.zeros((n, self.width), bool)
        sums = np.zeros((n, self.width), np.int64)
        scalars = np.zeros((7, n), np.int64)
        for row, key in enumerate(self.index):
            dims[row, : len(key.factor_of_dim)] = key.factor_of_dim
            reduced[row, list(key.reduced)] = True
            alone[row, list(key.alone)] = True
            sums[row, : len(key.sum_of_factor)] = key.sum_of_factor
            scalars[:, row] = (
                key.value_row, key.op_row, key.n_bytes, key.phase, key.combinable, key.sums_at_once,
                key.gathers_partials,
            )  # fmt: skip
        examples = np.array(self.examples, np.int64).reshape(n, 2)
        return Edges(
            value_row=scalars[0], op_row=scalars[1], factor_of_dim=dims, is_reduced=reduced,
            n_bytes=scalars[2], count=np.array(self.counts, np.int64), phase=scalars[3],
            combinable=scalars[4].astype(bool), sums_at_once=scalars[5].astype(bool),
            sum_of_factor=sums, is_alone=alone, gathers_partials=scalars[6].astype(bool),
            value=examples[:, 0], op=examples[:, 1],
            repeats=np.array(list(self.repeats), np.int64).reshape(-1, 2),
            windows=tuple(key.windows for key in self.index),
        )  # fmt: skip


def majors(dims: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """The major factor of each dimension, -1 for one that no factor runs over."""
    return tuple(factors[0] if factors else -1 for factors in dims)


def _is_counted(problem: Problem, op: Op, value: int) -> bool:
    return (
        op.opcode not in STRUCTURAL
        and problem.graph.varies[value]
        and bool(problem.graph.values[value].dims)
    )


def operand_edges(
    problem: Problem, row_of_value: np.ndarray, row_of_op: np.ndarray, op_rows: np.ndarray
) -> tuple[Edges, Copies]:
    """Operand edges, and the copies that gathering makes.

    XLA gathers a tensor once for all ops that want it alike, so uses of one value by ops with the
    same classes and the same demand on each dimension count once; it gathers what a loop does not change
    before the loop.
    """
    graph = problem.graph
    found = _EdgeList(rank_of(problem), op_rows.shape[1])
    classes_of_row = [tuple(sorted(row[:, ::2].ravel().tolist())) for row in op_rows]
    copies: dict[tuple[object, ...], list[int]] = {}
    copies_of: dict[int, list[tuple[int, int]]] = {}
    pairs: list[tuple[int, int, int]] = []
    values, side = row_of_value.tolist(), problem.storage.side.tolist()
    ops, sources, changed = row_of_op.tolist(), _sources(problem), changes(graph)
    for index, (op, rule) in enumerate(zip(graph.ops, problem.linkage.rules, strict=True)):
        for number, (value, dims) in enumerate(zip(op.inputs, rule.operands)):
            if not _is_counted(problem, op, value):
                continue
            demanded, row = majors(dims), ops[index]
            wanted = tuple(tuple(op_rows[row, f]) if f >= 0 else () for f in demanded)
            windows = _windows(rule, number, graph.values[value].dims, op.opcode)
            # What windows exchange is told apart by `automap.cost.halos`.
            place = index if windows else op.opcode in CONTESTED_OPCODES and row
            key = (value, wanted, classes_of_row[row], place)
            if key in copies:
                copies[key][2] = index
                continue
            before = copies_of.setdefault(sources[value], [])
            edge = found.add(
                _EdgeKey(values[value], row, demanded, (), graph.values[value].n_bytes,
                         int(problem.phases[index]), side[value] != Side.NONE,
                         earlier=tuple(sorted({e for _, e in before})), windows=windows),
                min(op.trip_count, changed[value]), value, index,
            )  # fmt: skip
            pairs += [(len(copies), copy, found.repeats[edge, e]) for copy, e in before]
            before.append((len(copies), edge))
            copies[key] = [edge, index, index]
    uses = np.array(list(copies.values()), np.int64).reshape(-1, 3)
    return found.edges(), Copies(
        edge=uses[:, 0], first=uses[:, 1], last=uses[:, 2],
        repeats=np.array(pairs, np.int64).reshape(-1, 3),
    )  # fmt: skip


def _windows(rule: Rule, number: int, sizes: tuple[int, ...], opcode: str) -> tuple[Window, ...]:
    """The windows along an operand; where the window itself is split too, only the image moves."""
    found = []
    for dim, factors in enumerate(rule.operands[number]):
        factor = rule.factors[factors[0]] if factors else None
        if factor is not None and factor.halo is not None:
            is_moved = number == 0 or factor.kind is FactorKind.PERMUTATION
            if is_moved and factor.kind is not FactorKind.PASSTHROUGH:
                is_convolution = opcode == "convolution"
                found.append(Window(dim, factors[0], sizes[dim], factor.halo, is_convolution))
    return tuple(found)


def _sources(problem: Problem) -> list[int]:
    """For each value the one whose gathered copy serves it too.

    That is a parameter before it was reshaped, and what a loop carries along before the loop.
    """
    graph, side = problem.graph, problem.storage.side
    sources = list(range(len(graph.values)))
    for index, op in enumerate(graph.ops):
        if op.opcode == LOOP_ENTER:
            kept = passed_on(graph, index)
            for source, carried in zip(op.inputs, op.outputs):
                # Each loop gathers a parameter anew.
                if carried in kept and side[carried] != Side.PARAMETER:
                    sources[carried] = sources[source]
        elif (
            op.opcode in _REARRANGING
            and side[op.outputs[0]] == side[op.inputs[0]] == Side.PARAMETER
        ):
            sources[op.outputs[0]] = sources[op.inputs[0]]
    return sources


def rank_of(problem: Problem) -> int:
    """Highest rank of any value, at least one."""
    return max((len(v.dims) for v in problem.graph.values), default=0) or 1


def result_edges(
    problem: Problem,
    row_of_value: np.ndarray,
    row_of_op: np.ndarray,
    op_rows: np.ndarray,
    *,
    merge_sums: bool,
) -> Edges:
    """Edges from ops to the values they make.

    With `merge_sums`, products that are only added up are one sum: the first of them is reduced, the
    others repeat it.
    """
    graph = problem.graph
    found = _EdgeList(rank_of(problem), op_rows.shape[1])
    reduced: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    values, side = row_of_value.tolist(), problem.storage.side.tolist()
    ops, sum_of = row_of_op.tolist(), _sums(problem) if merge_sums else {}
    first_terms: dict[int, dict[_EdgeKey, int]] = {}
    for index, (op, rule) in enumerate(zip(graph.ops, problem.linkage.rules, strict=True)):
        sums = reduced.get(id(rule))
        if sums is None:
            sums = reduced[id(rule)] = _reduced_factors(rule), _sum_of_factor(rule, op.opcode)
        for value, dims in zip(op.outputs, rule.results):
            if op.opcode not in STRUCTURAL and graph.varies[value]:
                key = _EdgeKey(
                    values[value], ops[index], majors(dims), sums[0], graph.values[value].n_bytes,
                    int(problem.phases[index]), side[value] != Side.NONE, op.opcode in _SUMS_AT_ONCE,
                    sums[1], tuple(sorted(partitioned_alone(op.instruction, rule))),
                    op.opcode == "reduce" and len(op.outputs) > 1,
                )  # fmt: skip
                terms = first_terms.setdefault(sum_of[value], {}) if value in sum_of else {}
                merged = replace(key, earlier=tuple(sorted(terms.values())))
                edge = found.add(merged, op.trip_count, value, index)
                terms.setdefault(key, edge)
    return found.edges()


def _sums(problem: Problem) -> dict[int, int]:
    """Values made by contractions and used only as terms of a chain of additions -> a name of the chain."""
    graph = problem.graph
    returned = set(graph.outputs)
    chain: dict[int, int] = {}
    for index in range(len(graph.ops) - 1, -1, -1):
        op = graph.ops[index]
        if op.opcode == "add":
            name = chain.get(op.outputs[0], op.outputs[0])
            for term in op.inputs:
                if len(graph.users[term]) == 1 and term not in returned:
                    chain[term] = name
    return {
        value: name
        for value, name in chain.items()
        if graph.values[value].producer >= 0
        and graph.ops[graph.values[value].producer].opcode in CONTRACTIONS
    }


def _reduced_factors(rule: Rule) -> tuple[int, ...]:
    return tuple(i for i, f in enumerate(rule.factors) if f.kind is FactorKind.REDUCTION)


def _sum_of_factor(rule: Rule, opcode: str) -> tuple[int, ...]:
    return tuple(range(len(rule.factors))) if opcode in _SUMS_APART else ()
