"""The dynamic programme and the integer programme find the best stages, as trying all of them
does.
"""

from hypothesis import given, settings, strategies as st
import numpy as np
import pytest

from automap.deadline import Deadline
from automap.streams.endings import NO_LIMIT, solve
from automap.streams.strategies import (
    STREAM_STRATEGIES,
    BlockProblem,
    Limits,
    dos,
    exact,
    greedy,
    possible_stages,
    sequential,
)
from tests.automap.streams.blocks import MACHINE, components, least_seconds, random_block


LIMITS = [Limits(), Limits(groups=2), Limits(groups=8, group_size=3), Limits(group_size=2)]


def _seconds(problem, stages):
    return float(problem.best_seconds(stages).min(axis=1).sum())


def _check_is_schedule(problem, stages):
    """Each operator once, behind what it reads, in stages within the limits."""
    done = 0
    before = [int(mask) for mask in problem.ops.before]
    for mask in stages:
        assert not mask & done
        for place in range(problem.count):
            if mask >> place & 1:
                assert not before[place] & ~(done | mask)
        sizes = components(mask, before)
        assert len(sizes) <= problem.limits.most_groups
        assert max(sizes) <= problem.limits.group_size
        done |= mask
    assert done == (1 << problem.count) - 1


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(2, 12),
    density=st.sampled_from([0.0, 0.2, 0.5]),
    limits=st.sampled_from(LIMITS),
)
def test_dos_equals_trying_all_schedules(seed, count, density, limits):
    problem = BlockProblem(random_block(seed, count, density), MACHINE, limits, Deadline.never())
    result = dos(problem)
    _check_is_schedule(problem, result.stages)
    expected = least_seconds(problem.ops, limits.most_groups, limits.group_size)
    assert _seconds(problem, result.stages) == pytest.approx(expected, rel=1e-12)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(2, 8), limits=st.sampled_from(LIMITS))
def test_the_integer_programme_finds_what_the_dynamic_programme_does(seed, count, limits):
    problem = BlockProblem(random_block(seed, count), MACHINE, limits, Deadline.never())
    result = exact(problem)
    _check_is_schedule(problem, result.stages)
    assert _seconds(problem, result.stages) == pytest.approx(
        _seconds(problem, dos(problem).stages), rel=1e-6
    )


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("seed", range(4))
def test_no_simple_schedule_is_faster(limits, seed):
    problem = BlockProblem(random_block(seed, 12), MACHINE, limits, Deadline.never())
    best = _seconds(problem, dos(problem).stages)
    for simple in (sequential, greedy):
        stages = simple(problem).stages
        _check_is_schedule(problem, stages)
        assert best <= problem.concurrent_seconds(stages) * (1 + 1e-12)


def test_what_bounds_prune_is_not_missed():
    # A bound that is the optimum itself leaves the known schedule; one above it finds the optimum.
    ops = random_block(3, 9)
    known = dos(BlockProblem(ops, MACHINE, Limits(), Deadline.never())).stages
    problem = BlockProblem(ops, MACHINE, Limits(), Deadline.never())
    best = _seconds(problem, known)
    terms = {"most_groups": NO_LIMIT, "most_in_group": 1, "known": (), "most_states": 2**12}
    loose = solve(ops, MACHINE, bound_seconds=np.inf, most_endings=10**6, **terms)
    tight = solve(ops, MACHINE, bound_seconds=best * 1.001, most_endings=10**6, **terms)
    assert loose.seconds == pytest.approx(best) == pytest.approx(tight.seconds)
    assert tight.endings <= loose.endings


def test_a_memo_or_work_that_is_not_enough_is_said():
    ops = random_block(0, 12, 0.0)
    terms = {"most_groups": NO_LIMIT, "most_in_group": 1, "known": (), "bound_seconds": np.inf}
    assert solve(ops, MACHINE, most_states=4, most_endings=10**6, **terms).stages is None
    assert solve(ops, MACHINE, most_states=2**13, most_endings=100, **terms).stages is None


@pytest.mark.parametrize("limits", LIMITS)
def test_possible_stages_are_all_sets_that_can_be_one(limits):
    ops = random_block(5, 7, 0.3)
    before = [int(mask) for mask in ops.before]
    reach = []
    for mask in before:
        reach.append(mask)
        for b in range(len(reach) - 1):
            if mask >> b & 1:
                reach[-1] |= reach[b]
    expected = set()
    for mask in range(1, 1 << 7):
        inside = [p for p in range(7) if mask >> p & 1]
        above = 0
        for p in inside:
            above |= reach[p]
        is_convex = not any(
            above >> o & 1 and reach[o] & mask for o in range(7) if not mask >> o & 1
        )
        sizes = components(mask, before)
        if is_convex and len(sizes) <= limits.most_groups and max(sizes) <= limits.group_size:
            expected.add(mask)
    stages = list(possible_stages(before, limits.most_groups, limits.group_size))
    assert sorted(stages) == sorted(expected)


def test_every_strategy_has_a_line_for_users():
    from automap import choices

    assert set(choices.STREAM_STRATEGIES) == set(STREAM_STRATEGIES)
