"""Placements without a search: what searches begin with, and what they are compared with.

single      all operators on the one device that takes least
data-parallel
            the samples over all devices of the fastest kind, or the most that divide them; single
            where operators are whole
expert      a person's plan: layers (the operators of one parameter, over all time steps) in order,
            cut in as many parts of about equal seconds as there are devices of the fastest kind
                                                                             -> in: `layer_parts`
heft        Heterogeneous Earliest Finish Time (Topcuoglu, Hariri and Wu 2002): tasks by descending

                rank(t) = mean seconds of t + max over its readers r of (mean sending + rank(r))

            each on the device where it ends first, in a gap between others where it fits into one
m-sct       Small Communication Times under memory (Hanen and Munier 1995, as in Baechi: Jeon et al.
            2020), on the devices of the fastest kind. A linear programme gives each task at most
            one favourite reader, which is to run behind it on its device:

                min w,  s_r >= s_t + p_t + c_tr x_tr,  s_t + p_t <= w,  0 <= x <= 1
                sum over readers r of t of x_tr >= readers - 1, the same over makers of r

            x_tr < FAVOURITE makes r the favourite of t. Then whatever can start first starts next;
            a device that has just run t waits for a ready favourite of t, and others count its wait
                                                                             -> in: `_favourites`
memory      fits wherever the slowest kind holds everything: operators in order fill the devices,
            the fastest kind first, each up to a share of its memory by all that an operator stores
            and makes in a step; the greatest of SHARES of which the placement fits
optcnn      OptCNN's assumption (Jia et al., ICML 2018): nothing runs at once, and all time steps of
            a layer are one operator. A descent over layers from the better of single and
            data-parallel, where OptCNN has dynamic programming   -> in: `serial_seconds`, `optcnn`
mincut      METIS (Karypis and Kumar 1998): the fewest bytes between parts of about equal seconds on
            the devices of the fastest kind; operators and devices are halved until each device is
            alone, as by Scotch, the library of ColocRL's tables, which has no wheel
mapping     the same for all devices, parts in proportion to their speed, as Scotch's static mapping
            weighs a target architecture

The tasks of an operator are on one device: the first that is placed takes the others along, as do
gradients in ColocRL and Baechi. heft and m-sct leave out devices whose memory is full: what an
operator stores and keeps to its backward pass, all of it at once, which is at least the peak.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from typing import Final

import numpy as np
import scipy  # its `optimize` is loaded at first use, which most runs never come to
from scipy.sparse import coo_array

from automap.errors import InputError
from automap.placement.dataflow import NOBODY
from automap.placement.prices import serial_seconds
from automap.placement.search import Placed, Search


SHARES: Final = tuple(n / 20 for n in range(20, -1, -1))
# As Baechi rounds the relaxed programme.
FAVOURITE: Final = 0.1


def single(search: Search) -> Placed:
    """All on the device that takes least, of those that hold it."""
    count = search.simulator.problem.n_operators
    return min((search.place([d] * count) for d in range(search.n_devices)), key=lambda p: p.rank)


def data_parallel(search: Search) -> Placed:
    """The samples over as many of the fastest devices as divide them."""
    problem, choices = search.simulator.problem, search.simulator.machine.choices
    splits = search.simulator.splits
    if splits is None or splits.samples is None:
        return single(search)
    is_fast = np.isin(choices.device[:, 0], fastest_devices(search))
    is_batch = is_fast & (choices.split_class[:, 0] == splits.samples)
    options = np.flatnonzero(is_batch & (choices.split_class[:, 1] < 0))
    if len(options) == 0:
        return single(search)
    most = options[choices.n_parts[options].argmax()]
    return search.place([int(most)] * problem.n_operators)


def expert(search: Search) -> Placed:
    """The layers in order on the devices of the fastest kind."""
    problem, devices = search.simulator.problem, fastest_devices(search)
    kind = search.simulator.machine.kind[devices[0]]
    part = layer_parts(problem.operator_seconds[kind], search.layers, len(devices))
    return search.place(devices[part].tolist())


def heft(search: Search) -> Placed:
    """Tasks by their rank, each where it ends first."""
    graph = _TaskGraph(search, np.arange(search.n_devices))
    seconds = graph.seconds.mean(axis=0)
    rank = np.zeros(len(seconds))
    for task in range(len(seconds) - 1, -1, -1):
        after = [graph.mean_sending(e) + rank[graph.reader[e]] for e in graph.sends[task]]
        rank[task] = seconds[task] + max(after, default=0.0)
    # Of equal ranks the earlier task: numbers are an order in which tasks can run.
    for task in np.lexsort((np.arange(len(rank)), -rank)).tolist():
        options = [(graph.fit(task, d), d) for d in graph.devices_for(task)]
        start, device = min(options, key=lambda o: (o[0] + graph.seconds[o[1], task], o[1]))
        graph.put(task, device, start)
    return search.place(graph.placement())


def m_sct(search: Search) -> Placed:
    """Whatever can start first, next to what it is the favourite of."""
    graph = _TaskGraph(search, fastest_devices(search))
    favourite = _favourites(graph)
    missing = [len(edges) for edges in graph.receives]
    ready = {task for task, count in enumerate(missing) if count == 0}
    waited_for = np.full(search.n_devices, NOBODY)
    while ready:
        options = []
        for task, device in ((t, d) for t in ready for d in graph.devices_for(t)):
            start, awaited = graph.append(task, device), waited_for[device]
            if awaited != task and awaited in ready and device in graph.devices_for(awaited):
                # Its favourite comes first, and what is put before it waits for that.
                start = max(start, graph.append(awaited, device) + graph.seconds[device, awaited])
            options.append((start, task, device))
        start, task, device = min(options)
        graph.put(task, device, start)
        ready.remove(task)
        waited_for[device] = favourite[task]
        for edge in graph.sends[task]:
            reader = graph.reader[edge]
            missing[reader] -= 1
            if missing[reader] == 0:
                ready.add(reader)
    return search.place(graph.placement())


def optcnn(search: Search) -> Placed:
    """Layers where a step is shortest if nothing runs at once; a local optimum of that sum."""
    simulator, layers = search.simulator, search.layers
    step, machine, able = simulator.step, simulator.machine, simulator.able
    starts = (np.array(each(search).device, np.int64) for each in (single, data_parallel))
    chosen = min(starts, key=lambda c: serial_seconds(step, machine, c))
    least, is_better = serial_seconds(step, machine, chosen), True
    while is_better and not search.deadline.is_over:
        is_better = False
        for layer in np.unique(layers):
            for choice in np.flatnonzero(able[layers == layer].all(axis=0)):
                changed = np.where(layers == layer, choice, chosen)
                seconds = serial_seconds(step, machine, changed)
                if seconds < least:
                    chosen, least, is_better = changed, seconds, True
    return search.place(chosen.tolist())


def memory(search: Search) -> Placed:
    """Devices filled one after the other, as much as fits."""
    problem, machine = search.simulator.problem, search.simulator.machine
    needed = problem.state_bytes.copy()
    for x in problem.tensors:
        if x.maker != NOBODY:
            needed[problem.tasks[x.maker].operator] += x.kept_bytes
    kinds = problem.operator_seconds.sum(axis=1)[machine.kind]
    devices = np.lexsort((np.arange(search.n_devices), kinds))
    results = []
    for share in SHARES:
        # What is left at the end is the last device's, whatever it holds.
        filled = np.cumsum(machine.memory_bytes[devices[:-1]] * share)
        place = np.searchsorted(filled, np.cumsum(needed))
        results.append(search.place(devices[place].tolist()))
        if results[-1].fits:
            break
    return min(results, key=lambda p: p.rank)


def mincut(search: Search) -> Placed:
    """Few bytes between parts of equal seconds on the fastest devices."""
    return search.place(_partition(search, fastest_devices(search)))


def mapping(search: Search) -> Placed:
    """Few bytes between parts of equal seconds on all devices."""
    return search.place(_partition(search, np.arange(search.n_devices)))


def fastest_devices(search: Search) -> np.ndarray:
    """The devices of the kind on which the whole step takes least."""
    kinds = search.simulator.problem.operator_seconds.sum(axis=1)
    return np.flatnonzero(search.simulator.machine.kind == int(kinds.argmin()))


def layer_parts(seconds: np.ndarray, layers: np.ndarray, n_parts: int) -> np.ndarray:
    """The part of each operator: whole layers in order, each part of about equal seconds."""
    by_layer = np.bincount(layers, seconds)
    middle = np.cumsum(by_layer) - by_layer / 2
    part = np.floor(middle / max(by_layer.sum(), 1e-300) * n_parts).astype(np.int64)
    return np.minimum(part, n_parts - 1)[layers]


@dataclass
class _TaskGraph:
    """Tasks with what they send each other, and a schedule on `devices` that grows."""

    search: Search
    devices: np.ndarray
    seconds: np.ndarray = field(init=False)
    device: dict[int, int] = field(default_factory=dict)
    end: dict[int, float] = field(default_factory=dict)
    busy: dict[int, list[tuple[float, float]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Join what a task sends another, whatever it is made of."""
        problem, machine = self.search.simulator.problem, self.search.simulator.machine
        self.seconds = problem.seconds[machine.kind]
        edges: dict[tuple[int, int], float] = {}
        for x in problem.tensors:
            for reader in x.receivers if x.maker != NOBODY else ():
                key = (x.maker, reader)
                edges[key] = edges.get(key, 0.0) + x.moved_bytes
        self.maker, self.reader = ([e[i] for e in edges] for i in (0, 1))
        self.n_bytes = list(edges.values())
        self.sends: list[list[int]] = [[] for _ in problem.tasks]
        self.receives: list[list[int]] = [[] for _ in problem.tasks]
        for edge, (maker, reader) in enumerate(edges):
            self.sends[maker].append(edge)
            self.receives[reader].append(edge)
        self.operator = [task.operator for task in problem.tasks]
        self.held = problem.state_bytes + problem.activation_bytes
        self.room = machine.memory_bytes.copy()

    @cached_property
    def _pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean latency, and mean seconds for a byte, over pairs of different devices."""
        machine = self.search.simulator.machine
        apart = [(a, b) for a in self.devices for b in self.devices if a != b]
        if not apart:
            return np.zeros(()), np.zeros(())
        rows, columns = np.array(apart).T
        return machine.latency[rows, columns].mean(), (1.0 / machine.rate[rows, columns]).mean()

    def mean_sending(self, edge: int) -> float:
        """Seconds that an edge takes between two devices, in the mean."""
        latency, per_byte = self._pairs
        return float(latency + self.n_bytes[edge] * per_byte)

    def devices_for(self, task: int) -> Sequence[int]:
        """Where a task may run: where its operator is, else where that has room, else the device
        that has the most.
        """
        operator = self.operator[task]
        if operator in self.device:
            return (self.device[operator],)
        roomy = [int(d) for d in self.devices if self.room[d] >= self.held[operator]]
        return roomy or (int(self.devices[self.room[self.devices].argmax()]),)

    def arrival(self, task: int, device: int) -> float:
        """When all that a task reads is on a device."""
        machine, latest = self.search.simulator.machine, 0.0
        for edge in self.receives[task]:
            maker = self.maker[edge]
            source = self.device[self.operator[maker]]
            seconds = self.end[maker]
            if source != device:
                seconds += machine.latency[source, device]
                seconds += self.n_bytes[edge] / machine.rate[source, device]
            latest = max(latest, seconds)
        return latest

    def fit(self, task: int, device: int) -> float:
        """The earliest start of a task in a gap of a device."""
        start, taken = self.arrival(task, device), self.seconds[device, task]
        for begin, end in self.busy.get(device, ()):
            if start + taken <= begin:
                break
            start = max(start, end)
        return start

    def append(self, task: int, device: int) -> float:
        """The earliest start of a task behind all of a device."""
        busy = self.busy.get(device)
        return max(self.arrival(task, device), busy[-1][1] if busy else 0.0)

    def put(self, task: int, device: int, start: float) -> None:
        """Let a task run."""
        operator = self.operator[task]
        if operator not in self.device:
            self.device[operator] = device
            self.room[device] -= self.held[operator]
        self.end[task] = start + float(self.seconds[device, task])
        if self.end[task] > start:
            busy = self.busy.setdefault(device, [])
            busy.append((start, self.end[task]))
            busy.sort()

    def placement(self) -> list[int]:
        """The device of each operator."""
        count = self.search.simulator.problem.n_operators
        return [self.device.get(operator, int(self.devices[0])) for operator in range(count)]


def _favourites(graph: _TaskGraph) -> list[int]:
    """The favourite reader of each task, `NOBODY` for none."""
    n, m = len(graph.sends), len(graph.maker)
    seconds = graph.seconds[graph.devices[0]]
    sending = np.array([graph.mean_sending(edge) for edge in range(m)])
    edges, last = np.arange(m), n + m
    ones = np.ones(m)
    # Variables: starts of tasks, x of edges, w. Rows: an edge's order, a task's end, what a task
    # sends, what it receives.
    entries = [
        (edges, np.array(graph.maker, np.int64), ones),
        (edges, np.array(graph.reader, np.int64), -ones),
        (edges, n + edges, sending),
        (m + np.arange(n), np.arange(n), np.ones(n)),
        (m + np.arange(n), np.full(n, last), -np.ones(n)),
        (m + n + np.array(graph.maker, np.int64), n + edges, -ones),
        (m + 2 * n + np.array(graph.reader, np.int64), n + edges, -ones),
    ]
    row, column, value = (np.concatenate([entry[i] for entry in entries]) for i in range(3))
    counts = [np.array([max(len(e) - 1, 0) for e in x]) for x in (graph.sends, graph.receives)]
    bounds = np.concatenate([-seconds[graph.maker], -seconds, -counts[0], -counts[1]])
    result = scipy.optimize.linprog(
        np.eye(1, last + 1, last)[0],
        A_ub=coo_array((value, (row, column)), shape=(m + 3 * n, last + 1)).tocsr(),
        b_ub=bounds,
        bounds=np.array([[0.0, np.inf]] * n + [[0.0, 1.0]] * m + [[0.0, np.inf]]),
        method="highs",
    )
    x = result.x[n:last] if result.x is not None else ones
    favourite = [NOBODY] * n
    for edge in np.flatnonzero(x < FAVOURITE):
        favourite[graph.maker[edge]] = graph.reader[edge]
    return favourite


def partitions(search: Search) -> list[Placed]:
    """Those of METIS, none where it is not installed."""
    return [] if find_spec("pymetis") is None else [mincut(search), mapping(search)]


def _partition(search: Search, devices: np.ndarray) -> list[int]:
    """Operators to devices by METIS. Raises `InputError` if it is not installed."""
    if find_spec("pymetis") is None:
        raise InputError("partitions need METIS: pip install 'jax-automap[partitions]'")
    import pymetis  # pyright: ignore[reportMissingImports]

    problem, count = search.simulator.problem, search.simulator.problem.n_operators
    seconds = problem.operator_seconds[search.simulator.machine.kind[devices]]
    weight, speed = seconds.mean(axis=0), 1.0 / np.maximum(seconds.sum(axis=1), 1e-300)
    pairs = np.array(list(problem.edges), np.int64).reshape(-1, 2).T
    one_way = coo_array((list(problem.edges.values()), pairs), (count, count)).tocsr()
    joined = (one_way + one_way.T).tocsr()
    part, left = np.zeros(count, np.int64), [(np.arange(count), np.arange(len(devices)))]
    while left:
        operators, its = left.pop()
        if len(its) == 1 or len(operators) <= 1:
            part[operators] = its[speed[its].argmax()]
            continue
        # In two at a time: where METIS makes more and one gets no operator, it prints complaints.
        middle = (len(its) + 1) // 2
        share = float(speed[its[:middle]].sum() / speed[its].sum())
        graph = joined[operators][:, operators]
        _, side = pymetis.part_graph(
            2,
            pymetis.CSRAdjacency(graph.indptr.tolist(), graph.indices.tolist()),
            vweights=_weights(weight[operators]),
            eweights=_weights(graph.data),
            tpwgts=[share, 1.0 - share],
            recursive=True,
        )
        is_first = np.array(side) == 0
        left += [(operators[is_first], its[:middle]), (operators[~is_first], its[middle:])]
    return devices[part].tolist()


def _weights(values: np.ndarray) -> list[int]:
    """Whole numbers in proportion, as METIS takes them, of which the sum is within 32 bits."""
    total = max(float(values.sum()), 1e-300)
    return np.maximum(np.round(values / total * 2**24), 1).astype(int).tolist()
