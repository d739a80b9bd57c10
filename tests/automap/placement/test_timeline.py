"""The simulated step against a closed form, and against one that is written in plain Python."""

import heapq

import numpy as np
import pytest

from automap.errors import InputError
from automap.placement.dataflow import NOBODY
from automap.placement.simulation import Simulator, placed_machine
from automap.placement.tasks import PlacementProblem
from automap.topology import get_graph, shortest_routes
from tests.automap.placement.problems import random_problem


MACHINE = "haswell-4xk80"


def _reference(problem: PlacementProblem, device: list[int]) -> tuple[list[float], np.ndarray]:
    """(end of each task, peak bytes of each device): events in the order of their ready times."""
    graph, routes = get_graph(MACHINE), shortest_routes(get_graph(MACHINE))
    kind = [graph.kinds.index(node.device) for node in graph.devices]
    waiting = [0] * len(problem.tasks)
    for x in problem.tensors:
        for receiver in x.receivers if (x.maker, x.home) != (NOBODY, NOBODY) else ():
            waiting[receiver] += 1
    place = [device[task.operator] for task in problem.tasks]
    ready, start, end = ([0.0] * len(place) for _ in range(3))
    free, medium = [0.0] * len(kind), dict[int, float]()
    count, transfers = 0, list[tuple[int, int, float, float]]()
    heap = [(0.0, task, ()) for task, n in enumerate(waiting) if not n]
    made: dict[int, list[int]] = {}
    for number, x in enumerate(problem.tensors):
        made.setdefault(x.maker, []).append(number)

    def arrive(number: int, here: int, origin: int, seconds: float) -> None:
        nonlocal count
        x, targets = problem.tensors[number], []
        for task in x.receivers:
            if place[task] == here:
                waiting[task] -= 1
                ready[task] = max(ready[task], seconds)
                if not waiting[task]:
                    heapq.heappush(heap, (ready[task], task, ()))
            elif here == origin and place[task] not in targets:
                targets.append(place[task])
                heapq.heappush(heap, (seconds, len(place) + count, (number, here, place[task])))
                count += 1

    for number in made.get(NOBODY, []):
        x = problem.tensors[number]
        if x.home != NOBODY:
            arrive(number, device[x.home], device[x.home], 0.0)
    while heap:
        seconds, entry, way = heapq.heappop(heap)
        if not way:
            start[entry] = max(seconds, free[place[entry]])
            end[entry] = start[entry] + problem.seconds[kind[place[entry]], entry]
            free[place[entry]] = end[entry]
            for number in made.get(entry, []):
                arrive(number, place[entry], place[entry], end[entry])
        else:
            number, source, target = way
            media = routes.between(source, target).tolist()
            begin = max([seconds, *(medium.get(m, 0.0) for m in media)])
            taken = problem.tensors[number].moved_bytes / routes.bytes_per_s[source, target]
            done = begin + routes.latency_seconds[source, target] + taken
            medium.update(dict.fromkeys(media, done))
            transfers.append((number, target, begin, done))
            arrive(number, target, source, done)
    return end, _peaks(problem, device, place, start, end, transfers)


def _peaks(problem, device, place, start, end, transfers) -> np.ndarray:  # noqa: PLR0913
    rows = [(place[t], start[t], end[t], problem.workspace_bytes[t]) for t in range(len(place))]
    for number, x in enumerate(problem.tensors):
        if x.maker == NOBODY:
            homes = {place[t] for t in x.readers} if x.home == NOBODY else {device[x.home]}
            rows += [(here, 0.0, np.inf, x.kept_bytes) for here in homes]
        else:
            here = place[x.maker]
            until = [end[t] for t in x.readers if place[t] == here]
            until += [done for n, _, _, done in transfers if n == number]
            last = np.inf if x.is_result else max([end[x.maker], *until])
            rows.append((here, start[x.maker], last, x.kept_bytes))
    for number, target, begin, done in transfers:
        x = problem.tensors[number]
        last = max([done, *(end[t] for t in x.readers if place[t] == target)])
        rows.append((target, begin, last, x.moved_bytes))
    peaks = np.zeros(len(get_graph(MACHINE).devices))
    for moment in {row[1] for row in rows}:
        now = np.zeros(len(peaks))
        for here, first, last, n_bytes in rows:
            now[here] += n_bytes if first <= moment < last else 0.0
        peaks = np.maximum(peaks, now)
    return peaks


@pytest.mark.parametrize("seed", range(8))
def test_seconds_and_bytes_are_those_of_plain_python(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, int(rng.integers(2, 9)), kinds=2)
    simulator = Simulator(problem, placed_machine(get_graph(MACHINE)))
    for _ in range(5):
        device = rng.integers(0, 5, problem.n_operators).tolist()
        outcome = simulator.run(device)
        end, peaks = _reference(problem, device)
        np.testing.assert_allclose(outcome.end_seconds, end, rtol=1e-12)
        np.testing.assert_allclose(outcome.peak_bytes, peaks, rtol=1e-9)
        assert outcome.step_seconds == pytest.approx(max(end))


def test_one_device_takes_the_sum_and_sends_nothing() -> None:
    problem = random_problem(np.random.default_rng(1), 6, kinds=2)
    outcome = Simulator(problem, placed_machine(get_graph(MACHINE))).run([2] * 6)
    assert outcome.step_seconds == pytest.approx(problem.seconds[1].sum())
    assert outcome.moved_bytes == 0
    assert outcome.busy_seconds[2] == pytest.approx(outcome.step_seconds)


def test_what_does_not_fit_is_said_with_its_device() -> None:
    problem = random_problem(np.random.default_rng(2), 4, kinds=2)
    machine = placed_machine(get_graph(MACHINE), memory_limit_bytes=1000.0)
    outcome = Simulator(problem, machine).run([3] * 4)
    assert not outcome.fits
    assert outcome.too_full == 3


@pytest.mark.parametrize(
    ("device", "message"),
    [([0], "one for each of 4 operators"), ([0, 1, 9, 0], "w1 #2: got device 9; allowed: 0 to 4")],
)
def test_bad_placements_are_refused_with_the_operator(device: list[int], message: str) -> None:
    problem = random_problem(np.random.default_rng(2), 4, kinds=2)
    with pytest.raises(InputError, match=message):
        Simulator(problem, placed_machine(get_graph(MACHINE))).run(device)
