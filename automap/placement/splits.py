"""Splits: what operators take when they are in parts, along one class of dimensions or two.

form       degrees of classes (`automap.placement.choices`), the first is the whole
able[f, o] operator o has all classes of form f in its products, or f splits the samples; every
           degree divides all that is of its class; with a second class, one is the samples'
                                                                    -> in: `_operator_classes`
seconds    of a task's kernels by the roofline, each split as its factors are of the classes
workspace  of a whole task, by the share that a part has of what its kernels write
sums       what a partitioned program sums and gathers within a task: messages and bytes on the
           slowest link, as rings send them (`automap.cost.traffic`). They are done before what
           reads them, and nothing is computed beside them         -> in: `_Sums`
terms      a gradient that is the sum over several operators (of unrolled steps) is reduced once
           if all of them have one choice; else each reduces its own terms, which are these
                                                                   -> in: `_operators_before`
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
import math
from typing import Final

import numpy as np

from automap.backends import backend_for
from automap.cost.edges.sums import merged_sums
from automap.cost.kernels.roofline import Roofline
from automap.cost.profile import KernelProfile
from automap.cost.shardings import Shardings, shardings
from automap.cost.tables import Tables
from automap.cost.traffic import Collectives
from automap.cost.traffic.flows import ALL_REDUCE, PERMUTE
from automap.placement.choices import Degrees
from automap.placement.dataflow import NOBODY
from automap.placement.tasks import PlacementProblem
from automap.space.point import SplitClasses
from automap.topology.mesh import Mesh
from automap.topology.model import Platform, Topology
from hlo_tools.opcodes import CONTRACTIONS, GATHER


@dataclass(frozen=True)
class Splits:
    """What tasks take in each form, F forms: `able` bool [F, operators], `seconds` [F, kinds,
    tasks] and `workspace_bytes` [F, tasks] of one part; messages and bytes of sums and of terms [F,
    tasks]. `before` has, for each task, the operators whose terms come before its own in a sum;
    `samples` is the class of the batch, None without one.
    """

    forms: tuple[Degrees, ...]
    able: np.ndarray
    seconds: np.ndarray
    workspace_bytes: np.ndarray
    sum_messages: np.ndarray
    sum_bytes: np.ndarray
    term_messages: np.ndarray
    term_bytes: np.ndarray
    before: tuple[tuple[int, ...], ...]
    samples: int | None = None


def whole(problem: PlacementProblem) -> Splits:
    """Operators in one part each."""
    n_tasks, none = len(problem.tasks), np.zeros((1, len(problem.tasks)))
    return Splits(
        forms=((),),
        able=np.ones((1, problem.n_operators), bool),
        seconds=np.array(problem.seconds)[None],
        workspace_bytes=np.array(problem.workspace_bytes, np.float64)[None],
        sum_messages=none,
        sum_bytes=none,
        term_messages=none,
        term_bytes=none,
        before=((),) * n_tasks,
    )


def problem_splits(
    problem: PlacementProblem,
    platform: Platform,
    n_devices: int,
    profile: KernelProfile | None = None,
) -> Splits:
    """All forms of up to so many parts; a `profile` is of the first kind of devices."""
    tables, one = problem.tables, whole(problem)
    if tables is None:
        return one
    by_operator, program = _operator_classes(problem), problem.operators.dataflow.problem
    forms = [(), *sorted({f for each in by_operator for f in _forms(problem, each, n_devices)})]
    kernels, sums = _Kernels.build(problem, tables), _Sums(problem, tables)
    alone = [Topology(name=k.name, platform=platform, device=k, levels=()) for k in problem.kinds]
    rooflines = [
        Roofline(tables.kernels, topology, None if number else profile)
        for number, topology in enumerate(alone)
    ]
    columns: list[list[np.ndarray]] = [[], [], [], [], [], []]
    for degrees in forms:
        mesh = Mesh(("first", "second")[: len(degrees)], tuple(d for _, d in degrees))
        split = SplitClasses(mesh, tuple((c,) for c, _ in degrees))
        if not degrees:
            split = SplitClasses(Mesh(("whole",), (1,)), ((),))
        sharding = shardings(tables, program.n_classes, split)
        columns[0].append(np.array([kernels.seconds(r.seconds(sharding)) for r in rooflines]))
        columns[1].append(problem.workspace_bytes * kernels.written_share(sharding))
        for column, amount in zip(columns[2:], sums.amounts(sharding), strict=True):
            column.append(amount)
    return Splits(
        tuple(forms),
        np.array([[set(dict(f)) <= set(each) for each in by_operator] for f in forms]),
        *(np.array(column) for column in columns),
        before=_operators_before(problem, platform),
        samples=program.batch_class,
    )


_PRODUCTS: Final = CONTRACTIONS | {GATHER}


def _operator_classes(problem: PlacementProblem) -> list[dict[int, int]]:
    """Classes of each operator's products, and the samples', with what divides all of them."""
    flow = problem.operators.dataflow
    program, limits = flow.problem, flow.problem.limits
    classes: list[dict[int, int]] = [{} for _ in range(problem.n_operators)]
    for node, owner in enumerate(problem.operators.operator):
        if owner == NOBODY:
            continue
        for op in flow.ops[node]:
            if program.graph.ops[op].opcode in _PRODUCTS:
                groups = program.linkage.factor_groups[op]
                for c in program.class_of_group[groups[groups >= 0]].tolist():
                    if limits[c] > 1:
                        classes[owner][c] = int(limits[c])
    batch = program.batch_class
    if batch is not None:
        for each in classes:
            each[batch] = int(limits[batch])
    return classes


def _forms(problem: PlacementProblem, classes: dict[int, int], n_devices: int) -> Iterator[Degrees]:
    batch = problem.operators.dataflow.problem.batch_class
    for c, size in classes.items():
        for degree in range(2, n_devices + 1):
            if size % degree:
                continue
            yield ((c, degree),)
            if batch in classes and c != batch:
                for other in range(2, n_devices // degree + 1):
                    if classes[batch] % other == 0:
                        yield tuple(sorted(((c, degree), (batch, other))))


@dataclass(frozen=True)
class _Kernels:
    """The kernels of tasks: their `task`, row and trips; and for what they write the task, the row
    of the value, and its bytes.
    """

    n_tasks: int
    task: np.ndarray
    row: np.ndarray
    trips: np.ndarray
    written_task: np.ndarray
    written_row: np.ndarray
    written_bytes: np.ndarray

    @staticmethod
    def build(problem: PlacementProblem, tables: Tables) -> "_Kernels":
        """Those of all tasks."""
        flow = problem.operators.dataflow
        graph, kernels, written = flow.problem.graph, [], []
        program = tables.program
        for kernel, row in zip(program.kernels, program.row_of_kernel, strict=True):
            node = flow.node_of_op[kernel.op]
            task = NOBODY if node == NOBODY else problem.task_of_node[node]
            if task != NOBODY:
                kernels.append((task, row, graph.ops[kernel.op].trip_count))
                written += [(task, tables.row_of_value[a.value], a.n_bytes) for a in kernel.writes]
        columns = [np.array(x, np.int64).reshape(-1, 3).T for x in (kernels, written)]
        return _Kernels(len(problem.tasks), *columns[0], *columns[1])

    def seconds(self, by_row: np.ndarray) -> np.ndarray:
        """Seconds of each task, from those of each row of kernels."""
        return np.bincount(self.task, by_row[self.row] * self.trips, self.n_tasks)

    def written_share(self, sharding: Shardings) -> np.ndarray:
        """What a part writes of what each task does."""
        parts = sharding.parts_of_value[self.written_row]
        split = np.bincount(self.written_task, self.written_bytes / parts, self.n_tasks)
        return split / np.maximum(
            np.bincount(self.written_task, self.written_bytes, self.n_tasks), 1
        )


class _Sums:
    """What tasks sum and gather, from the collectives of a whole program that is split alike."""

    def __init__(self, problem: PlacementProblem, tables: Tables) -> None:
        self._n_tasks, self._tables = len(problem.tasks), tables
        # Without what one sum with others spares.
        apart = replace(tables.results, repeats=np.zeros((0, 2), np.int64))
        self._apart = replace(tables, results=apart)
        flow = problem.operators.dataflow
        # One entry more, for operations of no node.
        tasks = np.append(np.array(problem.task_of_node, np.int64), NOBODY)
        self._task_of_op = tasks[np.array(flow.node_of_op, np.int64)]

    def amounts(self, sharding: Shardings) -> tuple[np.ndarray, ...]:
        """Messages and bytes of sums, and of terms that are spared, [tasks] each."""
        if not (sharding.parts_of_op > 1).any() and not (sharding.parts_of_value > 1).any():
            return (np.zeros(self._n_tasks),) * 4
        messages, n_bytes = self._by_task(self._tables.collectives(sharding), sharding.sizes)
        all_messages, all_bytes = self._by_task(self._apart.collectives(sharding), sharding.sizes)
        return messages, n_bytes, all_messages - messages, all_bytes - n_bytes

    def _by_task(self, made: Collectives, sizes: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        masks = range(1 << len(sizes))
        ranks = np.array([math.prod(s for a, s in enumerate(sizes) if m >> a & 1) for m in masks])
        count = ranks[made.mask]
        # Bytes are of the full buffer, of which a ring sends a part in each message.
        is_permute = made.kind == PERMUTE
        messages = np.where(made.kind == ALL_REDUCE, 2, 1) * (count - 1)
        messages[is_permute] = 1
        n_bytes = messages * made.n_bytes / np.where(is_permute, 1, count)
        result = np.zeros((2, self._n_tasks))
        for on_operand, edges in ((True, self._tables.operands), (False, self._tables.results)):
            chosen = np.flatnonzero(made.on_operand == on_operand)
            rows = made.edge[chosen]
            share = np.zeros((2, len(edges.count)))
            for number, amount in enumerate((messages, n_bytes)):
                np.add.at(share[number], rows, amount[chosen] * made.count[chosen])
            trips = np.bincount(edges.incidences[:, 0], edges.incidences[:, 4], len(edges.count))
            row, task = edges.incidences[:, 0], self._task_of_op[edges.incidences[:, 2]]
            inside = task != NOBODY
            part = edges.incidences[:, 4] / np.maximum(trips, 1)[row]
            for number in range(2):
                weights = (share[number, row] * part)[inside]
                result[number] += np.bincount(task[inside], weights, self._n_tasks)
        return result[0], result[1]


def _operators_before(problem: PlacementProblem, platform: Platform) -> tuple[tuple[int, ...], ...]:
    """For each task the operators whose terms come just before its own in a sum of the backend."""
    flow, order = problem.operators.dataflow, backend_for(platform).sums
    graph = flow.problem.graph
    before: list[set[int]] = [set() for _ in problem.tasks]
    last: dict[int, int] = {}
    merged = {} if order == "apart" else merged_sums(graph, order).sum_by_term
    for value, name in sorted(merged.items()):
        node = flow.node_of_op[graph.values[value].producer]
        task = NOBODY if node == NOBODY else problem.task_of_node[node]
        if task == NOBODY:
            continue
        operator = problem.tasks[task].operator
        if last.get(name, operator) != operator:
            before[task].add(last[name])
        last[name] = operator
    return tuple(tuple(sorted(each)) for each in before)
