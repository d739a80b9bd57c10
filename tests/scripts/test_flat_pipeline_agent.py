"""The paper's form of the inference agent: what it sees, what it is paid, and how long it keeps a
problem.
"""

import numpy as np
import pytest


pytest.importorskip("torch")

from automap.pipeline.agent.problems import generate_as_paper  # noqa: E402
from automap.pipeline.value import value  # noqa: E402
from rl.agent import Agent  # noqa: E402
from rl.replay import NStep  # noqa: E402
from scripts import flat_pipeline_agent  # noqa: E402
from scripts.flat_pipeline_agent import (  # noqa: E402
    RETURNS,
    SIZE,
    FlatEnv,
    GeneratedEnv,
    Kept,
    all_kept,
    keep,
    speeds,
    untrained,
)


def played(env, source):
    """One episode at random: (actions [steps, n], rewards [steps, n])."""
    taken, rewards = [], []
    for _ in range(2 * (SIZE.stages - 1)):
        mask = env.observe().mask
        taken.append(np.where(mask, source.random(mask.shape), -1.0).argmax(1))
        rewards.append(env.step(taken[-1]).rewards)
    return np.array(taken), np.array(rewards)


def test_devices_of_a_server_are_as_fast_as_can_be_and_others_slower_by_the_ratio():
    matrix = speeds(generate_as_paper(0, SIZE))
    server = np.arange(32) // 8
    apart = server[:, None] != server[None, :]
    assert np.array_equal(matrix[~apart], np.ones((~apart).sum()))
    (slower,) = np.unique(matrix[apart].round(6))
    # A link's ratio, and the port that eight devices share is not part of it.
    assert slower in np.round([1 / 2, 1 / 6, 1 / 20, 1 / 48], 6)


def test_the_reward_is_the_ideal_step_over_the_step():
    problems = [generate_as_paper(seed, SIZE) for seed in (1, 2)]
    actions, rewards = played(FlatEnv(problems), np.random.default_rng(0))
    assert not rewards[:-1].any()
    for game, problem in enumerate(problems):
        cuts = np.array([0, *actions[0::2, game], 128])
        units = np.array([0, *actions[1::2, game], 32])
        # All points are one second on one device, by construction.
        ideal = 1.0 / 32
        least = ideal / value(problem.arrays, cuts, units)
        assert rewards[-1, game] == pytest.approx(least, rel=1e-5)


def test_problems_are_played_so_often_and_a_run_goes_on_where_it_was(monkeypatch):
    monkeypatch.setattr(flat_pipeline_agent, "N_ENVS", 2)
    monkeypatch.setattr(flat_pipeline_agent, "EPISODES_EACH", 2)
    env, source = GeneratedEnv(), np.random.default_rng(0)
    seeds = []
    for _ in range(4):
        seeds.append((env.arrays()["seeds"] - flat_pipeline_agent.FIRST_SEED).tolist())
        played(env, source)
    # The first of the second problem's two plays is left out, so that not all change at once.
    assert seeds == [[0, 1], [2, 1], [2, 3], [4, 3]]
    again = GeneratedEnv()
    again.restore({name: array.copy() for name, array in env.arrays().items()})
    for name, array in env.observe().arrays().items():
        assert np.array_equal(array, again.observe().arrays()[name])


def test_kept_weights_play_as_they_did_and_are_sorted_by_kind_episodes_and_seed(tmp_path):
    shape, problems = GeneratedEnv().shape, [generate_as_paper(seed, SIZE) for seed in (1, 2)]
    agent = Agent(shape, RETURNS["whole"], 0)
    source = np.random.default_rng(0)
    agent.begin_with({k: source.normal(size=w.shape) for k, w in agent.weights().items()})
    for returns, seed, episodes in (
        ("whole", 1, 20),
        ("whole", 0, 20),
        ("discounted", 10, 5),
        ("discounted", 2, 100),
    ):
        keep(tmp_path, Kept(returns, seed, episodes, agent))
    # The run itself, of which only the weights count.
    (tmp_path / "whole-1-last.safetensors").touch()
    found = all_kept(tmp_path)
    assert [(k.returns, k.episodes, k.seed) for k in found] == [
        ("discounted", 5, 10),
        ("discounted", 100, 2),
        ("whole", 20, 0),
        ("whole", 20, 1),
    ]
    wanted, other = (
        [p.cuts.tolist() for p in flat_pipeline_agent.played(each, problems)]
        for each in (agent, untrained())
    )
    assert wanted != other
    for each in found:
        ended = flat_pipeline_agent.played(each.agent, problems)
        assert [p.cuts.tolist() for p in ended] == wanted


def test_with_whole_returns_an_action_is_worth_the_reward_at_the_end(monkeypatch):
    monkeypatch.setattr(flat_pipeline_agent, "N_ENVS", 1)
    env, source = GeneratedEnv(), np.random.default_rng(0)
    config, steps = RETURNS["whole"], NStep(env.shape, RETURNS["whole"].n_steps, 1.0)
    assert config.gamma == 1.0
    done = []
    for _ in range(2 * (SIZE.stages - 1)):
        now = env.observe()
        action = np.array([source.choice(np.flatnonzero(now.mask[0]))])
        outcome = env.step(action)
        done.append(steps.push(now, action, outcome, env.observe()))
    # None is held against a next state.
    returns = np.concatenate([each.returns for each in done])
    assert len(returns) == len(done) and np.array_equal(returns, np.full(6, outcome.rewards[0]))
    assert not np.concatenate([each.discounts for each in done]).any()
