"""A step as tasks of operators: what a placement is priced on.

task     the nodes of one operator and one phase that can run together. A node's *level* counts how
         often the way to it turns against the order of operators, which is ascending in the forward
         pass and the update and descending in the backward pass:

             level(n) = max over makers m of what n reads of  level(m) + [m cannot come before n]
             task(n)  = (level, phase, o(n)),  in this order                 -> in: `_task_keys`

         so every array goes from a task to the same or a later one, whoever owns the nodes: tasks
         are numbered in an order in which they can run.
seconds  of a task on a kind of device: those of its kernels by the roofline of `automap.cost`,
         whole tensors                                                      -> in: `_task_seconds`
tensor   what a task makes, or an input of the step, with the tasks that read it. All arrays of one
         maker and the same readers are one tensor. `moved_bytes` go to another device that reads
         it, `kept_bytes` are in memory: an array that no kernel writes is made again by those who
         read it, and keeps what it is made of
home     of state: the operator that makes its new version, else the first that reads it. Batches
         are on every device that reads them when a step begins
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from automap.cost.kernels.roofline import Roofline
from automap.cost.profile import KernelProfile
from automap.cost.shardings import shardings
from automap.cost.tables import Tables, build_tables
from automap.placement.dataflow import NOBODY, Dataflow
from automap.placement.operators import Operators
from automap.space.point import SplitClasses
from automap.topology.mesh import Mesh
from automap.topology.model import Device, Platform, Topology
from hlo_tools.analyses.phases import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Nodes of one operator that run together, in order."""

    operator: int
    phase: Phase
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The arrays of a tensor whose dimensions have the same classes; bytes as above."""

    classes: frozenset[int]
    moved_bytes: int
    kept_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """Arrays that go the same ways; bytes as above.

    `maker` is a task, `NOBODY` for state and batches; `home` the operator that state is stored
    with, `NOBODY` otherwise. `readers` are tasks, of which `receivers` are sent it where they are
    on another device; `is_result` says that it is in memory to the end of the step. `pieces` are
    those that a split tells apart, none of a tensor that nothing splits.
    """

    maker: int
    home: int
    moved_bytes: int
    kept_bytes: int
    readers: tuple[int, ...]
    receivers: tuple[int, ...]
    is_result: bool = False
    pieces: tuple[Piece, ...] = ()


@dataclass(frozen=True)
class PlacementProblem:
    """The operators of a step with all that a placement's price needs.

    `seconds` [kinds, tasks] on each of `kinds`, `workspace_bytes` [tasks] what a task has in memory
    beside the tensors that it reads and makes for others. `homes` has the operator that each state
    input is stored with, by the number of its array. A placement is the number of a device for
    each operator, or of another choice. `tables` are those that seconds come from, and
    `task_of_node` [nodes] has the task that each runs in.
    """

    operators: Operators
    kinds: tuple[Device, ...]
    tasks: tuple[Task, ...]
    tensors: tuple[Tensor, ...]
    seconds: np.ndarray
    workspace_bytes: np.ndarray
    homes: Mapping[int, int] = field(default_factory=dict)
    tables: Tables | None = field(default=None, repr=False)
    task_of_node: Sequence[int] = ()

    @property
    def n_operators(self) -> int:
        """Operators 0 .. n - 1."""
        return len(self.operators.names)

    @cached_property
    def operator_seconds(self) -> np.ndarray:
        """Seconds of each operator, all of its tasks, on each kind of device [kinds, operators]."""
        owner = [task.operator for task in self.tasks]
        rows = [np.bincount(owner, row, self.n_operators) for row in self.seconds]
        return np.array(rows).reshape(len(self.seconds), self.n_operators)

    @cached_property
    def state_bytes(self) -> np.ndarray:
        """Bytes of weights, optimizer state and other state stored with each operator."""
        return self._sum((x.home, x.kept_bytes) for x in self.tensors if x.home != NOBODY)

    @cached_property
    def activation_bytes(self) -> np.ndarray:
        """Bytes that each operator keeps from its forward to its backward pass, or for others'."""
        phase = [task.phase for task in self.tasks]
        return self._sum(
            (self.tasks[x.maker].operator, x.kept_bytes)
            for x in self.tensors
            if x.maker != NOBODY
            and phase[x.maker] is Phase.FORWARD
            and any(phase[reader] is Phase.BACKWARD for reader in x.readers)
        )

    def _sum(self, rows: object) -> np.ndarray:
        result = np.zeros(self.n_operators)
        for operator, n_bytes in rows:  # type: ignore[attr-defined]
            result[operator] += n_bytes
        return result

    @cached_property
    def edges(self) -> dict[tuple[int, int], int]:
        """(operator, operator) -> bytes that the first sends the second in a step if they are on
        different devices; state that another operator stores is sent too.
        """
        edges: dict[tuple[int, int], int] = {}
        for x in self.tensors:
            source = x.home if x.maker == NOBODY else self.tasks[x.maker].operator
            targets = {self.tasks[task].operator for task in x.receivers} - {source}
            for target in sorted(targets) if source != NOBODY else ():
                edges[source, target] = edges.get((source, target), 0) + x.moved_bytes
        return edges

    @cached_property
    def alike(self) -> tuple[int, ...]:
        """For each operator the first that is equal to it: in seconds on every kind of device, in
        bytes stored and kept, and in what it sends and is sent.
        """
        sent: list[list[tuple[bool, int]]] = [[] for _ in range(self.n_operators)]
        for (source, target), n_bytes in self.edges.items():
            sent[source].append((True, n_bytes))
            sent[target].append((False, n_bytes))
        first: dict[object, int] = {}
        result = []
        for number in range(self.n_operators):
            key = (
                tuple(self.operator_seconds[:, number].tolist()),
                float(self.state_bytes[number]),
                float(self.activation_bytes[number]),
                tuple(sorted(sent[number])),
            )
            result.append(first.setdefault(key, number))
        return tuple(result)


def placement_problem(
    operators: Operators,
    platform: Platform,
    kinds: Sequence[Device],
    profile: KernelProfile | None = None,
) -> PlacementProblem:
    """The tasks and tensors of a step whose programs are compiled for `platform`, which decides
    what is fused, on devices of these kinds; a `profile` is of the first kind.
    """
    flow = operators.dataflow
    tables = build_tables(flow.problem, platform)
    keys = _task_keys(operators)
    order = sorted(set(keys) - {None})  # type: ignore[type-var]
    number = {key: task for task, key in enumerate(order)}
    task_of_node = [NOBODY if key is None else number[key] for key in keys]
    nodes: list[list[int]] = [[] for _ in order]
    for node, task in enumerate(task_of_node):
        if task != NOBODY:
            nodes[task].append(node)
    tasks = tuple(
        Task(operator=operators.operator[its[0]], phase=operators.phase[its[0]], nodes=tuple(its))
        for its in nodes
    )
    stored, runs_in = _stored_nodes(flow, tables), _first_tasks(flow, task_of_node)
    homes, permanent = _homes(operators, task_of_node)
    return PlacementProblem(
        operators=operators,
        kinds=tuple(kinds),
        tasks=tasks,
        tensors=_tensors(operators, tasks, task_of_node, stored, homes, permanent),
        seconds=_task_seconds(flow, tables, runs_in, len(tasks), platform, kinds, profile),
        workspace_bytes=_workspace_bytes(flow, tables, runs_in, len(tasks)),
        homes=homes,
        tables=tables,
        task_of_node=runs_in,
    )


_Key = tuple[int, int, int]


def _task_keys(operators: Operators) -> list[_Key | None]:
    """(level, phase, place of the operator in the phase's order) of each node."""
    flow, owner = operators.dataflow, operators.operator
    keys: list[_Key | None] = []
    for node, arrays in enumerate(flow.reads):
        if owner[node] == NOBODY:
            keys.append(None)
            continue
        phase = int(operators.phase[node])
        place = -owner[node] if phase == Phase.BACKWARD else owner[node]
        level = 0
        for array in arrays:
            before = None if flow.maker[array] == NOBODY else keys[flow.maker[array]]
            if before is not None:
                level = max(level, before[0] + (before[1:] > (phase, place)))
        keys.append((level, phase, place))
    return keys


def _first_tasks(flow: Dataflow, task_of_node: Sequence[int]) -> list[int]:
    """The task that each node runs in; what depends on no input runs in the first that reads it."""
    result = list(task_of_node)
    for node in range(len(result) - 1, -1, -1):
        if result[node] == NOBODY:
            after = [result[r] for array in flow.writes[node] for r in flow.readers[array]]
            result[node] = min((task for task in after if task != NOBODY), default=NOBODY)
    return result


def _stored_nodes(flow: Dataflow, tables: Tables) -> list[bool]:
    """Whether some kernel writes what a node makes."""
    stored = [False] * len(flow.names)
    for kernel in tables.program.kernels:
        node = flow.node_of_op[kernel.op]
        if node != NOBODY and kernel.writes:
            stored[node] = True
    return stored


def _task_seconds(
    flow: Dataflow,
    tables: Tables,
    task_of_node: Sequence[int],
    n_tasks: int,
    platform: Platform,
    kinds: Sequence[Device],
    profile: KernelProfile | None,
) -> np.ndarray:
    ops, program = flow.problem.graph.ops, tables.program
    task, row, runs = [], [], []
    for kernel, kernel_row in zip(program.kernels, program.row_of_kernel, strict=True):
        node = flow.node_of_op[kernel.op]
        if node != NOBODY and task_of_node[node] != NOBODY:
            task.append(task_of_node[node])
            row.append(kernel_row)
            runs.append(ops[kernel.op].trip_count)
    whole = shardings(tables, flow.problem.n_classes, SplitClasses(Mesh(("whole",), (1,)), ((),)))
    result = np.zeros((len(kinds), n_tasks))
    for number, kind in enumerate(kinds):
        alone = Topology(name=kind.name, platform=platform, device=kind, levels=())
        roofline = Roofline(tables.kernels, alone, profile if number == 0 else None)
        seconds = roofline.seconds(whole)[row] * runs
        result[number] = np.bincount(task, seconds, n_tasks)
    return result


def _workspace_bytes(
    flow: Dataflow, tables: Tables, task_of_node: Sequence[int], n_tasks: int
) -> np.ndarray:
    """The most that a task has in memory of what it makes for itself, kernel by kernel."""
    task_of_kernel = []
    for kernel in tables.program.kernels:
        node = flow.node_of_op[kernel.op]
        task_of_kernel.append(NOBODY if node == NOBODY else task_of_node[node])
    last: dict[int, int] = {}
    shared: set[int] = set(flow.problem.graph.outputs)
    made: dict[int, int] = {}
    for number, kernel in enumerate(tables.program.kernels):
        for access in kernel.reads:
            last[access.value] = number
            if made.get(access.value, task_of_kernel[number]) != task_of_kernel[number]:
                shared.add(access.value)
        for access in kernel.writes:
            made.setdefault(access.value, task_of_kernel[number])
    now, peak = np.zeros(n_tasks), np.zeros(n_tasks)
    for number, kernel in enumerate(tables.program.kernels):
        task = task_of_kernel[number]
        if task == NOBODY:
            continue
        for access in kernel.writes:
            if access.value not in shared:
                now[task] += flow.problem.graph.values[access.value].n_bytes
        peak[task] = max(peak[task], now[task])
        for access in {a.value: a for a in (*kernel.reads, *kernel.writes)}.values():
            value = access.value
            ends = last.get(value, number) == number
            if ends and value not in shared and made.get(value) == task:
                now[task] -= flow.problem.graph.values[value].n_bytes
    return peak


_Sizes = dict[frozenset[int], list[int]]
"""Classes of dimensions -> bytes moved and kept."""


def _tensors(
    operators: Operators,
    tasks: Sequence[Task],
    task_of_node: Sequence[int],
    stored: Sequence[bool],
    homes: Mapping[int, int],
    permanent: set[int],
) -> tuple[Tensor, ...]:
    flow = operators.dataflow
    keepers = _keepers(flow, task_of_node, stored)
    outputs = {array for array in flow.outputs if array is not None}
    merged: dict[tuple[int, int, tuple[int, ...], tuple[int, ...], bool], _Sizes] = {}
    for array, node in enumerate(flow.maker):
        maker = NOBODY if node == NOBODY else task_of_node[node]
        if node != NOBODY and maker == NOBODY:
            continue
        receivers = {task_of_node[reader] for reader in flow.readers[array]} - {NOBODY, maker}
        readers = (keepers[array] | receivers) - {maker}
        is_result = array in outputs and array not in permanent
        home = homes.get(array, NOBODY)
        if not readers and not is_result and home == NOBODY:
            continue
        is_kept = node == NOBODY or (stored[node] and array not in permanent)
        key = (maker, home, tuple(sorted(readers)), tuple(sorted(receivers)), is_result)
        classes = frozenset(flow.classes[array]) - {NOBODY}
        sizes = merged.setdefault(key, {}).setdefault(classes, [0, 0])
        sizes[0] += flow.n_bytes[array]
        sizes[1] += flow.n_bytes[array] if is_kept else 0
    return tuple(
        Tensor(
            maker=maker,
            home=home,
            moved_bytes=sum(moved for moved, _ in sizes.values()),
            kept_bytes=sum(kept for _, kept in sizes.values()),
            readers=readers,
            receivers=receivers,
            is_result=is_result,
            pieces=tuple(
                Piece(classes=classes, moved_bytes=moved, kept_bytes=kept)
                for classes, (moved, kept) in sizes.items()
            ),
        )
        for (maker, home, readers, receivers, is_result), sizes in merged.items()
    )


def _keepers(flow: Dataflow, task_of_node: Sequence[int], stored: Sequence[bool]) -> list[set[int]]:
    """For each array the tasks that read it, or make again what is made of it."""
    keepers: list[set[int]] = [set() for _ in flow.maker]
    for node in range(len(flow.names) - 1, -1, -1):
        task = task_of_node[node]
        if task == NOBODY:
            continue
        tasks = {task}
        if not stored[node]:
            tasks = tasks.union(*(keepers[array] for array in flow.writes[node]))
        for array in flow.reads[node]:
            keepers[array] |= tasks
    return keepers


def _homes(operators: Operators, task_of_node: Sequence[int]) -> tuple[dict[int, int], set[int]]:
    """The operator that each state input is stored with, and the outputs that take the place of a
    donated one.
    """
    flow, owner = operators.dataflow, operators.operator
    homes: dict[int, int] = {}
    permanent: set[int] = set()
    for output, position in flow.problem.state_map.items():
        array, made = flow.inputs[position], flow.outputs[output]
        maker = NOBODY if made is None or made == array else flow.maker[made]
        if maker != NOBODY and task_of_node[maker] != NOBODY:
            homes[array] = owner[maker]
            if flow.problem.donated.get(output) == position and made is not None:
                permanent.add(made)
        else:
            readers = (owner[reader] for reader in flow.readers[array])
            homes[array] = min((o for o in readers if o != NOBODY), default=0)
    return homes, permanent
