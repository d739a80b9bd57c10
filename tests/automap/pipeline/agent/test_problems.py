"""Generated problems: a seed is a problem, and each can be solved."""

from dataclasses import replace

from hypothesis import given, settings, strategies as st
import numpy as np
import pytest

from automap.pipeline.agent.problems import FAMILIES, Size, generate
from automap.pipeline.arrays import divisible
from automap.pipeline.solvers.stage_options import least_bytes
from tests.automap.pipeline.problems import SEEDS


SIZES = st.builds(
    Size,
    stages=st.integers(2, 8),
    points=st.integers(12, 40),
    servers=st.sampled_from([2, 3, 4]),
    per_server=st.sampled_from([4, 5]),
)


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, size=SIZES)
def test_some_partition_fits(seed, size):
    problem = generate(seed, size)
    arrays = problem.arrays
    assert arrays.n_points == size.points
    assert arrays.n_units == size.servers * size.per_server
    assert divisible(arrays, size.stages)[size.stages, arrays.n_units]
    assert least_bytes(arrays, size.stages) <= arrays.memory_limit_bytes


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, size=SIZES)
def test_more_points_take_more_of_everything(seed, size):
    arrays = generate(seed, size).arrays
    for table in (arrays.forward, arrays.backward):
        assert (np.diff(table, axis=1) >= 0).all()
    for table in (
        arrays.gradient_bytes,
        arrays.state_bytes,
        arrays.saved_bytes,
        arrays.working_bytes,
    ):
        upper = np.triu(np.ones_like(table, bool))
        grows = (np.diff(table, axis=1) >= -1e-9 * table.max()) | ~upper[:, :-1]
        assert grows.all()
        assert np.isfinite(table).all()


def test_a_seed_is_a_problem():
    size = Size(stages=4, points=32, servers=2, per_server=4)
    same, again, other = (generate(seed, size).arrays for seed in (3, 3, 4))
    larger = generate(3, replace(size, points=33)).arrays
    assert all(np.array_equal(a, b) for a, b in zip(same, again))
    assert not np.array_equal(same.forward, other.forward)
    assert larger.n_points == 33


def test_the_mix_has_both_schedules_limits_and_many_machines():
    size = Size(stages=3, points=16, servers=2, per_server=4)
    found = [generate(seed, size).arrays for seed in range(60)]
    assert {a.order.alternates for a in found} == {False, True}
    assert {a.transfers_differ for a in found} == {0, 1}
    assert len({a.microbatches for a in found}) >= 5
    limited = np.mean([np.isfinite(a.memory_limit_bytes) for a in found])
    assert 0.2 < limited < 0.7
    assert len({a.latency_seconds.max() for a in found}) == 1
    assert len({float(a.reduce_seconds_per_byte[0, 8]) for a in found}) >= 4


@pytest.mark.parametrize("name", FAMILIES)
def test_families_are_lines_of_numbers_from_zero(name):
    line = FAMILIES[name](np.random.default_rng(0), 200)
    assert line.shape == (200,)
    assert (line >= 0).all()
    assert line.max() > 0
