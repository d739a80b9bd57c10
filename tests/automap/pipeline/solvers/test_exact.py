"""The exact solver against brute force, and the searches without proof against it."""

from itertools import combinations

from hypothesis import given, settings, strategies as st
import numpy as np
import pytest

from automap.pipeline.arrays import Terms, from_lines
from automap.pipeline.fabric import pipeline_fabric
from automap.pipeline.schedules import GPIPE
from automap.pipeline.solvers.exact import solve
from automap.pipeline.solvers.local import at_servers, even_split, local_search, optimum
from automap.pipeline.solvers.stage_options import least_bytes
from automap.pipeline.value import value, values
from automap.topology import get_topology
from tests.automap.pipeline.problems import SCHEDULES, SEEDS, random_arrays


def all_partitions(n, units, stages):
    cuts = [(0, *c, n) for c in combinations(range(1, n), stages - 1)]
    parts = [(0, *p, units) for p in combinations(range(1, units), stages - 1)]
    return (
        np.array([c for c in cuts for _ in parts], np.int64),
        np.array([p for _ in cuts for p in parts], np.int64),
    )


@settings(max_examples=120, deadline=None)
@given(
    seed=SEEDS,
    schedule=SCHEDULES,
    stages=st.integers(1, 4),
    transfers=st.sampled_from(["matched", "adjacent"]),
    m=st.sampled_from([1, 2, 4, 9]),
)
def test_equals_brute_force(seed, schedule, stages, transfers, m):
    arrays = random_arrays(seed, schedule, transfers=transfers, microbatches=m)
    cuts, parts = all_partitions(7, 4, stages)
    least = values(arrays, cuts, parts).min()
    found = solve(arrays, stages)
    assert found.proven
    if np.isinf(least):
        assert found.best is None
    else:
        assert found.best is not None
        assert found.best.seconds == pytest.approx(least, rel=1e-9)
        assert value(arrays, found.best.cuts, found.best.device_cuts) == found.best.seconds
        # A bound that is met leaves the optimum, one below it nothing.
        assert solve(arrays, stages, least).best is not None
        assert solve(arrays, stages, least * 0.999).best is None


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, schedule=SCHEDULES, stages=st.integers(1, 4))
def test_least_memory_equals_brute_force(seed, schedule, stages):
    arrays = random_arrays(seed, schedule)
    needed = least_bytes(arrays, stages)
    cuts, parts = all_partitions(7, 4, stages)
    if np.isinf(needed):
        open_ = arrays._replace(memory_limit_bytes=np.inf)
        assert np.isinf(values(open_, cuts, parts)).all()
    else:
        enough = arrays._replace(memory_limit_bytes=needed * (1 + 1e-12))
        assert np.isfinite(values(enough, cuts, parts)).any()
        short = arrays._replace(memory_limit_bytes=needed * (1 - 1e-6))
        assert np.isinf(values(short, cuts, parts)).all()
        # However short memory is, local search ends at what fits if anything does.
        reached = local_search(enough, stages)
        assert reached is not None and np.isfinite(reached.seconds)


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, schedule=SCHEDULES, stages=st.integers(2, 4))
def test_searches_without_proof_are_never_below(seed, schedule, stages):
    arrays = random_arrays(seed, schedule, points=12, topology="2x4xv100")
    fabric = pipeline_fabric(get_topology("2x4xv100"))
    best = solve(arrays, stages).best
    least = best.seconds if best else np.inf
    for found in (
        local_search(arrays, stages, seed=seed % 100),
        even_split(arrays, stages),
        at_servers(arrays, stages, fabric.boundary_level).best,
    ):
        if found is not None:
            assert found.seconds >= least * (1 - 1e-9)
            assert found.seconds == value(arrays, found.cuts, found.device_cuts)


def test_servers_begin_stages_at_servers():
    arrays = random_arrays(3, GPIPE, points=12, topology="2x4xv100")
    arrays = arrays._replace(memory_limit_bytes=np.inf, usable=np.ones(9, bool))
    found = at_servers(arrays, 2, pipeline_fabric(get_topology("2x4xv100")).boundary_level).best
    assert found is not None
    assert found.device_cuts.tolist() == [0, 4, 8]
    assert (
        at_servers(arrays, 3, pipeline_fabric(get_topology("2x4xv100")).boundary_level).best is None
    )


def test_a_uniform_problem_is_split_evenly():
    arrays = from_lines(
        np.full(64, 1.0),
        np.full(64, 1e3),
        np.full(64, 1e3),
        pipeline_fabric(get_topology("4x8xv100")),
        Terms(microbatches=16, schedule=GPIPE, memory_limit_bytes=1e12),
    )
    found = optimum(arrays, 4)
    assert found.proven
    assert found.best is not None
    even = even_split(arrays, 4)
    assert even is not None
    assert even.cuts.tolist() == [0, 16, 32, 48, 64]
    assert found.best.seconds <= even.seconds


def test_an_overflowed_run_is_not_called_proven():
    arrays = random_arrays(1, GPIPE, points=24, topology="2x4xv100", microbatches=8)
    arrays = arrays._replace(memory_limit_bytes=np.inf)
    assert solve(arrays, 4).widest > 2
    assert not solve(arrays, 4, most_tails=(2,)).proven
    assert not solve(arrays, 4, most_tails=(1024,), most_work=10).proven


def test_a_solver_that_gives_up_leaves_what_local_search_had():
    arrays = random_arrays(1, GPIPE, points=24, topology="2x4xv100", microbatches=8)
    arrays = arrays._replace(memory_limit_bytes=np.inf)
    found, start = optimum(arrays, 4, most_work=10), local_search(arrays, 4)
    assert not found.proven
    assert found.best is not None and start is not None
    assert found.best.seconds == start.seconds
    # What fits nowhere is proven not to, and stays without a partition.
    nowhere = optimum(
        arrays._replace(state_bytes=arrays.state_bytes + 2.0, memory_limit_bytes=1.0), 4
    )
    assert nowhere.proven and nowhere.best is None


def test_no_partition_in_more_stages_than_there_are_points_or_units():
    arrays = random_arrays(0, GPIPE, points=3)
    assert solve(arrays, 5).best is None
    assert solve(arrays, 5).proven
