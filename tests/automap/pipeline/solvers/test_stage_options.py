"""Stages of several kinds: the exact solver against brute force, and replicas as one options among
others.
"""

from itertools import combinations, product

from hypothesis import given, settings, strategies as st
import numpy as np
import pytest

from automap.pipeline.solvers.exact import solve
from automap.pipeline.solvers.stage_options import (
    StageOptions,
    least_bytes,
    price_stages,
    replicated_options,
    smallest_stages,
)
from automap.pipeline.value import value
from tests.automap.pipeline.problems import SCHEDULES, SEEDS, random_arrays


N, UNITS = 5, 4


def random_options(seed, schedule) -> tuple[StageOptions, int]:
    """Replicas and three kinds of their own seconds, bytes, places and transfers."""
    rng = np.random.default_rng(seed)
    plain = replicated_options(random_arrays(seed, schedule, points=N))
    own, n_kinds = 3, len(plain.units) + 3
    layouts = plain.transfer.shape[0] + 2

    def sums(scale: float) -> np.ndarray:
        return np.concatenate(
            [np.zeros((own, 1)), rng.uniform(0, scale, (own, N)).cumsum(axis=1)], axis=1
        )

    line = sums(2.0)
    between = np.maximum(line[:, None, :] - line[:, :, None], 0.0)
    rate = np.where(
        rng.random((own, UNITS + 1)) < 0.3, np.inf, rng.uniform(0, 1e-9, (own, UNITS + 1))
    )
    layout = np.concatenate([plain.layout, rng.integers(0, layouts, own)])
    # StageKinds of one layout may still send differently.
    crossing = np.concatenate([plain.crossing, plain.crossing[:1] * rng.uniform(0.5, 2, (own, 1))])
    faces = np.unique(np.column_stack([layout, crossing]), axis=0, return_inverse=True)[1]
    units = np.array([1, 2, int(rng.integers(1, UNITS + 1))])
    fastest = plain.forward[:, -1].max()
    return plain._replace(
        units=np.concatenate([plain.units, units]),
        forward=np.concatenate([plain.forward, sums(fastest / N)]),
        backward=np.concatenate([plain.backward, sums(fastest / N)]),
        weights=np.concatenate([plain.weights, schedule.order.weights_apart * sums(fastest / N)]),
        reduce=np.concatenate([plain.reduce, sums(fastest / N)]),
        rate=np.concatenate([plain.rate, rate]),
        crossing=crossing,
        interface=faces.reshape(-1),
        layout=layout,
        transfer=rng.uniform(0, 1e-9, (layouts, layouts, UNITS + 1)),
        state=np.concatenate([plain.state, 2e9 * between]),
        saved=np.concatenate([plain.saved, 1e9 * between]),
        kept=np.concatenate([plain.kept, 5e8 * between]),
        working=np.concatenate([plain.working, 1e9 * between]),
        entering=np.concatenate([plain.entering, 1e9 * line]),
        table=np.concatenate([plain.table, 1 + np.arange(own)]),
        share=np.concatenate([plain.share, np.ones(own)]),
    ), n_kinds


def all_stages(options: StageOptions, n_kinds: int, stages: int):
    """V of every partition with every kind for each stage, and the bytes over the limit."""
    for cuts in combinations(range(1, N), stages - 1):
        for parts in combinations(range(1, UNITS), stages - 1):
            for kinds in product(range(n_kinds), repeat=stages):
                yield price_stages(
                    options, np.array([0, *cuts, N]), np.array([0, *parts, UNITS]), np.array(kinds)
                )


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, schedule=SCHEDULES, stages=st.integers(1, 3))
def test_equals_brute_force(seed, schedule, stages):
    options, n_kinds = random_options(seed, schedule)
    priced = list(all_stages(options, n_kinds, stages))
    least = min((seconds for over, seconds in priced if over <= 0), default=np.inf)
    found = solve(options, stages)
    assert found.proven
    if np.isinf(least):
        assert found.best is None
    else:
        assert found.best is not None
        assert found.best.seconds == pytest.approx(least, rel=1e-9)
        assert len(found.best.kinds) == stages
    smallest = min(over for over, _ in priced) + options.memory_limit_bytes
    needed = least_bytes(options, stages)
    # `over` is never below 0, so what fits needs no more than the limit.
    assert max(needed, options.memory_limit_bytes) == pytest.approx(smallest)
    smallest_ones = smallest_stages(options, stages)
    if np.isinf(needed):
        assert smallest_ones is None
    else:
        assert smallest_ones is not None
        free = options._replace(memory_limit_bytes=0.0)
        assert price_stages(free, *smallest_ones)[0] == pytest.approx(needed)


@settings(max_examples=40, deadline=None)
@given(
    seed=SEEDS,
    schedule=SCHEDULES,
    stages=st.integers(1, 4),
    transfers=st.sampled_from(["matched", "adjacent"]),
)
def test_replicas_cost_what_they_do_in_arrays(seed, schedule, stages, transfers):
    arrays = random_arrays(seed, schedule, transfers=transfers)
    options = replicated_options(arrays)
    rng = np.random.default_rng(seed)
    cuts = np.array([0, *sorted(rng.choice(np.arange(1, 7), stages - 1, replace=False)), 7])
    parts = np.array([0, *sorted(rng.choice(np.arange(1, 4), stages - 1, replace=False)), 4])
    place = {int(r): kind for kind, r in enumerate(options.units)}
    kinds = [place.get(int(r), -1) for r in np.diff(parts)]
    expected = value(arrays, cuts, parts)
    if -1 in kinds:
        assert np.isinf(expected)
    else:
        over, seconds = price_stages(options, cuts, parts, np.array(kinds))
        assert (seconds if over <= 0 else np.inf) == pytest.approx(expected)
