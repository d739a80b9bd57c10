"""A schedule is one file and one entry: what those that are there say of themselves, and what a
third one gets.
"""

from dataclasses import dataclass
from typing import get_args

from hypothesis import given, settings, strategies as st
import numpy as np
import pytest

from automap.deadline import Deadline
from automap.errors import InputError, PlanError
from automap.pipeline.agent.network import shipped_weights
from automap.pipeline.agent.play import infer
from automap.pipeline.arrays import Terms, from_lines
from automap.pipeline.fabric import pipeline_fabric
from automap.pipeline.schedules import (
    ALL_FORWARD_FIRST,
    GPIPE,
    ONE_FORWARD_ONE_BACKWARD,
    PRICED,
    SCHEDULES,
    Job,
    PassOrder,
    in_flight,
    pass_order,
    schedule_named,
)
from automap.pipeline.search import AUTO_STAGES, Limits, choices, simulated_seconds
from automap.pipeline.simulation import simulated_step
from automap.pipeline.solvers.exact import solve
from automap.pipeline.task_graph import pipeline_seconds, stage_seconds
from automap.pipeline.value import price_partition, value
from automap.plan.pipeline import PipelineRecord, ScheduleName, StageRecord
from automap.topology import get_topology
from tests.automap.pipeline.problems import SEEDS, random_arrays


@dataclass(frozen=True)
class LastFirst:
    """All forward passes, then all backward passes in the reverse order of microbatches."""

    name: str = "last-first"
    order: PassOrder = ALL_FORWARD_FIRST
    stages_per_group: int = 1

    def passes(self, stage, stages, microbatches):
        for m in range(microbatches):
            yield Job("forward", stage, m)
        for m in reversed(range(microbatches)):
            yield Job("backward", stage, m)


@dataclass(frozen=True)
class Eager:
    """1F1B with twice the microbatches in flight, which hides transfers (Zhuang et al., 2023)."""

    name: str = "eager-1f1b"
    order: PassOrder = PassOrder(alternates=True, last_in_flight=1, in_flight_per_stage=2)
    stages_per_group: int = 1

    def passes(self, stage, stages, microbatches):
        ahead = in_flight(self.order, microbatches, stages - stage)
        for m in range(microbatches + ahead):
            if m >= ahead:
                yield Job("backward", stage, m - ahead)
            if m < microbatches:
                yield Job("forward", stage, m)


@dataclass(frozen=True)
class Unpriced:
    """An order of which the value function knows nothing."""

    name: str = "unpriced"
    order: PassOrder | None = None
    stages_per_group: int = 1

    def passes(self, stage, stages, microbatches):
        return GPIPE.passes(stage, stages, microbatches)


THIRD = (LastFirst(), Eager())


@pytest.mark.parametrize("schedule", [*PRICED, *THIRD], ids=lambda each: each.name)
def test_passes_are_as_the_order_says(schedule):
    for stages, m in ((1, 1), (3, 5), (4, 2), (3, 12)):
        for s in range(stages):
            every = list(schedule.passes(s, stages, m))
            assert len(every) == len(set(every)) == (2 + schedule.order.weights_apart) * m
            jobs = [job for job in every if job.kind != "weights"]
            first = next(n for n, job in enumerate(jobs) if job.kind == "backward")
            most = in_flight(schedule.order, m, stages - s)
            assert first == most
            changes = np.cumsum([1 if job.kind == "forward" else -1 for job in jobs])
            assert changes.max() == most
            if schedule.order.alternates:
                assert set(changes[first : first + 2 * (m - most)]) <= {most - 1, most}


def test_plan_files_have_the_names_of_the_schedules():
    assert tuple(SCHEDULES) == get_args(ScheduleName)
    assert all(name == schedule.name for name, schedule in SCHEDULES.items())


def test_orders_of_a_stage():
    assert list(ONE_FORWARD_ONE_BACKWARD.passes(1, 2, 2)) == [
        Job("forward", 1, 0),
        Job("backward", 1, 0),
        Job("forward", 1, 1),
        Job("backward", 1, 1),
    ]
    kinds = [job.kind[0] for job in ONE_FORWARD_ONE_BACKWARD.passes(0, 2, 3)]
    assert "".join(kinds) == "ffbfbb"
    assert [job.microbatch for job in GPIPE.passes(0, 2, 2)] == [0, 1, 0, 1]


def problem(seed, schedule, m, scale=1.0):
    rng = np.random.default_rng(seed)
    return from_lines(
        rng.uniform(0, 3, 12),
        scale * rng.uniform(0, 4e9, 12),
        rng.uniform(0, 2e9, 12),
        pipeline_fabric(get_topology("2x4xv100")),
        Terms(microbatches=m, schedule=schedule, memory_limit_bytes=1e12),
    )


@settings(max_examples=100, deadline=None)
@given(
    seed=SEEDS,
    schedule=st.sampled_from(THIRD),
    m=st.integers(1, 20),
    stages=st.integers(1, 7),
    scale=st.sampled_from([0.0, 0.05, 1.0]),
)
def test_a_third_schedule_is_priced_by_its_own_order(seed, schedule, m, stages, scale):
    """Without a line for it in the value function, against the task graph."""
    arrays = problem(seed, schedule, m, scale)
    rng = np.random.default_rng(seed)
    cuts = np.array([0, *sorted(rng.choice(np.arange(1, 12), stages - 1, replace=False)), 12])
    parts = np.array([0, *sorted(rng.choice(np.arange(1, 8), stages - 1, replace=False)), 8])
    seconds = stage_seconds(arrays, cuts, parts)
    found, oracle = value(arrays, cuts, parts), pipeline_seconds(seconds, m, schedule)
    assert found <= oracle * (1 + 1e-9)
    if schedule.order.alternates:
        assert found >= 0.6 * oracle
    else:
        assert found == pytest.approx(oracle, rel=1e-9)


def test_it_keeps_as_many_microbatches_as_it_says():
    cuts, parts = np.array([0, 4, 7]), np.array([0, 1, 4])
    over = {}
    for schedule in (*THIRD, ONE_FORWARD_ONE_BACKWARD):
        arrays = random_arrays(0, schedule)
        arrays = arrays._replace(
            may_cut=np.ones(8, bool), usable=np.ones(5, bool), memory_limit_bytes=0.0
        )
        over[schedule.name] = price_partition(arrays, cuts, parts)[0]
    assert over["1f1b"] < over["eager-1f1b"] < over["last-first"]


@pytest.mark.slow
@pytest.mark.parametrize("schedule", THIRD, ids=lambda each: each.name)
def test_solver_and_agent_search_for_it(schedule):
    arrays = problem(3, schedule, 8)
    best = solve(arrays, 3).best
    inferred = infer(arrays, 3, shipped_weights())
    assert best is not None
    assert inferred is not None
    assert best.seconds == pytest.approx(inferred.seconds)
    assert best.seconds <= simulated_seconds(arrays, best, schedule) * (1 + 1e-9)


def test_eager_passes_hide_what_1f1b_waits_for():
    eager, plain = (
        solve(problem(3, schedule, 16), 3).best for schedule in (Eager(), ONE_FORWARD_ONE_BACKWARD)
    )
    assert eager.seconds < plain.seconds


def record(name):
    stage = {
        "layers": "",
        "forward_seconds": 1.0,
        "backward_seconds": 2.0,
        "reduce_seconds": 0.5,
        "sent_bytes": 0,
        "peak_bytes": 0,
    }
    stages = (
        StageRecord(devices=(0,), cut_after="a", **stage),
        StageRecord(devices=(1,), cut_after=None, **stage),
    )
    return PipelineRecord(schedule=name, microbatches=3, stages=stages)


def test_it_is_listed_and_simulated_by_its_name(monkeypatch):
    with pytest.raises(
        PlanError, match="no schedule 'last-first'; there are gpipe, 1f1b, zero-bubble, interleaved"
    ):
        simulated_step(record("last-first"))
    monkeypatch.setitem(SCHEDULES, "last-first", LastFirst())
    assert schedule_named("last-first") == LastFirst()
    step = simulated_step(record("last-first"))
    backward = [job.microbatch for job in step.jobs if job.kind == "backward" and job.stage == 1]
    assert backward == [2, 1, 0]
    gpipe = simulated_step(record("gpipe"))
    assert step.timeline.makespan_seconds == gpipe.timeline.makespan_seconds


def test_searches_try_the_schedules_that_they_are_given():
    @dataclass(frozen=True)
    class Points:
        may_cut = np.ones(9, bool)

        @dataclass(frozen=True)
        class profile:
            batch_size = 8

    limits = Limits(
        stages=None,
        microbatches=None,
        memory_limit_bytes=np.inf,
        deadline=Deadline.never(),
        seed=0,
        schedules=(Eager(), GPIPE),
    )
    tried = list(choices(Points(), pipeline_fabric(get_topology("4xv100")), limits))
    assert {terms.schedule for _, terms in tried} == {Eager(), GPIPE}
    assert {stages for stages, _ in tried} == {1, 2, 3, 4} < set(AUTO_STAGES)


def test_what_the_value_function_does_not_know_is_refused_by_name():
    with pytest.raises(
        InputError, match="the schedule 'unpriced' can be simulated and run, but not"
    ):
        problem(0, Unpriced(), 4)
    wrong = Eager("wrong", PassOrder(alternates=True, last_in_flight=0, in_flight_per_stage=1))
    with pytest.raises(InputError, match="'wrong' says that its last stage has 0"):
        pass_order(wrong)
