"""The game of stages of kinds, held to the exact solver and to brute force."""

from itertools import product

import numpy as np
import pytest


pytest.importorskip("torch")

from automap.pipeline.schedules import GPIPE
from automap.pipeline.solvers.exact import solve
from automap.pipeline.solvers.stage_options import replicated_options
from scripts.hybrid_agents import KindGame, played
from tests.automap.pipeline.problems import random_arrays


STAGES = 3


@pytest.fixture(scope="module")
def options():
    arrays = random_arrays(3, GPIPE, points=8, topology="2x4xv100", microbatches=4)
    return replicated_options(arrays._replace(memory_limit_bytes=np.inf))


def all_games(game: KindGame):
    """Every game, by the masks alone."""
    level = [()]
    for _ in range(2 * STAGES - 1):
        level = [(*g, int(a)) for g in level for a in np.flatnonzero(game._state(g)[2])]
    return level


def test_the_best_of_all_games_is_the_exact_optimum(options):
    game = KindGame(options, STAGES, 1)
    games = all_games(game)
    units, may_cut = options.units, options.may_cut
    by_hand = [
        (kinds, points)
        for kinds in product(range(len(units)), repeat=STAGES)
        if units[list(kinds)].sum() == options.n_units
        for points in product(np.flatnonzero(may_cut[1:-1]) + 1, repeat=STAGES - 1)
        if all(i < j for i, j in zip(points, points[1:]))
    ]
    assert len(games) == len(set(games)) == len(by_hand)
    exact = solve(options, STAGES)
    assert exact.proven and exact.best is not None
    assert min(map(game.priced, games)) == pytest.approx(exact.best.seconds)


def test_a_game_is_worth_what_its_baseline_says_at_the_last_decision(options):
    game = KindGame(options, STAGES, 1)
    whole = game.finished(())
    _, baseline, mask = game._state(whole[:-1])
    assert mask[whole[-1]]
    assert baseline[whole[-1]] == pytest.approx(1.0)


def test_second_thoughts_end_no_worse_than_the_game_and_no_better_than_the_optimum(options):
    run = played(options, 0, learns=False, stages=STAGES, most_decisions=500)
    exact = solve(options, STAGES).best
    assert exact is not None
    assert exact.seconds <= run.improved_seconds * (1 + 1e-9)
    assert run.improved_seconds <= run.seconds
