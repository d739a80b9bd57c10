"""Algorithms 1 and 2 of FlexFlow (section 5) in plain Python on an explicit task graph: what the
compiled simulators are compared with.

Written from the definitions, not from the compiled code: parts are boxes of fractions, a transfer
joins every pair of parts whose boxes overlap                             -> in: `explicit`
Algorithm 1 is `full_reference`; Algorithm 2 keeps a sorted list per resource and a heap of tasks to
look at                                                                   -> in: `delta_reference`
"""

import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
import heapq
import itertools
import math

from automap.simulate.operators.configuration import Configuration
from automap.simulate.operators.graph import ConsumerStep, Edge, OperatorGraph
from automap.simulate.operators.network import NO_MEDIUM, DeviceNetwork
from hlo_tools.rules import FactorKind


@dataclass(slots=True)
class Task:
    """One task, and the ids of those it waits for. `is_received`: it takes what the one before it
    sends, as it comes.
    """

    seconds: float
    resource: int
    waits_for: list[int] = field(default_factory=list)
    is_received: bool = False


@dataclass(frozen=True)
class _Part:
    """Part k of an operator: its place along each factor, its device."""

    k: int
    place: tuple[int, ...]
    device: int


def _parts(configuration: Configuration) -> list[_Part]:
    # The first factor runs fastest.
    places = itertools.product(*(range(degree) for degree in reversed(configuration.degrees)))
    return [
        _Part(k, tuple(reversed(place)), configuration.devices[k]) for k, place in enumerate(places)
    ]


def explicit(
    graph: OperatorGraph, network: DeviceNetwork, configurations: Sequence[Configuration]
) -> dict[int, Task]:
    """Every task by its id."""
    n = network.n_devices
    tasks: dict[int, Task] = {}
    done: dict[tuple[int, int], int] = {}
    id_of_part: dict[tuple[int, int], int] = {}
    late: list[tuple[int, Edge, int]] = []
    base = 0
    for o, (operator, configuration) in enumerate(
        zip(graph.operators, configurations, strict=True)
    ):
        parts = _parts(configuration)
        seconds = operator.part_seconds(configuration.degrees)
        for part in parts:
            id_of_part[o, part.k] = done[o, part.k] = base + part.k
            own_seconds = seconds / float(network.speed[part.device])
            tasks[base + part.k] = Task(own_seconds, part.device)
        adding = [f.kind is FactorKind.REDUCTION for f in operator.factors]
        n_bytes = operator.part_bytes(configuration.degrees)
        for ring in _rings(parts, adding):
            for part, task in _ring_tasks(ring, network, n_bytes, base):
                tasks[base + n + part.k] = task
                done[o, part.k] = base + n + part.k
        base += 2 * n
        for edge in (e for e in graph.edges if e.source == o):
            late.append((base, edge, o))
            base += 2 * n * n
    for first, edge, _ in late:
        _transfers(tasks, network, configurations, edge, first, done, id_of_part)
    return tasks


def _rings(parts: Sequence[_Part], adding: Sequence[bool]) -> Iterator[list[_Part]]:
    """Parts whose partial sums are added up, where there are several."""
    groups: dict[tuple[int, ...], list[_Part]] = {}
    for part in parts:
        key = tuple(-1 if adds else i for i, adds in zip(part.place, adding, strict=True))
        groups.setdefault(key, []).append(part)
    yield from (group for group in groups.values() if len(group) > 1)


def _ring_tasks(
    ring: Sequence[_Part], network: DeviceNetwork, n_bytes: float, base: int
) -> Iterator[tuple[_Part, Task]]:
    count, ring = len(ring), sorted(ring, key=lambda part: part.device)
    hops = [(ring[i - 1].device, ring[i].device) for i in range(count)]
    levels = (count - 1).bit_length()
    seconds = min(
        2
        * steps
        * max(
            float(network.latency_seconds[hop]) + n_bytes / float(network.bytes_per_s[hop]) / share
            for hop in hops
        )
        for steps, share in ((count - 1, count), (levels, 1))
    )
    for part, hop in zip(ring, hops, strict=True):
        waits = [base + member.k for member in ring]
        yield part, Task(seconds, network.n_devices + int(network.media[hop][0]), waits)


def _transfers(
    tasks: dict[int, Task],
    network: DeviceNetwork,
    configurations: Sequence[Configuration],
    edge: Edge,
    first: int,
    done: Mapping[tuple[int, int], int],
    id_of_part: Mapping[tuple[int, int], int],
) -> None:
    source, target = configurations[edge.source], configurations[edge.target]
    for b in _parts(target):
        wanted: dict[tuple[Fraction, ...], list[_Part]] = {}
        shares: dict[int, float] = {}
        for a in _parts(source):
            pairs = (*edge.dims, *edge.sums)
            overlaps = [_overlap(a, source, b, target, pair) for pair in pairs]
            if all(overlap > 0 for overlap in overlaps):
                box = tuple(Fraction(a.place[f], source.degrees[f]) for f, _ in pairs if f >= 0)
                wanted.setdefault(box, []).append(a)
                shares[a.k] = math.prod(float(x) for x in overlaps[: len(edge.dims)])
        for holders in wanted.values():
            here = [a for a in holders if a.device == b.device]
            a = here[0] if here else holders[b.k % len(holders)]
            ident = first + a.k * network.n_devices + b.k
            reader = (
                tasks[id_of_part[edge.target, b.k]]
                if edge.consumer_step is ConsumerStep.SAME_STEP
                else None
            )
            if a.device == b.device:
                ident = done[edge.source, a.k]
            else:
                hop = (a.device, b.device)
                seconds = edge.n_bytes * shares[a.k] / float(network.bytes_per_s[hop])
                out, into = (int(m) for m in network.media[hop])
                tasks[ident] = Task(
                    float(network.latency_seconds[hop]) + seconds,
                    network.n_devices + out,
                    [done[edge.source, a.k]],
                )
                if into != NO_MEDIUM:
                    received = Task(seconds, network.n_devices + into, [ident], is_received=True)
                    ident += network.n_devices**2
                    tasks[ident] = received
            if reader is not None:
                reader.waits_for.append(ident)


def _overlap(
    a: _Part, source: Configuration, b: _Part, target: Configuration, pair: tuple[int, int]
) -> Fraction:
    """Length of what both parts have of a dimension, as a share of all of it."""

    def interval(part: _Part, degrees: tuple[int, ...], factor: int) -> tuple[Fraction, Fraction]:
        if factor < 0:
            return Fraction(0), Fraction(1)
        degree = degrees[factor]
        return Fraction(part.place[factor], degree), Fraction(part.place[factor] + 1, degree)

    low_a, high_a = interval(a, source.degrees, pair[0])
    low_b, high_b = interval(b, target.degrees, pair[1])
    return min(high_a, high_b) - max(low_a, low_b)


@dataclass
class Schedule:
    """Tasks with the times they are ready and end, and each resource's tasks by (ready, id)."""

    tasks: dict[int, Task]
    ready: dict[int, float]
    end: dict[int, float]
    order: dict[int, list[tuple[float, int]]]


def _ready(task: Task, ready: Mapping[int, float], end: Mapping[int, float]) -> float:
    if task.is_received:
        (sent,) = task.waits_for
        return max(ready[sent], end[sent] - task.seconds)
    return max((end[p] for p in task.waits_for), default=0.0)


def _followers(tasks: Mapping[int, Task]) -> dict[int, list[int]]:
    followers: dict[int, list[int]] = {i: [] for i in tasks}
    for ident, task in tasks.items():
        for predecessor in task.waits_for:
            followers[predecessor].append(ident)
    return followers


def full_reference(tasks: dict[int, Task]) -> Schedule:
    """Algorithm 1."""
    followers, waiting = _followers(tasks), {i: len(task.waits_for) for i, task in tasks.items()}
    schedule = Schedule(tasks, {}, {}, {})
    queue = [(0.0, i) for i in tasks if not waiting[i]]
    heapq.heapify(queue)
    while queue:
        ready, ident = heapq.heappop(queue)
        entries = schedule.order.setdefault(tasks[ident].resource, [])
        start = max([ready, *(schedule.end[i] for _, i in entries[-1:])])
        entries.append((ready, ident))
        schedule.ready[ident], schedule.end[ident] = ready, start + tasks[ident].seconds
        for follower in followers[ident]:
            waiting[follower] -= 1
            if not waiting[follower]:
                at = _ready(tasks[follower], schedule.ready, schedule.end)
                heapq.heappush(queue, (at, follower))
    return schedule


def delta_reference(old: Schedule, tasks: dict[int, Task]) -> Schedule:
    """Algorithm 2: the schedule of `tasks`, from that of a graph that shares some of them."""
    same = {i for i in tasks.keys() & old.tasks.keys() if tasks[i] == old.tasks[i]}
    order = {
        resource: [entry for entry in entries if entry[1] in same]
        for resource, entries in old.order.items()
    }
    ready = {i: old.ready[i] for i in same}
    end = {i: old.end[i] for i in same}
    followers = _followers(tasks)
    # Ids follow the program, so that the new tasks' predecessors have been given a time before.
    for ident in sorted(tasks.keys() - same):
        ready[ident] = _ready(tasks[ident], ready, end)
        end[ident] = ready[ident] + tasks[ident].seconds
        bisect.insort(order.setdefault(tasks[ident].resource, []), (ready[ident], ident))
    queue = [(ready[i], i) for i in tasks]
    heapq.heapify(queue)
    while queue:
        _, ident = heapq.heappop(queue)
        task = tasks[ident]
        entries = order[task.resource]
        now = _ready(task, ready, end)
        place = bisect.bisect_left(entries, (ready[ident], ident))
        touched = set[int]()
        if now != ready[ident]:
            entries.pop(place)
            touched.update(i for _, i in entries[place : place + 1])
            ready[ident] = now
            place = bisect.bisect_left(entries, (now, ident))
            entries.insert(place, (now, ident))
            touched.update(i for _, i in entries[place + 1 : place + 2])
        free = end[entries[place - 1][1]] if place else 0.0
        if (ends := max(now, free) + task.seconds) != end[ident]:
            end[ident] = ends
            touched.update(followers[ident])
            touched.update(i for _, i in entries[place + 1 : place + 2])
        for other in touched:
            heapq.heappush(queue, (ready[other], other))
    return Schedule(tasks, ready, end, order)
