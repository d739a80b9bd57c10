"""Evaluations with a profile: measured kernels in closed form, the others by the roofline.

Interpolation: exact where measured, exact for a device of one rate, never past measured bounds.
"""

from dataclasses import replace

from hypothesis import given, strategies as st
import numpy as np
import pytest

from automap.api.call_plans import cache_key
from automap.config import Options, read_options
from automap.cost.evaluate import Evaluator
from automap.cost.profile import KernelProfile
from automap.cost.profile.measured import RateModel, StreamCurve, factor_parts
from automap.cost.profile.signatures import DotSignature, StreamSignature, matmul_sizes
from automap.cost.shardings import shardings
from automap.cost.tables import build_tables
from automap.space.presets import PRESETS
from automap.space.space import Space
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from tests.steps import decoder, images, mlp, problem_of


EMPTY = KernelProfile(device="cpu-8", device_kind="cpu", jax_version="0")
MESH = Mesh(("data", "model"), (2, 4))
RATE, BANDWIDTH = 1e9, 1e8


def setting(make, profile):
    problem = problem_of(*make())
    tables, topology = build_tables(problem, "cpu"), get_topology("cpu:8")
    evaluator = Evaluator(tables, problem.n_classes, topology, profile)
    (point,) = PRESETS["megatron" if make is not images else "zero-3"].points(Space(problem), MESH)
    return evaluator, Space(problem).split_classes(point)


def local_signatures(evaluator, split_classes):
    table = evaluator.tables.kernels
    sharding = shardings(evaluator.tables, evaluator.n_classes, split_classes)
    moved = table.moved_bytes(sharding.parts_of_value)
    for row, shape, n_bytes in zip(table.op_row, table.shape, moved, strict=True):
        split = sharding.factor_of_axis[row].tolist()
        yield shape.local(
            factor_parts(shape, split, MESH.sizes) if shape.kind else (), int(n_bytes)
        )


def seconds_at(signature):
    if isinstance(signature, StreamSignature):
        return max(signature.n_bytes, 1) / BANDWIDTH
    return 2.0 * np.prod(matmul_sizes(signature), dtype=float) / RATE


@pytest.mark.parametrize("make", [mlp, decoder, images])
def test_a_plan_whose_kernels_were_all_measured_costs_their_sum(make):
    evaluator, split_classes = setting(make, None)
    signatures = list(local_signatures(evaluator, split_classes))
    profile = EMPTY.with_times((s, seconds_at(s)) for s in signatures)
    measured = replace(evaluator, kernel_profile=profile).evaluate(split_classes)
    counts = evaluator.tables.kernels.count
    expected = sum(seconds_at(s) * n for s, n in zip(signatures, counts, strict=True))
    assert measured.compute_seconds == pytest.approx(expected, rel=1e-6)
    plain = evaluator.evaluate(split_classes)
    assert measured.collective_seconds == plain.collective_seconds
    assert measured.peak_bytes == plain.peak_bytes


def test_a_measured_time_beats_that_of_its_neighbours():
    evaluator, split_classes = setting(mlp, None)
    products = [
        s for s in local_signatures(evaluator, split_classes) if isinstance(s, DotSignature)
    ]
    odd = products[0]
    profile = EMPTY.with_times([(s, 1e-3) for s in products] + [(odd, 5.0)])
    table = evaluator.tables.kernels
    count = sum(
        n for s, n in zip(local_signatures(evaluator, split_classes), table.count) if s == odd
    )
    seconds = replace(evaluator, kernel_profile=profile).evaluate(split_classes).compute_seconds
    assert 5.0 * count < seconds < 5.0 * count + 0.1


@pytest.mark.parametrize("make", [mlp, images])
def test_an_empty_profile_leaves_the_roofline(make):
    evaluator, split_classes = setting(make, EMPTY)
    assert evaluator.evaluate(split_classes) == replace(evaluator, kernel_profile=None).evaluate(
        split_classes
    )


def test_types_that_were_not_measured_keep_the_roofline():
    other = DotSignature(dtype="bf16", batch=1, m=8, n=8, k=8)
    evaluator, split_classes = setting(mlp, EMPTY.with_times([(other, 1.0)]))
    assert evaluator.evaluate(split_classes) == replace(evaluator, kernel_profile=None).evaluate(
        split_classes
    )


def test_convolutions_fall_back_to_other_convolutions_of_their_type():
    evaluator, split_classes = setting(images, None)
    signatures = [
        s for s in local_signatures(evaluator, split_classes) if not isinstance(s, StreamSignature)
    ]
    profile = EMPTY.with_times([(signatures[0], seconds_at(signatures[0]))])
    table = evaluator.tables.kernels
    kernels = [i for i, shape in enumerate(table.shape) if shape.kind]
    seconds = replace(evaluator, kernel_profile=profile).price_point(split_classes).kernel_seconds
    expected = [seconds_at(s) for s in signatures]
    np.testing.assert_allclose(seconds[kernels], expected, rtol=1e-6)


def test_a_second_evaluation_is_the_first():
    evaluator, split_classes = setting(decoder, None)
    times = ((s, seconds_at(s) + 1e-4) for s in local_signatures(evaluator, split_classes))
    measured = replace(evaluator, kernel_profile=EMPTY.with_times(times))
    assert measured.evaluate(split_classes) == measured.evaluate(split_classes)


def test_the_profile_is_part_of_what_a_kept_plan_depends_on(tmp_path):
    path, topology = tmp_path / "profile.json", get_topology("cpu:8")
    dot = DotSignature(dtype="f32", batch=1, m=8, n=8, k=8)
    keys = {cache_key("0", topology, Options())}
    for seconds in (1.0, 2.0, 1.0):
        EMPTY.with_times([(dot, seconds)]).save(path)
        keys.add(cache_key("0", topology, read_options(profile=path)))
    assert len(keys) == 3


size = st.integers(1, 4096)
shape = st.tuples(st.integers(1, 64), size, size, size)
seconds = st.floats(1e-7, 1.0)


def operations(work):
    return 2.0 * np.prod(np.asarray(work, float), axis=-1)


@given(st.dictionaries(shape, seconds, min_size=1, max_size=20))
def test_measured_contractions_come_back(points):
    model = RateModel.fit(list(points.items()))
    predicted = model.predict(np.array(list(points)))
    np.testing.assert_allclose(predicted, list(points.values()), rtol=1e-9)


@given(st.lists(shape, min_size=1, max_size=20), shape, st.floats(1e6, 1e15))
def test_a_device_of_one_rate_has_that_rate_everywhere(points, query, rate):
    model = RateModel.fit([(p, operations(p) / rate) for p in points])
    np.testing.assert_allclose(model.predict(np.array([query])), operations(query) / rate)


@given(st.dictionaries(shape, seconds, min_size=1, max_size=20), shape)
def test_rates_lie_between_those_of_measured_ones(points, query):
    model = RateModel.fit(list(points.items()))
    rates = operations(model.sizes) / model.seconds
    (predicted,) = model.predict(np.array([query]))
    inside = [t for p, t in points.items() if np.all(np.array(p) <= query)]
    around = [t for p, t in points.items() if np.all(np.array(p) >= query)]
    is_bounded = max(inside, default=0.0) <= predicted <= min(around, default=np.inf)
    rate = operations(query) / predicted
    assert is_bounded or rates.min() * (1 - 1e-9) <= rate <= rates.max() * (1 + 1e-9)


@given(shape, st.tuples(*[st.sampled_from([1, 2, 3])] * 4), st.floats(1e-6, 1e-3))
def test_more_work_never_costs_less_than_what_is_inside_it(query, factors, launch):
    """Measured on a grid of a launch-bound roofline: t = max(launch, operations / rate)."""
    grid = np.array(np.meshgrid([1, 64], *[[1, 64, 4096]] * 3)).reshape(4, -1).T
    model = RateModel.fit(
        [(tuple(g), t) for g, t in zip(grid.tolist(), np.maximum(launch, operations(grid) / 1e11))]
    )
    low, high = grid.min(axis=0), grid.max(axis=0)
    larger = np.clip(np.array(query) * factors, low, high)
    measured = model.predict(grid)
    (predicted,) = model.predict(larger[None])
    assert predicted >= measured[(grid <= larger).all(axis=1)].max() * (1 - 1e-9)
    assert predicted <= measured[(grid >= larger).all(axis=1)].min() * (1 + 1e-9)


@given(st.dictionaries(st.integers(1, 2**30), seconds, min_size=1, max_size=12))
def test_curves_are_monotone_and_end_with_a_bandwidth(points):
    curve = StreamCurve.fit(list(points.items()))
    queries = np.geomspace(1, 2**34, 300)
    predicted = curve.predict(queries)
    assert (np.diff(predicted) >= -1e-12 * predicted[1:]).all()
    largest, slowest = max(points), max(points.values())
    np.testing.assert_allclose(curve.predict(np.array([8.0 * largest])), 8 * slowest)
    np.testing.assert_allclose(curve.predict(np.array([0.0])), points[min(points)])


def test_a_roofline_s_curve_comes_back_between_its_points():
    sizes = [2**e for e in range(10, 31, 2)]
    curve = StreamCurve.fit([(n, max(2e-6, n / 1e9)) for n in sizes])
    queries = np.array([3e6, 5e7, 2e9])
    assert curve.predict(queries) == pytest.approx(queries / 1e9)
