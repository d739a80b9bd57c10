"""Schedules of whole graphs: blocks that are too wide, and what no schedule is below."""

from hypothesis import given, settings, strategies as st
import numpy as np
import pytest

from automap.deadline import Deadline
from automap.streams.arrays import PricedOperators
from automap.streams.blocks import make_block
from automap.streams.operators import Operator, Part
from automap.streams.products import Product
from automap.streams.schedule import find_schedule
from automap.streams.strategies import Limits
from automap.topology import get_topology
from tests.automap.streams.blocks import least_seconds


IOS = Limits(groups=8, group_size=3)


def _operator(number, before, rng):
    """A product of a random size, which reads what is before it and weights of its own."""
    rows, columns, depth = (int(64 * n) for n in rng.integers(1, 12, 3))
    product = Product(groups=1, rows=rows, columns=columns, depth=depth, dtype="f32")
    reads = tuple((b, 4 * rows * depth) for b in sorted(before))
    part = Part(
        op_class="product",
        product=product,
        reads=(*reads, (1000 + number, 4 * depth * columns)),
        written_bytes=4 * rows * columns,
        runs=1,
    )
    return Operator(site=str(number), label="", parts=(part,), before=frozenset(before), merge=None)


def priced_graph(before, seed=0):
    rng = np.random.default_rng(seed)
    operators = tuple(_operator(n, reads, rng) for n, reads in enumerate(before))
    return PricedOperators(operators, get_topology("1xv100"))


def cells(count, width):
    """Cells of chains of two beside each other; a chain's number says which of the two cells before
    it reads all of, so that no operator cuts the graph.
    """
    before, ends = [], [[], []]
    for _ in range(count):
        own = []
        for chain in range(width):
            before += [set(ends[chain % 2]), {len(before)}]
            own.append(len(before) - 1)
        ends = [ends[1], own]
    return before


def check_is_schedule(priced, schedule, limits):
    done = set()
    for stage in schedule.stages:
        assert len(stage.groups) <= limits.most_groups
        assert all(len(group) <= limits.group_size for group in stage.groups)
        for group in stage.groups:
            assert all(priced.operators[n].before <= done | set(group) for n in group)
        done |= {n for group in stage.groups for n in group}
    assert len(done) == len(priced.operators)
    assert sum(len(g) for stage in schedule.stages for g in stage.groups) == len(done)


@pytest.mark.parametrize("limits", [Limits(), IOS])
def test_a_block_too_wide_is_cut_and_searched_again_around_the_cuts(limits):
    # 96 operators: more than the bits of a mask.
    priced = priced_graph(cells(12, 4))
    schedule = find_schedule(priced, "dos", limits, Deadline.never())
    check_is_schedule(priced, schedule, limits)
    assert schedule.cut == (96,)
    assert schedule.bound_seconds <= schedule.seconds
    assert schedule.seconds <= min(schedule.sequential_seconds, schedule.greedy_seconds)
    assert schedule.sequential_seconds == pytest.approx(priced.columns["alone"].sum())


def test_what_crosses_a_cut_is_looked_for(monkeypatch):
    from automap.streams import schedule as module

    priced = priced_graph(cells(12, 4))
    joined = find_schedule(priced, "dos", IOS, Deadline.never())
    monkeypatch.setattr(module, "WINDOW_OPERATORS", 0)
    apart = find_schedule(priced, "dos", IOS, Deadline.never())
    check_is_schedule(priced, apart, IOS)
    assert joined.seconds < apart.seconds


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(2, 7), limits=st.sampled_from([Limits(), IOS]))
def test_no_schedule_is_below_the_bound(seed, count, limits):
    rng = np.random.default_rng(seed)
    before = [frozenset(b for b in range(n) if rng.random() < 0.3) for n in range(count)]
    priced = priced_graph(before, seed)
    # No strategy proves more than its own stages: the bound is the general one.
    bound = find_schedule(priced, "sequential", limits, Deadline.never()).bound_seconds
    block = priced.block(make_block(range(count), before))
    least = least_seconds(block, limits.most_groups, limits.group_size, priced.machine)
    assert bound <= least * (1 + 1e-12)
    proven = find_schedule(priced, "dos", limits, Deadline.never())
    assert proven.seconds == pytest.approx(least, rel=1e-9)
    assert proven.bound_seconds == proven.seconds
