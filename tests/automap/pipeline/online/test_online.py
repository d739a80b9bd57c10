"""Online training: the game against the value function, its rules, and the agent on problems whose
optimum is known.
"""

from dataclasses import replace
import os
from pathlib import Path
import signal
import subprocess
import sys

from hypothesis import given, settings, strategies as st
import numpy as np
import pytest


pytest.importorskip("torch")

from automap.deadline import Deadline  # noqa: E402
from automap.errors import InputError  # noqa: E402
from automap.interrupts import Interrupts  # noqa: E402
from automap.pipeline.fabric import pipeline_fabric  # noqa: E402
from automap.pipeline.online import strategy  # noqa: E402
from automap.pipeline.online.game import (  # noqa: E402
    action_filter,
    ideal_seconds,  # noqa: E402
    near_boundaries,
)
from automap.pipeline.online.strategy import (
    PipelineEnv,  # noqa: E402
    find,  # noqa: E402
)
from automap.pipeline.schedules import GPIPE, ONE_FORWARD_ONE_BACKWARD  # noqa: E402
from automap.pipeline.solvers.exact import Partition, solve  # noqa: E402
from automap.pipeline.solvers.local import improve  # noqa: E402
from automap.pipeline.value import price_partition, values  # noqa: E402
from automap.search import torch_needed  # noqa: E402
from automap.topology import get_topology  # noqa: E402
from rl.train import Trainer  # noqa: E402
from tests.automap.pipeline.problems import LEARNT_SCHEDULES, SEEDS, random_arrays  # noqa: E402
from tests.automap.pipeline.solvers.test_exact import all_partitions  # noqa: E402


ROOT = Path(__file__).resolve().parents[4]
PARTED_BY = pipeline_fabric(get_topology("2x2xv100")).boundary_level


def played(env, stages, games):
    """Random allowed actions of whole episodes: (observation, partition, rewards) of each game's
    each decision.
    """
    source = np.random.default_rng(0)
    n_games = env.shape.n_envs
    for _ in range(games):
        cuts, parts, rewards, seen = [0], [0], [], []
        for number in range(2 * (stages - 1)):
            seen.append(env.observe())
            mask = seen[-1].mask
            assert mask.any(1).all()
            actions = np.where(mask, source.random(mask.shape), -1.0).argmax(1)
            outcome = env.step(actions)
            rewards.append(outcome.rewards)
            (cuts if number % 2 else parts).append(actions)
            assert outcome.dones.all() == outcome.dones.any() == (number == 2 * (stages - 1) - 1)
        for game in range(n_games):
            yield (
                seen,
                game,
                *([0, *(int(a[game]) for a in x[1:])] for x in (cuts, parts)),
                [float(r[game]) for r in rewards],
            )


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(seed=SEEDS, schedule=LEARNT_SCHEDULES, stages=st.integers(2, 4))
def test_rewards_of_an_episode_add_up_to_one_over_its_step(seed, schedule, stages):
    arrays = random_arrays(seed, schedule)
    every = values(arrays._replace(memory_limit_bytes=np.inf), *all_partitions(7, 4, stages))
    allowed = action_filter(arrays, stages, PARTED_BY)
    if allowed is None:
        assert np.isinf(every).all()
        return
    env = PipelineEnv(arrays, allowed, 3)
    ideal, best = ideal_seconds(arrays), np.inf
    assert ideal <= every.min() * (1 + 1e-9)
    for seen, game, cuts, parts, rewards in played(env, stages, 4):
        ends = np.array([*cuts, 7]), np.array([*parts, 4])
        over, seconds = price_partition(arrays, *ends)
        assert np.isfinite(seconds)
        assert sum(rewards) == pytest.approx(
            ideal / seconds if over <= 0 else -np.sqrt(ideal / seconds), rel=1e-6
        )
        known = seen[-1].baseline[game, cuts[-1]]
        assert known == pytest.approx(sum(rewards), rel=1e-6)
        assert np.isfinite(seen[-1].flat).all()
        best = min(best, seconds if over <= 0 else np.inf)
    assert env.best is not None
    assert env.best.seconds == best
    assert env.episodes == 12


def test_stages_end_near_servers_and_have_variables():
    fabric = pipeline_fabric(get_topology("4x8xv100"))
    near = np.flatnonzero(near_boundaries(fabric.boundary_level, 4))
    assert near.tolist() == [0, *range(5, 12), *range(13, 20), *range(21, 28), 32]
    # Three servers' boundaries are too few for five stages: cards count then.
    assert near_boundaries(fabric.boundary_level, 5).all()
    arrays = random_arrays(0, GPIPE, points=12, topology="4x8xv100")._replace(
        may_cut=np.ones(13, bool), usable=np.ones(33, bool)
    )
    variables = np.arange(12) % 3 == 1
    before = np.concatenate([[0], variables.cumsum()])
    arrays = arrays._replace(gradient_bytes=np.maximum(before[None] - before[:, None], 0.0))
    allowed = action_filter(arrays, 4, fabric.boundary_level)
    for _, _, cuts, parts, _ in played(PipelineEnv(arrays, allowed, 20), 4, 3):
        assert set(parts[1:]) <= set(near.tolist())
        assert (np.diff(before[[*cuts, 12]]) >= 1).all()


def test_filters_that_leave_nothing_are_not_kept():
    fabric = pipeline_fabric(get_topology("4x8xv100"))
    sizes = np.isin(np.arange(33), [1, 15, 16, 31])
    arrays = random_arrays(0, GPIPE, topology="4x8xv100")._replace(
        may_cut=np.ones(8, bool), usable=sizes, gradient_bytes=np.zeros((8, 8))
    )
    allowed = action_filter(arrays, 3, fabric.boundary_level)
    for _, _, _, parts, _ in played(PipelineEnv(arrays, allowed, 4), 3, 2):
        assert sorted(np.diff([*parts, 32])) == [1, 15, 16]
    assert action_filter(arrays, 8, fabric.boundary_level) is None


def small(seed):
    """A problem of three stages."""
    arrays = random_arrays(seed, ONE_FORWARD_ONE_BACKWARD, points=24, topology="2x4xv100")
    return arrays._replace(may_cut=np.ones(25, bool), usable=np.ones(9, bool))


def searched(arrays, mode="ours", **options):
    boundary_level = pipeline_fabric(get_topology("2x4xv100")).boundary_level
    return find(
        arrays, 3, boundary_level, mode, **{"seed": 0, "deadline": Deadline.never()} | options
    )


@pytest.mark.parametrize("seed", [2, 11])
def test_learns_the_optimum_that_the_first_games_miss(seed):
    arrays = small(seed)
    best, found = solve(arrays, 3).best, searched(arrays, most_decisions=12_000)
    assert found.first.seconds > 1.02 * best.seconds
    assert found.played.seconds == pytest.approx(best.seconds, rel=1e-9)
    assert found.improved.seconds == found.played.seconds


def test_second_thoughts_make_it_fit():
    arrays = small(0)
    cuts, parts = np.array([0, 1, 2, 24]), np.array([0, 1, 2, 8])
    tight = solve(arrays, 3).best.seconds * 1.5
    assert improve(arrays, Partition(cuts, parts, np.inf)).seconds <= tight


def test_the_budget_is_kept_and_one_round_is_always_played():
    found = searched(small(0), deadline=Deadline.after(0.0))
    assert found.episodes == strategy.N_GAMES["ours"]
    assert found.played.seconds == found.first.seconds


def test_ctrl_c_keeps_the_best_so_far(monkeypatch):
    whole_step, taken, interrupts = Trainer.step, [], Interrupts()

    def step(trainer):
        taken.append(trainer)
        if len(taken) == 10:
            with interrupts.noting():
                interrupts.on_interrupt(signal.SIGINT, None)
        whole_step(trainer)

    monkeypatch.setattr(Trainer, "step", step)
    found = searched(small(0), deadline=replace(Deadline.never(), interrupts=interrupts))
    assert len(taken) == 10
    assert np.isfinite(found.improved.seconds)


def test_one_stage_is_what_there_is_and_no_partition_none():
    arrays = small(0)
    boundary_level = pipeline_fabric(get_topology("2x4xv100")).boundary_level
    only = find(arrays, 1, boundary_level, "ours", seed=0, deadline=Deadline.never())
    assert only.played.device_cuts.tolist() == [0, 8]
    nowhere = arrays._replace(may_cut=np.arange(25) == 0)
    assert searched(nowhere).improved is None


def test_without_torch_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(torch_needed, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install 'jax-automap"):
        searched(small(0))


_RUN = """
from tests.automap.pipeline.online.test_online import searched, small

found = searched(small(1), seed=4, patience=400)
print(found.episodes, found.played.cuts, found.played.device_cuts, found.played.seconds.hex())
"""


@pytest.mark.slow
def test_the_same_seed_gives_the_same_plan_in_another_process():
    runs = {
        subprocess.run(
            [sys.executable, "-c", _RUN],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "12"
    }
    assert len(runs) == 1
