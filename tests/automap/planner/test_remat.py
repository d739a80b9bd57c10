"""The choice of what is kept is the best one."""

from dataclasses import dataclass
import itertools

from hypothesis import given, settings, strategies as st
import jax
import jax.numpy as jnp
import numpy as np

from automap.jaxpr.blocks import block_groups
from automap.jaxpr.flatten import flatten
from automap.plan.levers import CARRY
from automap.planner.remat import (
    keep_all,
    keep_nothing,
    keep_within,
    kept_bytes,
    remat_records,
)
from automap.planner.remat_prices import BlockPrices


def _loss(params, x):
    for i in range(3):
        y = jnp.tanh(x @ params["a"][i])
        x = x + (y * jnp.sin(y)) @ params["b"][i]
    return (x**2).mean()


def _groups():
    params = {"a": jnp.ones((3, 4, 4)), "b": jnp.ones((3, 4, 4))}
    jaxpr = jax.jit(jax.value_and_grad(_loss)).trace(params, jnp.ones((2, 4))).jaxpr
    return block_groups(flatten(jaxpr, {}))


GROUPS = _groups()


@dataclass(frozen=True)
class _Priced:
    """What one group costs if it keeps given values, by walking its equations."""

    prices: BlockPrices

    def seconds(self, kept):
        group, block = self.prices.group, self.prices.block
        needed, todo = set(), [place for place in group.residuals if place not in kept]
        while todo:
            number, _ = todo.pop()
            if number in needed:
                continue
            needed.add(number)
            read = (block.number.get(a) for a in block.equations[number].eqn.invars if _is_var(a))
            todo += [p for p in read if p is not None and p not in kept | group.stored]
        stored = sum(self.prices.stack_seconds.get(p, 0.0) for p in kept)
        return group.runs * (sum(self.prices.seconds[n] for n in needed) + stored)


def _is_var(atom):
    return not hasattr(atom, "val")


def _candidates(prices):
    """Values of a block that could be kept: all that lead to what the backward pass reads."""
    group, block = prices.group, prices.block
    found, todo = set(), list(group.residuals)
    while todo:
        place = todo.pop()
        if place in found or place in group.stored:
            continue
        found.add(place)
        invars = block.equations[place[0]].eqn.invars
        todo += [block.number[a] for a in invars if _is_var(a) and a in block.number]
    return sorted(found)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), share=st.floats(0.0, 1.0))
def test_the_choice_is_that_of_all_choices(seed, share):
    rng = np.random.default_rng(seed)
    group = max(GROUPS, key=lambda g: g.runs)
    block = group.blocks[0]
    prices = BlockPrices(
        group,
        rng.integers(1, 9, len(block.equations)).astype(float).tolist(),
        {place: float(rng.integers(1, 9)) for place in block.number.values()},
        {},
        {place: float(rng.choice([0.0, 0.5])) for place in block.number.values()},
    )
    candidates = _candidates(prices)
    assert 5 < len(candidates) < 14
    budget = share * group.runs * sum(prices.value_bytes[p] for p in candidates)
    best = min(
        _Priced(prices).seconds(frozenset(kept))
        for count in range(len(candidates) + 1)
        for kept in itertools.combinations(candidates, count)
        if group.runs * sum(prices.value_bytes[p] for p in kept) <= budget
    )
    choice = keep_within([prices], budget)
    (chosen,) = choice.kept.values()
    assert kept_bytes([prices], choice) <= budget * (1 + 1e-9) and not choice.hosted
    np.testing.assert_allclose(_Priced(prices).seconds(chosen), best, rtol=1e-3)


def _scanned_groups():
    def loss(params, x):
        def layer(x, p):
            y = jnp.tanh(x @ p["a"])
            return x + (y * jnp.sin(y)) @ p["b"], None

        return (jax.lax.scan(layer, x, params)[0] ** 2).mean()

    params = {"a": jnp.ones((3, 4, 4)), "b": jnp.ones((3, 4, 4))}
    jaxpr = jax.jit(jax.value_and_grad(loss)).trace(params, jnp.ones((2, 4))).jaxpr
    return block_groups(flatten(jaxpr, {}))


LOOP = max(_scanned_groups(), key=lambda g: g.runs)


def _loop_seconds(prices, kept, hosted, link, in_line):
    """Seconds of a loop that keeps some values, some of them in host memory, carries at -1; inf if
    what is read of a carry is nowhere.
    """
    group, priced = prices.group, _Priced(prices)
    places = {CARRY: 0.0} | {p: sum(prices.seconds[: p[0] + 1]) for p in prices.value_bytes}
    sizes = dict(prices.value_bytes) | {CARRY: next(iter(prices.carries.values()))}
    order = sorted(hosted, key=lambda p: (CARRY, 0) if p == CARRY else p)
    seconds = priced.seconds(frozenset(p for p in kept | hosted if p != CARRY))
    seconds -= group.runs * sum(prices.stack_seconds.get(p, 0.0) for p in hosted)
    if in_line:
        return seconds + 2 * group.runs * sum(sizes[p] for p in hosted) / link
    late = 0.0
    for index, place in enumerate(order):
        left = sum(sizes[p] for p in order[index:]) / link
        late = max(late, places[place] + left - sum(prices.seconds))
    return seconds + group.runs * (sum(sizes[p] for p in hosted) / link + late)


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), share=st.floats(0.0, 1.0), in_line=st.booleans())
def test_the_choice_with_host_memory_is_that_of_all_choices(seed, share, in_line):
    rng = np.random.default_rng(seed)
    block = LOOP.blocks[0]
    prices = BlockPrices(
        LOOP,
        rng.integers(1, 9, len(block.equations)).astype(float).tolist(),
        {place: float(rng.integers(1, 9)) for place in block.number.values()},
        {block.carries[0]: float(rng.integers(1, 9))},
        {place: float(rng.choice([0.5, 1.0])) for place in block.number.values()},
    )
    link = float(rng.choice([0.5, 2.0, 20.0]))
    # The loop's input is read by whatever is computed again, so it is stacked in any case.
    candidates = [*_candidates(prices), CARRY]
    sizes = dict(prices.value_bytes) | {CARRY: next(iter(prices.carries.values()))}
    assert 4 < len(candidates) < 9
    budget = share * LOOP.runs * sum(sizes[p] for p in candidates)
    best = min(
        (
            _loop_seconds(prices, kept, hosted, link, in_line)
            for choice in itertools.product("-kh", repeat=len(candidates))
            for kept in [{p for p, c in zip(candidates, choice) if c == "k"}]
            for hosted in [{p for p, c in zip(candidates, choice) if c == "h"}]
            if CARRY in kept | hosted and LOOP.runs * sum(sizes[p] for p in kept) <= budget
        ),
        default=None,
    )
    choice = keep_within([prices], budget, link, copies_in_line=in_line)
    assert best is not None
    hosted = {CARRY if p[0] == CARRY else p for p in choice.hosted.get(0, ())}
    kept = set(choice.kept[0]) - hosted
    assert kept_bytes([prices], choice) <= budget * (1 + 1e-9)
    got = _loop_seconds(prices, kept, hosted, link, in_line)
    np.testing.assert_allclose(got, best, rtol=1e-3)


def test_what_keeps_all_changes_nothing():
    assert not remat_records(GROUPS, keep_all(GROUPS))
    records = remat_records(GROUPS, keep_nothing(GROUPS))
    assert [len(record.blocks) for record in records] == [max(len(g.blocks) for g in GROUPS)]
    assert not records[0].kept
