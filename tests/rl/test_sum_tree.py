"""The sum tree against cumulative sums."""

from hypothesis import given, strategies as st
import numpy as np
import pytest


pytest.importorskip("torch")

from rl.sum_tree import SumTree  # noqa: E402


# Small whole numbers: their sums are exact, so both ways find the same item.
CHANGES = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5)), min_size=1, max_size=40)


@given(CHANGES, st.lists(st.floats(0.0, 1.0, exclude_max=True), min_size=1))
def test_finds_what_cumulative_sums_find(changes, shares):
    tree, priorities = SumTree(13), np.zeros(13)
    items, values = (np.array(column) for column in zip(*changes))
    tree.set(items, values)
    for item, value in changes:
        priorities[item] = value
    assert tree.total == priorities.sum()
    assert (tree.priorities == priorities).all()
    if tree.total:
        targets = np.array(shares) * tree.total
        expected = np.searchsorted(np.cumsum(priorities), targets, side="right")
        assert (tree.find(targets) == expected).all()


@given(st.integers(1, 70), st.integers(0, 2**32 - 1))
def test_items_of_priority_zero_are_never_found(capacity, seed):
    source = np.random.default_rng(seed)
    tree = SumTree(capacity)
    priorities = source.random(capacity) * (source.random(capacity) < 0.3)
    priorities[source.integers(capacity)] = 1e-9
    tree.set(np.arange(capacity), priorities)
    ends = np.nextafter(np.cumsum(priorities), 0.0)
    targets = np.clip(np.concatenate([ends, [tree.total]]), 0.0, None)
    assert (priorities[tree.find(targets)] > 0.0).all()


def test_draws_in_proportion():
    tree = SumTree(4)
    tree.set(np.arange(4), np.array([1.0, 2.0, 3.0, 4.0]))
    targets = (np.arange(1_000) + 0.5) * tree.total / 1_000
    assert np.bincount(tree.find(targets)).tolist() == [100, 200, 300, 400]
