"""The task simulator against plain Python, a simulation second by second, and bounds."""

from hypothesis import given, strategies as st
import numpy as np
import pytest

from automap.errors import InputError
from automap.simulate.tasks import Tasks, simulate
from tests.automap.simulate.operators.cases import random_tasks
from tests.automap.simulate.reference import simulate_reference


def _before(tasks, t):
    first = tasks.first_predecessor
    return tasks.predecessors[first[t] : first[t + 1]].tolist()


def _second_by_second(tasks):
    """Start of each task: a free resource takes, of the ready ones, the one ready first."""
    n = len(tasks.seconds)
    start, end = {}, {}
    busy_until = {}
    now = 0.0
    while len(start) < n:
        ready = {
            t: max((end[p] for p in _before(tasks, t)), default=0.0)
            for t in range(n)
            if t not in start and all(end.get(p, np.inf) <= now for p in _before(tasks, t))
        }
        for t in sorted(ready, key=lambda t: (ready[t], t)):
            if busy_until.get(int(tasks.resource[t]), 0.0) <= now:
                start[t], end[t] = now, now + tasks.seconds[t]
                busy_until[int(tasks.resource[t])] = end[t]
        now += 1.0
    return [start[t] for t in range(n)]


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 4))
def test_the_timeline_is_that_of_a_clock_that_ticks(seed, n_tasks, n_resources):
    tasks = random_tasks(seed, n_tasks, n_resources, least_seconds=1)
    assert simulate(tasks).start_seconds.tolist() == _second_by_second(tasks)


@given(st.integers(0, 10**6), st.integers(1, 200), st.integers(1, 8))
def test_compiled_and_plain_python_agree_to_the_bit(seed, n_tasks, n_resources):
    tasks = random_tasks(seed, n_tasks, n_resources)
    timeline, wanted = simulate(tasks), simulate_reference(tasks)
    for name in ("ready_seconds", "start_seconds", "end_seconds"):
        assert getattr(timeline, name).tolist() == getattr(wanted, name).tolist()


@given(st.integers(0, 10**6), st.integers(1, 8))
def test_the_makespan_keeps_its_bounds(seed, n_resources):
    tasks = random_tasks(seed, 60, n_resources)
    path = np.zeros(60)
    for t in range(60):
        path[t] = tasks.seconds[t] + max((path[p] for p in _before(tasks, t)), default=0.0)
    load = np.bincount(tasks.resource, weights=tasks.seconds)
    makespan = simulate(tasks).makespan_seconds
    assert max(path.max(), load.max()) <= makespan <= tasks.seconds.sum()


def test_no_tasks_take_no_time():
    nothing = np.zeros(0, np.int32)
    tasks = Tasks(
        seconds=np.zeros(0),
        resource=nothing,
        first_predecessor=np.zeros(1, np.int64),
        predecessors=nothing,
    )
    assert simulate(tasks).makespan_seconds == simulate_reference(tasks).makespan_seconds == 0.0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seconds": np.array([1.0, -1.0])}, "negative or infinite seconds"),
        ({"seconds": np.array([1.0, np.nan])}, "negative or infinite seconds"),
        ({"seconds": np.array([1.0])}, "2 resources and 3 offsets for 1 tasks"),
        ({"resource": np.array([0, -1])}, "negative resources"),
        ({"predecessors": np.array([1])}, "number the tasks in topological order"),
        ({"predecessors": np.array([-1])}, "number the tasks in topological order"),
        ({"first_predecessor": np.array([0, 0, 2])}, "offsets that do not divide"),
    ],
)
def test_bad_arrays_are_refused(changed, message):
    good = {
        "seconds": np.ones(2),
        "resource": np.zeros(2, int),
        "first_predecessor": np.array([0, 0, 1]),
        "predecessors": np.array([0]),
    }
    Tasks(**good)
    with pytest.raises(InputError, match=message):
        Tasks(**(good | changed))
