"""Changed puzzles have the optimum of the puzzle; tables say what the seeds reached."""

import numpy as np
import pytest

from automap.search.counts.choices import Choices
from automap.search.counts.solvers import optimum
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
