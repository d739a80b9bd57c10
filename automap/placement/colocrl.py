"""ColocRL's game: a sequence-to-sequence policy places groups of operators, trained with REINFORCE
on the step that it is about (Mirhoseini et al. 2017); the agent is `rl.reinforce`. Policies are in
`automap.placement.policies` and `automap.placement.measured`.

group    operators that are always on one device. An operator here is already an operation with its
         gradients and update; the paper joins X with Y if Y alone reads X, until nothing changes,
         which `merged_groups` does. On these graphs that leaves a whole chain in one group, as all
         of an LSTM's grid ends in one loss. For its tables the paper made groups by hand: cells,
         look-ups, attention and softmax steps, and the branches of Inception. The first are
         operators, of which those without weights, as attention's products, go to the one that
         alone reads them                                                -> in: `step_groups`
         Branches are operators joined where Y alone reads X and reads nothing else
                                                                         -> in: `branch_groups`
element  a group as the policy sees it: its kind is what begins its first operator (a dot, a
         convolution, a look-up), its sizes are the shapes of the largest arrays that it gives to
         others in the forward pass, in four numbers each
cost     R = sqrt(seconds of the simulated step); infinite for what does not fit
failing  sqrt of the seconds of everything on the slowest device for it and every tensor sent over
         the slowest route, one after the other: no placement takes longer
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
import math
from typing import Final

import numpy as np

from automap.placement.dataflow import NOBODY
from automap.placement.prices import price_all
from automap.placement.search import Placed, Search
from automap.placement.tasks import PlacementProblem
from automap.placement.timeline import Machine, Step
from hlo_tools.analyses.phases import Phase
from rl.sequences import ReinforceConfig, SequenceTask


UPDATES: Final = 400
"""Of a run, in which the same seed gives the same plan."""
CHANCE: Final = 0.9
# Shapes of an element: so many arrays, so many numbers of each.
_ARRAYS, _NUMBERS = 2, 4
PAPERS: Final = ReinforceConfig(hidden=32, learning_rate=3e-3)
FROM_HEFT: Final = ReinforceConfig(hidden=32, learning_rate=3e-3, is_aligned=True)


@dataclass(frozen=True)
class PlacementScore:
    """Costs of sequences of devices, one for each group; can be pickled."""

    step: Step
    machine: Machine
    group: np.ndarray

    def __call__(self, sequences: np.ndarray) -> np.ndarray:
        """The square root of a step's seconds [K] of sequences [K, groups]."""
        seconds, overflow = price_all(self.step, self.machine, sequences[:, self.group])
        return np.where(overflow == 0.0, np.sqrt(seconds), np.inf)


@dataclass(frozen=True)
class PlacementGame:
    """A placement problem as a task of `rl`, and its score."""

    task: SequenceTask
    score: PlacementScore


def placement_game(search: Search, group: np.ndarray, prior: Placed | None) -> PlacementGame:
    """The game of a group for each operator [operators], numbered by their first operators."""
    problem, n_devices = search.simulator.problem, search.n_devices
    n_groups = int(group.max()) + 1
    known = np.zeros((n_groups, n_devices), np.float32)
    if prior is not None and n_devices > 1:
        known += math.log((1.0 - CHANCE) / (n_devices - 1))
        # Of the group's operators the first says it: HEFT does not know groups.
        _, first = np.unique(group, return_index=True)
        known[np.arange(n_groups), np.array(prior.device)[first]] = math.log(CHANCE)
    kinds, n_kinds = _kinds(problem, group)
    task = SequenceTask(
        kinds=kinds,
        n_kinds=n_kinds,
        sizes=_sizes(problem, group),
        edges=_group_edges(problem, group),
        allowed=np.ones((n_groups, n_devices), bool),
        prior=known,
        failing_signal=_failing_signal(search),
    )
    simulator = search.simulator
    return PlacementGame(task, PlacementScore(simulator.step, simulator.machine, group))


def merged_groups(problem: PlacementProblem) -> np.ndarray:
    """The paper's rule: a group that one other alone reads goes to that; [operators]."""
    return _joined(problem, lambda _, readers, makers: len(readers) == 1)


def branch_groups(problem: PlacementProblem) -> np.ndarray:
    """Chains: a group that one other alone reads, which reads nothing else; [operators]."""
    return _joined(problem, lambda _, readers, makers: len(readers) == 1 and len(makers) == 1)


def step_groups(problem: PlacementProblem) -> np.ndarray:
    """Cells, look-ups, attention and softmax steps: operators, but those without weights go to the
    one that alone reads them; [operators].
    """
    weighted = {
        problem.tasks[reader].operator
        for x in problem.tensors
        if x.home != NOBODY
        for reader in x.readers
        if problem.tasks[reader].phase is Phase.FORWARD
    }
    return _joined(problem, lambda one, readers, _: len(readers) == 1 and one not in weighted)


def _joined(
    problem: PlacementProblem, is_joined: Callable[[int, set[int], set[int]], bool]
) -> np.ndarray:
    """Groups joined until nothing changes; the rule is asked with a group, its readers, and the
    makers of what its first reader reads.
    """
    group = list(range(problem.n_operators))
    forward = _forward_edges(problem)
    while True:
        readers: dict[int, set[int]] = {}
        makers: dict[int, set[int]] = {}
        for a, b in forward:
            if group[a] != group[b]:
                readers.setdefault(group[a], set()).add(group[b])
                makers.setdefault(group[b], set()).add(group[a])
        # One round: a group that another is joined to waits for the next.
        target = dict[int, int]()
        for one, others in sorted(readers.items()):
            other = min(others)
            if one not in target.values() and other not in target:
                if is_joined(one, others, makers[other]):
                    target[one] = other
        if not target:
            break
        group = [target.get(g, g) for g in group]
    number: dict[int, int] = {}
    return np.array([number.setdefault(g, len(number)) for g in group])


def _forward_edges(problem: PlacementProblem) -> list[tuple[int, int]]:
    """(maker, reader) operators of what the forward pass sends."""
    tasks, edges = problem.tasks, set[tuple[int, int]]()
    for x in problem.tensors:
        if x.maker != NOBODY and tasks[x.maker].phase is Phase.FORWARD:
            source = tasks[x.maker].operator
            for reader in x.receivers:
                if tasks[reader].phase is Phase.FORWARD and tasks[reader].operator != source:
                    edges.add((source, tasks[reader].operator))
    return sorted(edges)


def _group_edges(problem: PlacementProblem, group: np.ndarray) -> np.ndarray:
    """(maker, reader) groups, int64 [edges, 2]."""
    pairs = {(int(group[a]), int(group[b])) for a, b in _forward_edges(problem)}
    return np.array(sorted(p for p in pairs if p[0] != p[1]), np.int64).reshape(-1, 2)


def _kinds(problem: PlacementProblem, group: np.ndarray) -> tuple[np.ndarray, int]:
    """The kind of each group, and how many there are."""
    flow = problem.operators.dataflow
    opcode = [""] * problem.n_operators
    for task in problem.tasks:
        if not opcode[task.operator] and task.nodes and flow.ops[task.nodes[0]]:
            opcode[task.operator] = max(
                (flow.problem.graph.ops[op].opcode for n in task.nodes for op in flow.ops[n]),
                key=lambda name: (name in _TELLING, name),
            )
    _, first = np.unique(group, return_index=True)
    number: dict[str, int] = {}
    kinds = [number.setdefault(opcode[operator], len(number)) for operator in first.tolist()]
    return np.array(kinds), len(number)


# Opcodes that say what an operator is, whatever else it does.
_TELLING: Final = frozenset({"dot", "convolution", "gather"})


def _sizes(problem: PlacementProblem, group: np.ndarray) -> np.ndarray:
    """Shapes of the largest arrays that each group gives to others, zeros behind."""
    flow, tasks = problem.operators.dataflow, problem.tasks
    owner = np.full(len(flow.names), NOBODY)
    for task in tasks:
        if task.phase is Phase.FORWARD:
            owner[list(task.nodes)] = group[task.operator]
    result = np.zeros((int(group.max()) + 1, _ARRAYS, _NUMBERS), np.float32)
    shapes: list[list[Sequence[int]]] = [[] for _ in result]
    for node, arrays in enumerate(flow.writes):
        mine = owner[node]
        if mine == NOBODY:
            continue
        given = [a for a in arrays if any(owner[r] not in (mine, NOBODY) for r in flow.readers[a])]
        if given and flow.ops[node]:
            values = flow.problem.graph.ops[flow.ops[node][-1]].outputs
            shapes[mine] += [flow.problem.graph.values[v].dims for v in values]
    for row, its in zip(result, shapes, strict=True):
        largest = sorted(its, key=lambda shape: -math.prod(shape))[:_ARRAYS]
        for line, shape in zip(row, largest, strict=False):
            line[: min(len(shape), _NUMBERS)] = shape[:_NUMBERS]
    return result.reshape(len(result), -1)


def _failing_signal(search: Search) -> float:
    machine, problem = search.simulator.machine, search.simulator.problem
    seconds = float(problem.seconds.max(axis=0).sum())
    apart = ~np.eye(search.n_devices, dtype=bool)
    if apart.any():
        n_sent = sum(len(x.receivers) for x in problem.tensors)
        n_bytes = sum(x.moved_bytes * len(x.receivers) for x in problem.tensors)
        seconds += n_sent * float(machine.latency[apart].max())
        seconds += n_bytes / float(machine.rate[apart].min())
    return math.sqrt(seconds)
