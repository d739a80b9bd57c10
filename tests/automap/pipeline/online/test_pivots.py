"""The paper's game of pivots against the value function and brute force, and its agent."""

from dataclasses import replace

import numpy as np
import pytest


pytest.importorskip("torch")

from automap.deadline import Deadline  # noqa: E402
from automap.pipeline.fabric import pipeline_fabric  # noqa: E402
from automap.pipeline.online.pivots import (  # noqa: E402
    best_of_pivots,
    pivot_filter,
    pivot_state,
)
from automap.pipeline.online.strategy import CONFIGS, PivotEnv, find  # noqa: E402
from automap.pipeline.schedules import GPIPE  # noqa: E402
from automap.pipeline.solvers.exact import solve  # noqa: E402
from automap.pipeline.value import price_partition  # noqa: E402
from automap.topology import get_topology  # noqa: E402
from tests.automap.pipeline.problems import random_arrays  # noqa: E402


BOUNDARY_LEVEL = pipeline_fabric(get_topology("2x4xv100")).boundary_level


def small(seed, points=24, **replaced):
    """A problem on two servers of four."""
    arrays = random_arrays(seed, GPIPE, points=points, topology="2x4xv100")
    everywhere = {"may_cut": np.ones(points + 1, bool), "usable": np.arange(9) > 0}
    return arrays._replace(**everywhere | replaced)


def played(env, stages, games):
    """(cuts, rewards, observations) of random games."""
    source = np.random.default_rng(0)
    for _ in range(games):
        cuts, rewards, seen = [], [], []
        for _ in range(stages - 1):
            seen.append(env.observe())
            assert seen[-1].mask.any(1).all()
            drawn = np.where(seen[-1].mask, source.random(seen[-1].mask.shape), -1.0).argmax(1)
            outcome = env.step(drawn)
            cuts.append(drawn)
            rewards.append(outcome.rewards)
        assert outcome.dones.all()
        for game in range(env.shape.n_envs):
            yield [int(c[game]) for c in cuts], [float(r[game]) for r in rewards], game, seen


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_a_game_ends_with_one_over_its_step_and_devices_follow_the_computation(stages):
    arrays = small(3)
    # Half of what the largest partition needs: some games do not fit.
    arrays = arrays._replace(memory_limit_bytes=0.6 * float(arrays.state_bytes[0, -1]))
    allowed = pivot_filter(arrays, stages, BOUNDARY_LEVEL)
    work = (arrays.forward + arrays.backward)[1]
    env, best = PivotEnv(arrays, allowed, 3), np.inf
    overflowed = 0
    for cuts, rewards, _, _ in played(env, stages, 6):
        ends = np.array([0, *cuts, 24])
        units = np.round(8 * work[ends] / work[-1]).astype(np.int64)
        over, seconds = price_partition(arrays, ends, units)
        share = env.ideal_seconds / seconds
        assert rewards[:-1] == [0.0] * (stages - 2)
        assert rewards[-1] == pytest.approx(share if over <= 0 else -np.sqrt(share), rel=1e-6)
        overflowed += over > 0
        best = min(best, seconds if over <= 0 else np.inf)
    assert env.best is not None
    assert env.best.seconds == best
    assert env.episodes == 18


def test_the_state_is_that_of_the_pipeline_that_would_be():
    arrays = small(5)
    allowed = pivot_filter(arrays, 3, BOUNDARY_LEVEL)
    cuts = (0, int(np.flatnonzero(allowed.mask(0, 2))[1]))
    mask = allowed.mask(cuts[-1], 1)
    reduce, transfer, balance = pivot_state(arrays, 2.0, allowed.unit, cuts, mask).reshape(3, -1)
    assert mask.any()
    assert not reduce[~mask].any()
    for p in np.flatnonzero(mask):
        ends = np.array([*cuts, p, 24])
        units = allowed.unit[ends]
        stages = list(zip(ends, ends[1:], units, units[1:]))
        sums = [
            arrays.reduce_seconds_per_byte[d, e] * arrays.gradient_bytes[i, j]
            for i, j, d, e in stages
        ]
        links = [
            arrays.latency_seconds[e]
            + arrays.transfer_seconds_per_byte[d, e, f] * arrays.cut_bytes[j]
            for (_, j, d, e), f in zip(stages[:-1], units[2:])
        ]
        line = arrays.forward + arrays.backward
        seconds = [line[e - d, j] - line[e - d, i] for i, j, d, e in stages]
        assert reduce[p] == pytest.approx(sum(sums) / 2.0, rel=1e-5)
        assert transfer[p] == pytest.approx(arrays.microbatches * max(links) / 2.0, rel=1e-5)
        assert balance[p] == pytest.approx(min(seconds) / max(seconds), rel=1e-5)


def test_pivots_are_near_servers_with_a_variable_in_every_stage():
    fabric = pipeline_fabric(get_topology("4x8xv100"))
    arrays = random_arrays(0, GPIPE, points=64, topology="4x8xv100")
    arrays = arrays._replace(may_cut=np.ones(65, bool), usable=np.arange(33) > 0)
    variables = np.concatenate([[0], (np.arange(64) % 3 == 1).cumsum()])
    arrays = arrays._replace(gradient_bytes=np.maximum(variables[None] - variables[:, None], 0.0))
    allowed = pivot_filter(arrays, 4, fabric.boundary_level)
    near = {*range(5, 12), *range(13, 20), *range(21, 28)}
    for cuts, _, _, _ in played(PivotEnv(arrays, allowed, 20), 4, 3):
        assert set(allowed.unit[cuts].tolist()) <= near
        assert (np.diff(variables[[0, *cuts, 64]]) >= 1).all()


def test_filters_that_leave_nothing_are_dropped_and_no_partition_is_none():
    no_variables = small(0, gradient_bytes=np.zeros((25, 25)))
    assert pivot_filter(no_variables, 3, BOUNDARY_LEVEL) is not None
    only_halves = small(0, usable=np.arange(9) == 4)
    assert pivot_filter(only_halves, 3, BOUNDARY_LEVEL) is None


def test_the_agent_finds_the_best_of_its_game_which_the_exact_solver_is_not_above():
    arrays = small(7)
    best = best_of_pivots(arrays, pivot_filter(arrays, 3, BOUNDARY_LEVEL))
    result = find(
        arrays,
        3,
        BOUNDARY_LEVEL,
        "faithful",
        seed=0,
        deadline=Deadline.never(),
        most_decisions=2_000,
    )
    assert result.played.seconds == pytest.approx(best.seconds, rel=1e-9)
    assert solve(arrays, 3).best.seconds <= best.seconds * (1 + 1e-9)


class Updates:
    """A log of the updates so far."""

    def __init__(self):
        self.rows = []

    def write(self, row):
        self.rows.append((row.steps, row.updates))


def test_without_learning_the_same_player_plays_on_and_learns_nothing():
    arrays = small(4)
    options = {"seed": 0, "deadline": Deadline.never(), "most_decisions": 800}
    logs = Updates(), Updates()
    configs = CONFIGS["faithful"], replace(CONFIGS["faithful"], steps_per_update=None)
    learnt, unlearnt = (
        find(arrays, 3, BOUNDARY_LEVEL, "faithful", config=config, log=log, **options)
        for config, log in zip(configs, logs, strict=True)
    )
    # Before anything is learnt both play the same games.
    assert learnt.first.seconds == unlearnt.first.seconds
    assert logs[1].rows == [(400, 0), (800, 0)]
    # One for every 8 decisions, but for the first 64, which fill the replay.
    assert logs[0].rows == [(400, 44), (800, 94)]
