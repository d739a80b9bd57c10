"""V against the task-graph simulator, and against closed forms."""

from hypothesis import given, settings, strategies as st
import numpy as np
import pytest

from automap.pipeline.arrays import Terms, from_lines
from automap.pipeline.fabric import pipeline_fabric
from automap.pipeline.schedules import (
    GPIPE,
    ONE_FORWARD_ONE_BACKWARD,
    in_flight,
    late_weights,
)
from automap.pipeline.task_graph import pipeline_seconds, stage_seconds
from automap.pipeline.value import price_partition, value, values
from automap.topology import get_topology
from tests.automap.pipeline.problems import SCHEDULES, SEEDS, random_arrays


def partition(rng, n, units, stages):
    cuts = [0, *sorted(rng.choice(np.arange(1, n), stages - 1, replace=False)), n]
    parts = [0, *sorted(rng.choice(np.arange(1, units), stages - 1, replace=False)), units]
    return np.array(cuts, np.int64), np.array(parts, np.int64)


def simulated(arrays, cuts, parts, schedule):
    return pipeline_seconds(stage_seconds(arrays, cuts, parts), arrays.microbatches, schedule)


def free(seed, schedule, microbatches, scale=1.0):
    rng = np.random.default_rng(seed)
    return from_lines(
        rng.uniform(0, 3, 12),
        scale * rng.uniform(0, 4e9, 12),
        rng.uniform(0, 2e9, 12),
        pipeline_fabric(get_topology("2x4xv100")),
        Terms(microbatches=microbatches, schedule=schedule, memory_limit_bytes=1e12),
    )


@settings(max_examples=150, deadline=None)
@given(seed=SEEDS, schedule=SCHEDULES, m=st.integers(1, 20), stages=st.integers(1, 7))
def test_gpipe_is_exact_and_others_are_never_above_the_simulation(seed, schedule, m, stages):
    arrays = free(seed, schedule, m)
    cuts, parts = partition(np.random.default_rng(seed), 12, 8, stages)
    found, oracle = value(arrays, cuts, parts), simulated(arrays, cuts, parts, schedule)
    assert found <= oracle * (1 + 1e-9)
    if schedule is GPIPE:
        assert found == pytest.approx(oracle, rel=1e-9)
    else:
        assert found >= 0.6 * oracle


def test_1f1b_is_near_the_simulation_where_transfers_are_small():
    ratios = []
    for seed in range(200):
        arrays = free(seed, ONE_FORWARD_ONE_BACKWARD, 8, scale=0.05)
        cuts, parts = partition(np.random.default_rng(seed), 12, 8, 4)
        step = simulated(arrays, cuts, parts, ONE_FORWARD_ONE_BACKWARD)
        ratios.append(value(arrays, cuts, parts) / step)
    assert np.quantile(ratios, 0.05) > 0.93
    assert np.mean(ratios) > 0.98


@pytest.mark.parametrize("schedule", [GPIPE, ONE_FORWARD_ONE_BACKWARD])
@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("m", [1, 3, 4, 16])
def test_uniform_stages_have_their_closed_form(schedule, stages, m):
    """(M + S - 1) (F + B), as both schedules take without transfers and sums."""
    arrays = from_lines(
        np.full(8, 3.0),
        np.zeros(8),
        np.zeros(8),
        pipeline_fabric(get_topology("4xv100")),
        Terms(microbatches=m, schedule=schedule, memory_limit_bytes=1e12),
    )._replace(latency_seconds=np.zeros(5))
    cuts, parts = np.arange(stages + 1) * 8 // stages, np.arange(stages + 1) * 4 // stages
    each = 24.0 / stages / (4 / stages) / m
    assert value(arrays, cuts, parts) == pytest.approx((m + stages - 1) * each)
    assert simulated(arrays, cuts, parts, schedule) == pytest.approx((m + stages - 1) * each)


def test_1f1b_with_transfers_waits_for_its_rounds():
    """Two equal stages, K = 2: a round takes 2 T + 2 X and does two microbatches, so T + X is its
    pace.
    """
    arrays = from_lines(
        np.full(2, 3.0),
        np.full(2, 1e9),
        np.zeros(2),
        pipeline_fabric(get_topology("2xv100")),
        Terms(microbatches=9, schedule=ONE_FORWARD_ONE_BACKWARD, memory_limit_bytes=1e12),
    )
    cuts, parts = np.arange(3), np.arange(3)
    stage = stage_seconds(arrays, cuts, parts)[0]
    t, x = stage.forward + stage.backward, stage.transfer
    assert value(arrays, cuts, parts) == pytest.approx(10 * t + 10 * x)
    step = simulated(arrays, cuts, parts, ONE_FORWARD_ONE_BACKWARD)
    assert step == pytest.approx(10 * t + 10 * x)


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS, schedule=SCHEDULES)
def test_a_stage_that_takes_no_time_does_not_take_less_by_rounding(seed, schedule):
    """Seconds of a stage are a difference of sums: 0.3 - (0.1 + 0.2) is less than none."""
    arrays = random_arrays(seed, schedule)
    sums = np.full_like(arrays.backward, 0.1 + 0.2)
    sums[:, 0], sums[:, -1] = 0.0, 0.3
    arrays = arrays._replace(backward=sums)
    cuts, parts = partition(np.random.default_rng(seed), 7, 4, 3)
    assert [stage.backward for stage in stage_seconds(arrays, cuts, parts)] == [0.1 + 0.2, 0.0, 0.0]
    assert np.isfinite(simulated(arrays, cuts, parts, schedule))


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS, schedule=SCHEDULES)
def test_memory_and_masks(seed, schedule):
    arrays = random_arrays(seed, schedule)
    rng = np.random.default_rng(seed)
    rows = [partition(rng, 7, 4, 3) for _ in range(10)]
    found = values(arrays, np.stack([r[0] for r in rows]), np.stack([r[1] for r in rows]))
    for (cuts, parts), seconds in zip(rows, found, strict=True):
        sizes = np.diff(parts)
        allowed = arrays.may_cut[cuts].all() and arrays.usable[sizes].all()
        need = 0.0
        for s in range(3):
            i, j, k = cuts[s], cuts[s + 1], 3 - s
            flight = in_flight(schedule.order, 4, k)
            late = late_weights(schedule.order, 4, k, s)
            here = arrays.state_bytes[i, j]
            held = flight * arrays.saved_bytes[i, j] + late * arrays.kept_bytes[i, j]
            here += (held + 2 * arrays.cut_bytes[i]) / sizes[s]
            need = max(need, here)
        assert np.isfinite(seconds) == bool(allowed and need <= arrays.memory_limit_bytes)
        if allowed:
            over, _ = price_partition(arrays, cuts, parts)
            assert over == pytest.approx(max(need - arrays.memory_limit_bytes, 0.0))
