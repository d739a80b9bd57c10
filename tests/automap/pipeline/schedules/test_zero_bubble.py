"""The zero-bubble schedule: its closed form, what every order has to keep, and the best order of
small pipelines by trying all.
"""

from itertools import product

from hypothesis import given, settings, strategies as st
import numpy as np
import pytest

from automap.pipeline.schedules import (
    GPIPE,
    ONE_FORWARD_ONE_BACKWARD,
    PRICED,
    ZERO_BUBBLE,
    in_flight,
    late_weights,
)
from automap.pipeline.task_graph import StageSeconds, pipeline_seconds, pipeline_tasks
from automap.simulate.tasks import simulate


TIMES = st.sampled_from([0.25, 0.5, 1.0, 1.5, 2.0, 3.0])


def stage(forward, backward, weights, transfer=0.0, reduce=0.0):
    return StageSeconds(
        forward=forward, backward=backward, weights=weights, transfer=transfer, reduce=reduce
    )


@settings(max_examples=60)
@given(stages=st.integers(1, 8), more=st.integers(0, 12), f=TIMES, b=TIMES, w=TIMES)
def test_equal_stages_have_the_closed_form(stages, more, f, b, w):
    """(S - 1) max(F, B, F + B - W) is what the step takes beyond its work, from M = S on."""
    m = stages + more
    step = pipeline_seconds([stage(f, b, w)] * stages, m, ZERO_BUBBLE)
    assert step == pytest.approx(m * (f + b + w) + (stages - 1) * max(f, b, f + b - w))


@pytest.mark.parametrize("schedule", [GPIPE, ONE_FORWARD_ONE_BACKWARD])
def test_others_wait_three_times_as_long_where_all_passes_are_equal(schedule):
    stages, m = 4, 8
    other = pipeline_seconds([stage(1.0, 2.0, 0.0)] * stages, m, schedule) - 3 * m
    mine = pipeline_seconds([stage(1.0, 1.0, 1.0)] * stages, m, ZERO_BUBBLE) - 3 * m
    assert (mine, other) == (stages - 1, 3 * (stages - 1))


def orders(m, most_flight, most_held):
    """All orders of a stage's passes, each kind in the order of microbatches, with at most so many
    between forward and backward, and between forward and weight pass.
    """

    def more(done):
        f, b, w = done
        if w == m:
            yield ()
            return
        for at, allowed in enumerate((f < m, b < f, w < b)):
            new = tuple(x + (n == at) for n, x in enumerate(done))
            if allowed and new[0] - new[1] <= most_flight and new[0] - new[2] <= most_held:
                yield from ((("F", "B", "W")[at], *rest) for rest in more(new))

    return list(more((0, 0, 0)))


def makespan(sequences, seconds):
    """When all stages have ended, each in its order; inf if one waits for ever."""
    ends, free, at = {}, [0.0] * len(sequences), [0] * len(sequences)
    moved = True
    while moved:
        moved = False
        for s, sequence in enumerate(sequences):
            while at[s] < len(sequence):
                kind = sequence[at[s]]
                m = sequence[: at[s]].count(kind)
                waits = {"F": (kind, s - 1, m), "B": (kind, s + 1, m)}.get(kind)
                if waits and 0 <= waits[1] < len(sequences) and waits not in ends:
                    break
                ready = ends.get(waits, 0.0) if waits else 0.0
                free[s] = ends[kind, s, m] = max(free[s], ready) + seconds[kind]
                at[s], moved = at[s] + 1, True
    done = all(place == len(sequence) for place, sequence in zip(at, sequences, strict=True))
    return max(free) if done else np.inf


@pytest.mark.parametrize("seconds", [(1, 1, 1), (1, 2, 1), (2, 1, 1), (1, 1, 2)])
@pytest.mark.parametrize("m", [2, 3])
def test_no_order_of_two_stages_is_shorter(seconds, m):
    """Of those with no more microbatches in flight, and held, than this one."""
    tries = [orders(m, 2 - s, 2) for s in range(2)]
    times = dict(zip("FBW", seconds, strict=True))
    least = min(makespan(each, times) for each in product(*tries))
    assert pipeline_seconds([stage(*seconds)] * 2, m, ZERO_BUBBLE) == least


STAGES = st.lists(
    st.builds(stage, *[st.floats(0.1, 3.0)] * 3, st.floats(0.0, 1.0), st.floats(0.0, 2.0)),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60)
@given(stages=STAGES, m=st.integers(1, 12), schedule=st.sampled_from(PRICED))
def test_what_every_schedule_keeps(stages, m, schedule):
    """Each pass once, after what it needs, with no more held than is counted; and no step is
    shorter than its longest stage, or than a microbatch takes through all stages and back.
    """
    if not schedule.order.weights_apart:
        stages = [stage(s.forward, s.backward, 0.0, s.transfer, s.reduce) for s in stages]
    tasks, jobs = pipeline_tasks(stages, m, schedule)
    line, n = simulate(tasks), len(stages)
    start = {(j.kind, j.stage, j.microbatch): line.start_seconds[t] for t, j in enumerate(jobs)}
    end = {(j.kind, j.stage, j.microbatch): line.end_seconds[t] for t, j in enumerate(jobs)}
    assert len(start) == len(jobs)
    for s in range(n):
        last = {}
        for i in range(m):
            assert start["backward", s, i] >= end["forward", s, i]
            if s + 1 < n:
                assert start["forward", s + 1, i] >= end["forward", s, i] + stages[s].transfer
                assert start["backward", s, i] >= end["backward", s + 1, i] + stages[s].transfer
            last[i] = end["backward", s, i]
            if schedule.order.weights_apart:
                assert start["weights", s, i] >= last[i]
                last[i] = end["weights", s, i]
        flight = in_flight(schedule.order, m, n - s)
        late = late_weights(schedule.order, m, n - s, s)
        for now in (start["forward", s, i] for i in range(m)):
            begun = [i for i in range(m) if start["forward", s, i] <= now]
            assert sum(end["backward", s, i] > now for i in begun) <= flight
            assert sum(last[i] > now for i in begun) <= flight + late
    step = line.makespan_seconds * (1 + 1e-9)
    assert step >= max(m * s.passes + s.reduce for s in stages)
    assert step >= sum(s.forward + s.backward for s in stages) + 2 * sum(
        s.transfer for s in stages[:-1]
    )
