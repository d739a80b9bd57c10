"""The choice of what is kept is the best one."""

from dataclasses import dataclass
import itertools

from hypothesis import given, settings, strategies as st
import jax
import jax.numpy as jnp
import numpy as np

from automap.jaxpr.blocks import block_groups
from automap.jaxpr.flatten import flatten
from automap.planner.remat import (
    BlockPrices,
    keep_all,
    keep_nothing,
    keep_within,
    kept_bytes,
    remat_records,
)


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
        stored = self.prices.stack_seconds * sum(self.prices.value_bytes[p] for p in kept)
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
        float(rng.choice([0.0, 0.5])),
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
    (chosen,) = keep_within([prices], budget).values()
    assert kept_bytes([prices], {0: chosen}) <= budget * (1 + 1e-9)
    np.testing.assert_allclose(_Priced(prices).seconds(chosen), best, rtol=1e-3)


def test_what_keeps_all_changes_nothing():
    assert not remat_records(GROUPS, keep_all(GROUPS))
    records = remat_records(GROUPS, keep_nothing(GROUPS))
    assert [len(record.blocks) for record in records] == [max(len(g.blocks) for g in GROUPS)]
    assert not records[0].kept
