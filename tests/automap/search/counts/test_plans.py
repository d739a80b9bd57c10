"""Optimum, greed, second thoughts and the game against every plan there is."""

from dataclasses import replace

from hypothesis import given, strategies as st
import numpy as np
import pytest

from automap.search.counts.agent import CountEnv
from automap.search.counts.game import SPLIT, UNDECIDED, WHOLE, Game, OurView, PaperView
from automap.search.counts.solvers import greedy, optimum, reconsidered
from tests.automap.search.counts.instances import CHOICES, plans, random_choices


@given(CHOICES)
def test_the_optimum_is_that_of_all_plans(choices):
    best_split = optimum(choices)
    assert choices.holds(best_split)
    assert choices.count(best_split) == max(map(choices.count, plans(choices)))


@given(CHOICES)
def test_greed_splits_what_no_earlier_decision_forbids(choices):
    split = greedy(choices)
    assert choices.holds(split)
    every = plans(choices)
    for i in range(len(choices)):
        # Some plan that agrees before i splits i: then greed does.
        assert split[i] == any(p[i] and (p[:i] == split[:i]).all() for p in every)


@given(CHOICES, st.data())
def test_second_thoughts_hold_and_never_count_less(choices, data):
    start = data.draw(st.sampled_from(plans(choices)))
    best_split = reconsidered(choices, start)
    assert choices.holds(best_split)
    assert choices.count(best_split) >= choices.count(start)


def test_second_thoughts_find_what_greed_gave_away():
    # Greed takes the first, which stands against four that count more together.
    choices = random_choices(0, 5)
    weights = np.array([3, 2, 2, 2, 2])
    conflicts = np.zeros((5, 5), bool)
    conflicts[0, 1:] = conflicts[1:, 0] = True
    star = replace(
        choices, weights=weights, allowed=np.ones(5, bool), conflicts=conflicts, implied=conflicts
    )
    assert star.count(greedy(star)) == 3
    assert star.count(reconsidered(star, greedy(star))) == 8


@given(CHOICES, st.data())
def test_a_game_goes_wrong_where_no_plan_agrees_with_it(choices, data):
    every, game, counted = plans(choices), Game(choices, 1), 0
    for _ in range(len(choices)):
        action = data.draw(st.sampled_from([WHOLE, SPLIT]))
        i = int(game.position[0])
        made = game.decided[0, :i] == SPLIT
        possible = {bool(p[i]) for p in every if (p[:i] == made).all()}
        mask = OurView(choices).observe(game).mask[0]
        assert {bool(a) for a in np.flatnonzero(mask)} == possible
        moved = game.move(np.array([action]))
        counted += int(moved.partitioned[0] + moved.replicated[0])
        assert moved.wrong[0] == (bool(action) not in possible)
        assert moved.ended[0] == (moved.wrong[0] or UNDECIDED not in game.decided[0])
        if moved.ended[0]:
            break
    # Every dimension is counted once.
    assert moved.ended[0]
    assert moved.wrong[0] or counted == choices.weights.sum()
    game.clear(np.array([True]))
    assert all(
        (a == b).all() for a, b in zip(game.arrays().values(), Game(choices, 1).arrays().values())
    )


@given(CHOICES, st.integers(0, 2**32 - 1))
def test_masked_games_are_never_wrong_and_the_best_is_kept(choices, seed):
    source, env, counts = np.random.default_rng(seed), CountEnv(choices, OurView(choices), 3), []
    total = choices.weights[choices.allowed].sum() or 1
    returns = np.zeros(3)
    for _ in range(4 * len(choices)):
        mask = env.observe().mask
        actions = np.where(mask, source.random(mask.shape), -1.0).argmax(1)
        outcome = env.step(actions)
        returns += outcome.rewards
        counts += [round(float(r) * total) for r in returns[outcome.dones]]
        returns[outcome.dones] = 0.0
    assert choices.holds(env.best)
    assert env.best_count == choices.count(env.best) == max(counts)


@given(CHOICES)
def test_the_baseline_is_what_greed_brings(choices):
    env = CountEnv(choices, OurView(choices), 1)
    total = choices.weights[choices.allowed].sum() or 1
    seen = env.observe()
    move = SPLIT if seen.mask[0, SPLIT] else WHOLE
    greedily = choices.count(greedy(choices))
    assert seen.baseline[0, move] * total == pytest.approx(greedily, rel=1e-5)
    best = 0.0
    for _ in range(len(choices)):
        seen = env.observe()
        best += float(env.step(np.where(seen.mask, seen.baseline, -1.0).argmax(1)).rewards[0])
    # Looking at what greed brings after each move does at least as well as greed.
    assert best * total >= greedily - 1e-3


def test_the_papers_state_and_rewards():
    choices = random_choices(3, 4, density=0.0)
    implied = np.zeros((4, 4), bool)
    implied[0, 1] = implied[1, 0] = True
    choices = replace(
        choices,
        weights=np.array([3, 2, 1, 1]),
        allowed=np.array([True, True, False, True]),
        conflicts=implied,
        implied=implied,
    )
    env = CountEnv(choices, PaperView(choices), 1)
    # A number for each dimension: three of the first decision, two of the second, and so on.
    assert env.observe().flat.tolist() == [[-1.0] * 7 + [0.0]]
    outcome = env.step(np.array([SPLIT]))
    assert outcome.rewards == pytest.approx([0.4 * 3 + 0.1 * 2])
    assert env.observe().flat[0] == pytest.approx([1, 1, 1, 0, 0, -1, -1, 5 / 7])
    outcome = env.step(np.array([SPLIT]))
    assert outcome.rewards.tolist() == [-1.0] and outcome.dones.tolist() == [True]
    assert env.best_count == -1
    assert env.take_share() == pytest.approx(6 / 7)
    assert env.observe().flat.tolist() == [[-1.0] * 7 + [0.0]]
    env.step(np.array([WHOLE]))
    assert env.observe().flat[0] == pytest.approx([0, 0, 0, -1, -1, -1, -1, 3 / 7])


@given(CHOICES, st.data())
def test_the_second_stage_begins_with_what_was_split(choices, data):
    every = plans(choices)
    kept = data.draw(st.sampled_from(every))
    game = Game(choices, 2)
    before = game.decided.copy()
    if not game.keep(kept):
        # Nothing is left to decide: every other decision contradicts what is split, or follows.
        assert (game.decided == before).all()
        return
    assert (game.decided[:, kept] == SPLIT).all()
    assert not (game.decided[:, ~kept] == SPLIT).any()
    # Any plan that splits all that is kept, and holds, can still be played.
    plan = data.draw(st.sampled_from([p for p in every if (p[kept]).all()]))
    for _ in range(len(choices)):
        moved = game.move(plan[game.position].astype(np.int64))
        assert not moved.wrong.any()
        if moved.ended.all():
            break
    assert ((game.decided == SPLIT) == plan).all()
