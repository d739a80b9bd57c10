"""Changed puzzles have the optimum of the puzzle; tables say what the seeds reached."""

import numpy as np
import pytest


pytest.importorskip("torch")

from automap.search.counts.choices import Choices
from automap.search.counts.solvers import optimum
from scripts.ablate_rainbow import PROBLEMS, Run, table
from scripts.automap_puzzles import (
    chosen,
    random_choices,
    smallest_first,
    ungrouped,
    with_nothing_implied,
)


def _in_some_order(choices: Choices) -> Choices:
    return chosen(choices, np.random.default_rng(1).permutation(len(choices)))


@pytest.mark.parametrize(
    "change", [ungrouped, smallest_first, with_nothing_implied, _in_some_order]
)
@pytest.mark.parametrize("seed", range(3))
def test_the_optimum_stays(change, seed):
    choices = random_choices(12, seed)
    changed = change(choices)
    best = optimum(changed)
    assert changed.holds(best)
    assert changed.count(best) == choices.count(optimum(choices))


def test_dimensions_of_a_group_are_split_all_or_none():
    choices = random_choices(12, 0)
    alone = ungrouped(choices)
    assert len(alone) == choices.weights.sum()
    group = int(np.flatnonzero(choices.allowed & (choices.weights > 1))[0])
    split = np.repeat(np.arange(12) == group, choices.weights)
    assert alone.holds(split) and alone.count(split) == choices.weights[group]
    split[np.flatnonzero(split)[0]] = False
    assert not alone.holds(split)
    # They are called by what each is.
    assert [name for names in alone.dimensions for name in names] == [
        name for names in choices.dimensions for name in names
    ]


def test_beside_a_changed_player_stands_the_same_one_that_does_not_learn():
    own = {"problem": "ours", "changed": "nothing", "decisions": 7, "seconds": 0.1}
    made = [
        Run(**own, seed=seed, score=score, is_optimal=learns, learns=learns)
        for seed, score, learns in ((0, 164, True), (1, 164, True), (0, 160, False))
    ]
    header, _, first, *others = (
        line.split(" | ") for line in table(PROBLEMS["ours"], made).splitlines()
    )
    cells = dict(zip(header[1:3], first[1:3], strict=True))
    assert cells == {"optimum found": "2 of 2", "learning off": "0 of 1"}
    # What was not run is not told.
    assert all(set(row[1:-1]) == {"-"} for row in others)
