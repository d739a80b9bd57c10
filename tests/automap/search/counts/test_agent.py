"""The agents on decisions whose optimum is known."""

from dataclasses import replace

import numpy as np
import pytest


pytest.importorskip("torch")

from automap.errors import InputError  # noqa: E402
from automap.search import torch_needed  # noqa: E402
from automap.search.counts import agent  # noqa: E402
from automap.search.counts.agent import (
    CountEnv,  # noqa: E402
    find,  # noqa: E402
)
from automap.search.counts.game import OurView  # noqa: E402
from automap.search.counts.solvers import (
    greedy,  # noqa: E402
    optimum,  # noqa: E402
)
from rl.train import Trainer  # noqa: E402
from tests.automap.search.counts.instances import random_choices  # noqa: E402


PARTITIONING = "operator partitioning"


def hard_choices():
    """Fourteen decisions of which greed misses the best."""
    seeds = (random_choices(seed, 14) for seed in range(100))
    return next(c for c in seeds if c.count(greedy(c)) <= 0.9 * c.count(optimum(c)))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["faithful", "ours"])
def test_reaches_the_optimum_that_greed_misses(mode):
    choices = hard_choices()
    best = choices.count(optimum(choices))
    result = find(
        choices,
        mode,
        PARTITIONING,
        seed=0,
        most_steps=20_000,
        target_count=best,
    )
    assert choices.holds(result.split)
    assert choices.count(result.split) == best
    counts = [it.count for it in result.improvements]
    assert counts == sorted(set(counts))
    if mode == "ours":
        assert counts[-1] == best


def test_the_same_seed_finds_the_same():
    choices = random_choices(1, 20)
    runs = [
        find(
            choices,
            "ours",
            PARTITIONING,
            seed=3,
            most_steps=2_000,
            target_count=10**9,
        )
        for _ in range(2)
    ]
    assert (runs[0].split == runs[1].split).all()
    assert [(i.count, i.steps) for i in runs[0].improvements] == [
        (i.count, i.steps) for i in runs[1].improvements
    ]


def test_a_resumed_search_is_the_uninterrupted_one(tmp_path):
    choices = random_choices(2, 20)

    def begun() -> tuple[CountEnv, Trainer]:
        env = CountEnv(choices, OurView(choices), 4)
        return env, Trainer(env, agent.PLAYERS["ours", PARTITIONING].config, seed=1)

    env, trainer = begun()
    trainer.run(1_000)
    trainer.save(tmp_path / "run.safetensors")
    trainer.run(2_000)
    other_env, other = begun()
    other.restore(tmp_path / "run.safetensors")
    other.run(2_000)
    assert all((env.arrays()[k] == other_env.arrays()[k]).all() for k in env.arrays())
    assert (trainer.agent.values(env.observe()) == other.agent.values(env.observe())).all()


def test_the_budget_ends_a_search():
    result = find(
        random_choices(1, 20),
        "ours",
        PARTITIONING,
        seed=0,
        most_steps=10**9,
        target_count=10**9,
        is_over=lambda: True,
    )
    assert result.steps == agent.PLAYERS["ours", PARTITIONING].n_tables


def test_without_torch_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(torch_needed, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'jax-automap\[rl\]'"):
        find(
            random_choices(1, 5),
            "ours",
            PARTITIONING,
            seed=0,
            most_steps=1,
            target_count=1,
        )


def test_greedy_shares_stay_finite_where_nothing_can_be_split():
    choices = random_choices(0, 4)
    none = replace(choices, allowed=np.zeros(4, bool))
    result = find(
        none,
        "ours",
        PARTITIONING,
        seed=0,
        most_steps=1_000,
        target_count=0,
    )
    assert not result.split.any()
