"""Elimination against trying every choice."""

from itertools import product

from hypothesis import given, strategies as st
import numpy as np
import pytest

from automap.search.factored import eliminate
from automap.search.factored.eliminate import Elimination, Table, elimination_order, merged


@st.composite
def sums(draw):
    """Sizes of variables, and tables over some of them; a few entries are not allowed."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    source = np.random.default_rng(draw(st.integers(0, 2**32)))
    tables = []
    for _ in range(draw(st.integers(1, 7))):
        scope = tuple(sorted(draw(st.sets(st.integers(0, len(sizes) - 1), max_size=3))))
        values = source.uniform(-1, 1, [sizes[v] for v in scope])
        values = np.where(source.uniform(size=values.shape) < 0.1, np.inf, values)
        tables.append(Table(scope, values))
    return sizes, tables


def total(tables, choices):
    return sum(float(t.values[tuple(choices[v] for v in t.scope)]) for t in tables)


def eliminated(sizes, tables):
    return Elimination(tables, sizes, elimination_order([t.scope for t in tables], sizes))


@given(sums())
def test_the_minimum_and_a_choice_that_has_it(case):
    sizes, tables = case
    least = min(total(tables, x) for x in product(*map(range, sizes)))
    elimination = eliminated(sizes, tables)
    assert elimination.is_exact
    assert elimination.bound == pytest.approx(least)
    assert total(tables, elimination.assignment()) == pytest.approx(least)


@given(sums())
def test_marginals_are_the_minimum_by_each_choice(case):
    sizes, tables = case
    held = {v for t in tables for v in t.scope}
    for v, bounds in enumerate(eliminated(sizes, tables).marginals()):
        for choice in range(sizes[v]) if v in held else ():
            every = (x for x in product(*map(range, sizes)) if x[v] == choice)
            assert bounds[choice] == pytest.approx(min(total(tables, x) for x in every))


@given(sums(), st.sampled_from([1, 3, 6]))
def test_small_sums_bound_the_minimum_from_below(case, largest):
    sizes, tables = case
    least = min(total(tables, x) for x in product(*map(range, sizes)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(eliminate, "LARGEST", largest)
        elimination = eliminated(sizes, tables)
        marginals = elimination.marginals()
    assert elimination.bound <= least + 1e-9
    if np.isfinite(least):
        best = min(product(*map(range, sizes)), key=lambda x: total(tables, x))
        assert all(of[i] <= least + 1e-9 for of, i in zip(marginals, best))


@given(sums())
def test_merged_tables_have_the_same_sum_and_none_is_within_another(case):
    sizes, tables = case
    kept = merged(tables)
    for choices in product(*map(range, sizes)):
        assert total(kept, choices) == pytest.approx(total(tables, choices))
    assert not any(set(a.scope) <= set(b.scope) for a in kept for b in kept if a is not b)
