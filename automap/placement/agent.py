"""A pretrained policy: operators one after the other, each on the device that a network prefers.
It was trained once, on generated graphs (`scripts/train_placement_agent.py`); a new step is placed
without training.

order     operators by HEFT's rank, of whole operators                   -> in: `Course.order`
state     what is decided, as a schedule of the forward pass: an operator starts when what it reads
          is there and its device is free; all of its seconds are the device's load
                                                                         -> in: `Progress.put`
action    a device; described by numbers without units that do not depend on how many devices there
          are or how they are numbered                                   -> in: `Progress.described`
graph     of each operator its seconds, bytes and edges, and the means of these over makers and
          readers, one and two edges away: a graph network of linear layers (Wu et al. 2019,
          "Simplifying graph convolutional networks"), whose readout is trained
                                                                         -> in: `_convolved`
worth     Q(state, device) = -log(seconds of the best placement that goes on so / of the best)
                           ~ what is known without learning, -(end - least end) / unit, at most
                             MOST_BEHIND of it, less FULL where the memory is full,
                             + what is learnt                            (`automap.action_network`)
scale     of N operators one decides about 1/N of a step, while a network's errors do not shrink:
          what it has learnt on graphs of TRAINED operators counts TRAINED / N on larger ones, and
          so does the noise                                              -> in: `Course.scale`
draws     the first takes the device of the greatest Q, the others that of Q + temperature * Gumbel
          noise; all are priced, and the best counts                     -> in: `drawn`

The network is told where HEFT, m-SCT, the expert and the best single device put the operator, and
how fast those placements are. Without weights the same draws are made by what is known alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Final

import numpy as np

from automap.action_network import Weights, WeightsFormat, learnt_values, load_weights
from automap.placement.baselines import expert, fastest_devices, heft, m_sct, memory, single
from automap.placement.dataflow import NOBODY
from automap.placement.prices import price_all
from automap.placement.search import Placed, Search
from hlo_tools.analyses.phases import Phase


DRAWS: Final = 32
# Operators: the mean over the graphs that it was trained on.
TRAINED: Final = 14
# Of the noise in Q: half of the draws stay near what is thought best, others look further.
TEMPERATURES: Final = (0.002, 0.005, 0.01, 0.02)
FULL: Final = 0.2
MOST_BEHIND: Final = 0.2
_HINTS: Final = 4
_SIGNALS: Final = 4
ACTION_FEATURES: Final = 17 + _HINTS
STATE_FEATURES: Final = 11 + 2 * _HINTS + 5 * _SIGNALS
SHIPPED: Final = Path(__file__).with_name("agent.safetensors")
FORMAT: Final = WeightsFormat(
    name="automap-placement-agent 1",
    n_features=ACTION_FEATURES,
    n_flat=STATE_FEATURES,
    trained_by="scripts/train_placement_agent.py",
)


def agent(search: Search) -> Placed:
    """The best of the policy's draws, of the baselines that it knows, and of `memory`."""
    course = Course(search)
    best = drawn(course, shipped_weights(), search.seed)
    return min((best, *course.hints, memory(search)), key=lambda p: p.rank)


def drawn(course: "Course", weights: Weights | None, seed: int, draws: int = DRAWS) -> Placed:
    """The best of so many draws; without weights nothing is learnt."""
    search, rng = course.search, np.random.default_rng(seed)
    rows: list[np.ndarray] = []
    for number in range(draws):
        # The first is always made, as a placement is wanted however late it is.
        if rows and search.deadline.is_over:
            break
        temperature = TEMPERATURES[number % len(TEMPERATURES)] if number else 0.0
        noise = rng.gumbel(size=(course.n_operators, search.n_devices))
        noise *= temperature * course.scale
        progress = Progress(course)
        for operator in course.order:
            features, flat, known = progress.described(operator)
            learnt = (
                course.scale * learnt_values(weights, features, flat)
                if weights is not None
                else 0.0
            )
            progress.put(operator, int((known + learnt + noise[operator]).argmax()))
        rows.append(progress.device)
    seconds, overflow = price_all(
        search.simulator.step, search.simulator.machine, np.array(rows, np.int64)
    )
    search.priced += len(rows)
    place = min(range(len(rows)), key=lambda n: (overflow[n], seconds[n]))
    return search.place(rows[place].tolist())


@dataclass(frozen=True)
class Course:
    """What does not change while a step is placed."""

    search: Search

    @property
    def n_operators(self) -> int:
        """Operators 0 .. n - 1."""
        return self.search.simulator.problem.n_operators

    @property
    def scale(self) -> float:
        """What is learnt counts so much."""
        return min(1.0, TRAINED / self.n_operators)

    @cached_property
    def hints(self) -> tuple[Placed, ...]:
        """Baselines that the network is told of."""
        return tuple(strategy(self.search) for strategy in (heft, m_sct, expert, single))

    @cached_property
    def seconds(self) -> np.ndarray:
        """Of all tasks of each operator, [devices, operators]."""
        problem, machine = self.search.simulator.problem, self.search.simulator.machine
        return problem.operator_seconds[machine.kind]

    @cached_property
    def forward_seconds(self) -> np.ndarray:
        """Of the forward pass alone, [devices, operators]."""
        problem, machine = self.search.simulator.problem, self.search.simulator.machine
        owner = [task.operator for task in problem.tasks]
        is_forward = [task.phase is Phase.FORWARD for task in problem.tasks]
        rows = [np.bincount(owner, row * is_forward, self.n_operators) for row in problem.seconds]
        return np.array(rows)[machine.kind]

    @cached_property
    def unit(self) -> float:
        """Seconds of the fastest device for everything."""
        return max(float(self.seconds.sum(axis=1).min()), 1e-12)

    @cached_property
    def held_bytes(self) -> np.ndarray:
        """What each operator stores and keeps, as HEFT counts it."""
        problem = self.search.simulator.problem
        return problem.state_bytes + problem.activation_bytes

    @cached_property
    def forward_edges(self) -> dict[tuple[int, int], int]:
        """(maker, reader) -> bytes of the forward pass."""
        problem, edges = self.search.simulator.problem, dict[tuple[int, int], int]()
        for x in problem.tensors:
            if x.maker == NOBODY or problem.tasks[x.maker].phase is not Phase.FORWARD:
                continue
            source = problem.tasks[x.maker].operator
            readers = {problem.tasks[r] for r in x.receivers}
            for target in {t.operator for t in readers if t.phase is Phase.FORWARD} - {source}:
                edges[source, target] = edges.get((source, target), 0) + x.moved_bytes
        return edges

    @cached_property
    def makers(self) -> list[list[tuple[int, int]]]:
        """(maker, bytes) of each operator's forward pass."""
        lists: list[list[tuple[int, int]]] = [[] for _ in range(self.n_operators)]
        for (source, target), n_bytes in self.forward_edges.items():
            lists[target].append((source, n_bytes))
        return lists

    @cached_property
    def neighbours(self) -> list[list[tuple[int, int]]]:
        """(other, bytes) of all that is sent between operators in a step, either way."""
        lists: list[list[tuple[int, int]]] = [[] for _ in range(self.n_operators)]
        for (source, target), n_bytes in self.search.simulator.problem.edges.items():
            lists[source].append((target, n_bytes))
            lists[target].append((source, n_bytes))
        return lists

    @cached_property
    def sending(self) -> tuple[float, float]:
        """Mean latency, and mean seconds for a byte, between two devices."""
        machine = self.search.simulator.machine
        apart = ~np.eye(self.search.n_devices, dtype=bool)
        if not apart.any():
            return 0.0, 0.0
        return float(machine.latency[apart].mean()), float((1.0 / machine.rate[apart]).mean())

    @cached_property
    def order(self) -> list[int]:
        """Operators by the longest way to the end, so that makers come before readers."""
        latency, per_byte = self.sending
        mean, rank = self.seconds.mean(axis=0), np.zeros(self.n_operators)
        readers: list[list[tuple[int, int]]] = [[] for _ in rank]
        for (source, target), n_bytes in self.forward_edges.items():
            readers[source].append((target, n_bytes))
        # Operators are numbered in the order of the forward pass.
        for operator in range(self.n_operators - 1, -1, -1):
            after = (latency + n * per_byte + rank[r] for r, n in readers[operator])
            rank[operator] = mean[operator] + max(after, default=0.0)
        return np.lexsort((np.arange(self.n_operators), -rank)).tolist()

    @cached_property
    def constant_features(self) -> np.ndarray:
        """The part of the state's features that is of the operator and of the step alone,
        [operators, ..].
        """
        search, count = self.search, self.n_operators
        memory = search.simulator.machine.memory_bytes
        latency, per_byte = self.sending
        least = self.seconds.min(axis=0)
        sent = np.array([sum(latency + n * per_byte for _, n in its) for its in self.neighbours])
        mean_seconds = self.unit / count
        signals = np.stack(
            [
                _log_ratio(least, mean_seconds),
                _log_ratio(self.held_bytes, float(memory.mean())),
                _log_ratio(sent, mean_seconds),
                np.array([len(its) for its in self.neighbours]) / 8.0,
            ],
            axis=1,
        )
        total = float(self.held_bytes.sum())
        best = min(p.seconds for p in self.hints)
        step_numbers = [
            np.log2(search.n_devices) / 3.0,
            np.log2(count) / 8.0,
            float(_log_ratio(np.array(sent.sum() / 2), self.unit)),
            float(_log_ratio(np.array(total), float(memory.sum()))),
            float(_log_ratio(np.array(total), float(memory.max()))),
            len(fastest_devices(search)) / search.n_devices,
            float(_log_ratio(np.array(self.seconds.sum(axis=1).max()), self.unit)),
            *(min(np.log(max(p.seconds, 1e-12) / max(best, 1e-12)), 3.0) for p in self.hints),
            *(float(p.fits) for p in self.hints),
        ]
        makers = list(self.forward_edges)
        wide = np.concatenate([signals, *_convolved(signals, makers)], axis=1)
        return np.concatenate([np.tile(step_numbers, (count, 1)), wide], axis=1).astype(np.float32)

    @cached_property
    def hinted(self) -> np.ndarray:
        """Whether a baseline puts an operator on a device, [operators, devices, hints]."""
        rows = np.array([p.device for p in self.hints])
        return (rows.T[:, None, :] == np.arange(self.search.n_devices)[:, None]).astype(np.float32)


def _log_ratio(values: np.ndarray, unit: float) -> np.ndarray:
    """log2(values / unit) / 8, within -2 and 2."""
    return np.clip(np.log2(np.maximum(values, 1e-12) / max(unit, 1e-12)) / 8.0, -2.0, 2.0)


def _convolved(signals: np.ndarray, edges: Sequence[tuple[int, int]]) -> list[np.ndarray]:
    """Means of signals [operators, S] over makers and over readers, one and two edges away."""
    if not edges:
        return [np.zeros_like(signals)] * 4
    maker, reader = np.array(edges).T
    result = []
    for source, target in ((maker, reader), (reader, maker)):
        count = np.maximum(np.bincount(target, minlength=len(signals)), 1)[:, None]
        around = signals
        for _ in range(2):
            total = np.zeros_like(signals)
            np.add.at(total, target, around[source])
            around = total / count
            result.append(around)
    return result


@dataclass
class Progress:
    """A placement that is being made: the device of each operator, `NOBODY` before it is decided;
    when its forward pass ends; when each device is free, its load in seconds, and its room.
    """

    course: Course
    device: np.ndarray = field(init=False)
    end: np.ndarray = field(init=False)
    free: np.ndarray = field(init=False)
    load: np.ndarray = field(init=False)
    room: np.ndarray = field(init=False)
    placed: int = 0

    def __post_init__(self) -> None:
        """Nothing is decided."""
        search, count = self.course.search, self.course.n_operators
        self.device, self.end = np.full(count, NOBODY), np.zeros(count)
        self.free, self.load = np.zeros(search.n_devices), np.zeros(search.n_devices)
        self.room = search.simulator.machine.memory_bytes.copy()

    def put(self, operator: int, device: int) -> None:
        """Decide one operator."""
        seconds = self.course.forward_seconds[device, operator]
        start = max(self._arrival(operator)[device], self.free[device])
        self.device[operator], self.end[operator] = device, start + seconds
        self.free[device] = start + seconds
        self.load[device] += self.course.seconds[device, operator]
        self.room[device] -= self.course.held_bytes[operator]
        self.placed += 1

    def _arrival(self, operator: int) -> np.ndarray:
        """When all that the operator reads is on each device."""
        machine, arrival = self.course.search.simulator.machine, np.zeros_like(self.free)
        for maker, n_bytes in self.course.makers[operator]:
            source = self.device[maker]
            if source == NOBODY:
                continue
            sending = machine.latency[source] + n_bytes / machine.rate[source]
            sending[source] = 0.0
            np.maximum(arrival, self.end[maker] + sending, out=arrival)
        return arrival

    def described(self, operator: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """An operator's devices as [devices, ACTION_FEATURES], the state as [STATE_FEATURES], and
        what is known of Q without learning [devices].
        """
        course, machine = self.course, self.course.search.simulator.machine
        count, unit = len(self.free), course.unit
        mean = unit / course.n_operators
        arrival = self._arrival(operator)
        end = np.maximum(arrival, self.free) + course.forward_seconds[:, operator]
        late, seconds = end - end.min(), course.seconds[:, operator]
        least = max(float(seconds.min()), 1e-12)
        apart, shared, total = np.zeros(count), np.zeros(count), 0.0
        for other, n_bytes in course.neighbours[operator]:
            there = self.device[other]
            if there == NOBODY:
                continue
            sending = machine.latency[there] + n_bytes / machine.rate[there]
            sending[there] = 0.0
            apart += sending
            shared[there] += n_bytes
            total += n_bytes
        layer = (course.search.layers == course.search.layers[operator]) & (self.device != NOBODY)
        in_layer = np.bincount(self.device[layer], minlength=count)
        last = self.device[np.flatnonzero(layer)[-1]] if layer.any() else NOBODY
        left = self.room - course.held_bytes[operator]
        loaded = self.load + seconds
        everything = np.bincount(self.device[self.device != NOBODY], minlength=count)
        features = np.stack(
            [
                np.minimum(late / mean, 10.0) / 4.0,
                np.minimum(late / unit, 1.0),
                np.clip(np.log2(np.maximum(seconds, 1e-12) / least), 0.0, 8.0) / 4.0,
                self.load / unit,
                (self.load - self.load.min()) / unit,
                np.clip(left / machine.memory_bytes, -2.0, 1.0),
                left >= 0.0,
                np.minimum((arrival - arrival.min()) / mean, 10.0) / 4.0,
                np.minimum(apart / mean, 10.0) / 4.0,
                np.minimum(apart / unit, 1.0),
                shared / max(total, 1.0),
                np.arange(count) == last,
                in_layer / max(int(layer.sum()), 1),
                everything == 0,
                np.maximum(loaded, self.load.max()) / unit,
                everything / max(self.placed, 1),
                machine.memory_bytes / machine.memory_bytes.max(),
                *course.hinted[operator].T,
            ],
            axis=1,
        ).astype(np.float32)
        flat = [
            self.placed / course.n_operators,
            float(self.load.sum() / unit) / 4.0,
            float(self.load.max() / unit),
            float((everything > 0).mean()),
        ]
        state = np.concatenate([flat, course.constant_features[operator]]).astype(np.float32)
        known = -np.minimum(late / unit, MOST_BEHIND) - FULL * (left < 0.0)
        return features, state, known.astype(np.float32)


@cache
def shipped_weights() -> Weights:
    """Those that come with the package."""
    return load_weights(SHIPPED, FORMAT)
