"""Interleaved 1F1B: its closed form, its order beside Megatron-LM's formulas, what every order has
to keep, and its search beside trying all cuts.
"""

from dataclasses import dataclass, replace
from itertools import combinations

from hypothesis import given, settings, strategies as st
import numpy as np
import pytest

from automap.deadline import Deadline
from automap.errors import InputError, PlanError
from automap.pipeline.arrays import Terms, from_lines
from automap.pipeline.fabric import pipeline_fabric
from automap.pipeline.interleaved import best_cuts, group_bytes, interleaved_stages, least_step
from automap.pipeline.schedules import ONE_FORWARD_ONE_BACKWARD, Interleaved, Job
from automap.pipeline.simulation import simulate_pipeline, simulated_step
from automap.pipeline.task_graph import StageSeconds, pipeline_seconds, pipeline_tasks
from automap.plan.pipeline import PipelineRecord, StageRecord
from automap.simulate.tasks import simulate
from automap.topology import get_topology
from tests.automap.pipeline.test_simulation import SAMPLE


TIMES = st.sampled_from([0.25, 0.5, 1.0, 1.5, 2.0, 3.0])
EACH = st.integers(2, 4)


def stage(forward, backward, transfer=0.0, reduce=0.0):
    return StageSeconds(forward=forward, backward=backward, transfer=transfer, reduce=reduce)


@settings(max_examples=40, deadline=None)
@given(groups=st.integers(2, 5), each=EACH, rounds=st.integers(1, 4), f=TIMES, b=TIMES)
def test_equal_stages_have_the_closed_form(groups, each, rounds, f, b):
    """(P - 1) (F + B) of v times as many stages: a v-th of 1F1B's bubble."""
    m = rounds * groups
    step = pipeline_seconds([stage(f, b)] * (groups * each), m, Interleaved(each))
    busy, bubble = m * each * (f + b), (groups - 1) * (f + b)
    assert step == pytest.approx(busy + bubble)
    assert (step - busy) / busy == pytest.approx((groups - 1) / (each * m))
    whole = pipeline_seconds([stage(each * f, each * b)] * groups, m, ONE_FORWARD_ONE_BACKWARD)
    assert whole - busy == pytest.approx(each * bubble)


def test_the_order_is_that_of_megatron_lm():
    """By the formulas of its schedule, in numbers of virtual microbatches."""
    groups, each, m = 4, 2, 8
    for group in range(groups):
        jobs = list(Interleaved(each).passes(group, groups, m))
        for kind in ("forward", "backward"):
            mine = [(job.stage, job.microbatch) for job in jobs if job.kind == kind]
            for k, (own_stage, microbatch) in enumerate(mine):
                turn = k % (groups * each) // groups
                turn = turn if kind == "forward" else each - 1 - turn
                assert own_stage == group + turn * groups
                assert microbatch == k // (groups * each) * groups + k % groups
        first = next(n for n, job in enumerate(jobs) if job.kind == "backward")
        # The warm-up, and the forward pass of the first pair.
        assert first == 2 * (groups - group - 1) + (each - 1) * groups + 1


SECONDS = st.builds(stage, *[st.floats(0.1, 3.0)] * 2, st.floats(0.0, 1.0), st.floats(0.0, 2.0))


@settings(max_examples=40, deadline=None)
@given(data=st.data(), groups=st.integers(2, 4), each=EACH, rounds=st.integers(1, 3))
def test_what_every_order_keeps(data, groups, each, rounds):
    """Each pass once, after what it needs, one at a time in a group."""
    n, m = groups * each, rounds * groups
    stages = data.draw(st.lists(SECONDS, min_size=n, max_size=n))
    tasks, jobs = pipeline_tasks(stages, m, Interleaved(each))
    line = simulate(tasks)
    begin = {(j.kind, j.stage, j.microbatch): line.start_seconds[t] for t, j in enumerate(jobs)}
    end = {(j.kind, j.stage, j.microbatch): line.end_seconds[t] for t, j in enumerate(jobs)}
    assert len(begin) == len(jobs) == 2 * n * m + 2 * (n - 1) * m + n
    for i in range(m):
        for s in range(n):
            assert begin["backward", s, i] >= end["forward", s, i]
            if s + 1 < n:
                assert begin["forward", s + 1, i] >= end["forward", s, i] + stages[s].transfer
                assert begin["backward", s, i] >= end["backward", s + 1, i] + stages[s].transfer
    for group in range(groups):
        own = sorted(
            (begin[key], end[key])
            for key in begin
            if key[0] in ("forward", "backward") and key[1] % groups == group
        )
        assert all(one[1] <= other[0] + 1e-9 for one, other in zip(own, own[1:]))


def record(groups=2, each=2, m=4, devices=None) -> PipelineRecord:
    n = groups * each
    return PipelineRecord(
        schedule="interleaved",
        microbatches=m,
        stages=tuple(
            StageRecord(
                devices=(devices or [(g,) for g in range(groups)])[s % groups],
                cut_after=f"{s}" if s < n - 1 else None,
                layers=f"layers.{s}",
                forward_seconds=1.0 + s,
                backward_seconds=2.0,
                reduce_seconds=0.5,
                sent_bytes=10 if s < n - 1 else 0,
                peak_bytes=7,
                transfer_seconds=0.25 if s < n - 1 else 0.0,
            )
            for s in range(n)
        ),
    )


def test_the_rows_of_a_group_are_its_step():
    planned = record(3, 2, 6, [(0, 1), (2, 3), (4, 5)])
    simulated = simulate_pipeline(SAMPLE, planned)
    for group in range(3):
        rows = simulated.stages[group::3]
        busy, idle = sum(r.busy_seconds for r in rows), sum(r.idle_seconds for r in rows)
        assert busy + idle == pytest.approx(simulated.step_seconds)
    idle = sum(row.idle_seconds for row in simulated.stages) / 3
    assert simulated.bubble_fraction == pytest.approx(idle / simulated.step_seconds)
    assert simulated_step(planned).timeline.makespan_seconds == simulated.step_seconds


def test_stages_of_a_record_that_are_no_turns_are_refused():
    plan = record()
    assert (len(plan.groups), plan.stages_per_group) == (2, 2)
    with pytest.raises(PlanError, match="each device in one stage, unless the schedule is"):
        replace(plan, schedule="1f1b")
    stages = plan.stages
    for wrong in (
        (stages[0], replace(stages[1], devices=(0,)), *stages[2:]),
        (*stages[:2], replace(stages[2], devices=(1,)), replace(stages[3], devices=(0,))),
        (*stages[:2], replace(stages[2], cut_after=None)),
        (replace(stages[0], devices=(0, 1)), *stages[1:]),
    ):
        with pytest.raises(PlanError, match="stages"):
            replace(plan, stages=wrong)
    with pytest.raises(PlanError, match="microbatches: got 3; allowed: a multiple of the 2 groups"):
        replace(plan, microbatches=3)


@dataclass(frozen=True)
class OtherWayRound:
    """The second stage begins with the microbatch that the first one ends with."""

    stages_per_group: int = 1
    name: str = "other way round"
    order: None = None

    def passes(self, group, groups, microbatches):
        numbers = range(microbatches)
        for m in reversed(numbers) if group else numbers:
            yield Job("forward", group, m)
            yield Job("backward", group, m)


def test_passes_that_wait_for_each_other_are_refused():
    with pytest.raises(InputError, match="'other way round' of 2 microbatches.*wait for each"):
        pipeline_seconds([stage(1.0, 1.0)] * 2, 2, OtherWayRound())


def test_the_search_comes_near_the_best_of_all_cuts():
    """By trying all cuts of 11 points in two groups of two stages: equal in most cases, and never
    above it by more than one move of a cut can lose.
    """
    fabric = pipeline_fabric(get_topology("2x2xv100"))
    schedule, m, over = Interleaved(2), 4, []
    for seed in range(7):
        rng = np.random.default_rng(seed)
        terms = Terms(microbatches=m, schedule=ONE_FORWARD_ONE_BACKWARD, memory_limit_bytes=np.inf)
        lines = rng.uniform(0.5, 3, 11), rng.uniform(0, 1e9, 11), rng.uniform(0, 2e9, 11)
        arrays = from_lines(*lines, fabric, terms)
        best = best_cuts(arrays, fabric, schedule, 2, Deadline.never())
        least = min(
            pipeline_seconds(
                interleaved_stages(arrays, fabric, np.array([0, *cuts, 11]), 2), m, schedule
            )
            for cuts in combinations(range(1, 11), 3)
        )
        assert least_step(arrays, 2) <= least <= best.seconds * (1 + 1e-9)
        stages = interleaved_stages(arrays, fabric, best.cuts, 2)
        assert best.seconds == pytest.approx(pipeline_seconds(stages, m, schedule))
        over.append(best.seconds / least - 1)
    assert np.median(over) == pytest.approx(0.0, abs=1e-9)
    assert max(over) < 0.05


def test_what_a_group_holds_is_counted_pass_by_pass():
    """Of equal stages the passes of Megatron-LM's warm-up, and one more; and no plan over the
    limit is given.
    """
    fabric = pipeline_fabric(get_topology("2x2xv100"))
    terms = Terms(microbatches=8, schedule=ONE_FORWARD_ONE_BACKWARD, memory_limit_bytes=np.inf)
    arrays = from_lines(np.ones(8), np.zeros(8), np.zeros(8), fabric, terms)
    points = np.arange(9)
    arrays = arrays._replace(saved_bytes=np.maximum(points - points[:, None], 0) / 2.0)
    cuts = np.arange(0, 9, 2)
    for group, passes in enumerate((2 * 1 + 2 + 1, 0 + 2 + 1)):
        parts = group_bytes(arrays, Interleaved(2), cuts, group, 2)
        # A stage of two points saves 1 byte of a microbatch, over two replicas.
        assert parts["activations"] == passes / 2
    tight = arrays._replace(memory_limit_bytes=1.0)
    assert best_cuts(tight, fabric, Interleaved(2), 2, Deadline.never()) is None


def test_transfers_back_to_the_first_group_cross_the_outermost_level():
    """Between two equal groups the way back is as long as the way there."""
    for name, units in (("2x4xv100", 4), ("8xh100", 2), ("8xh100", 4)):
        fabric = pipeline_fabric(get_topology(name))
        there = fabric.transfer_seconds_per_byte[0, units, 2 * units]
        assert fabric.back_seconds_per_byte[units] == pytest.approx(there)
    slow = pipeline_fabric(get_topology("2x4xv100"))
    within = slow.transfer_seconds_per_byte[0, 2, 4]
    assert slow.back_seconds_per_byte[2] > within
    assert slow.back_latency_seconds == slow.latency_seconds[4]
