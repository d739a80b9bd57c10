"""Interpolation: exact where measured, exact for a device of one rate, never past measured bounds."""

from hypothesis import given, strategies as st
import numpy as np
import pytest

from automap.cost.profile.interpolate import RateModel, StreamCurve


size = st.integers(1, 4096)
shape = st.tuples(st.integers(1, 64), size, size, size)
seconds = st.floats(1e-7, 1.0)


def operations(work):
    return 2.0 * np.prod(np.asarray(work, float), axis=-1)


@given(st.dictionaries(shape, seconds, min_size=1, max_size=20))
def test_measured_contractions_come_back(points):
    model = RateModel.of(list(points.items()))
    found = model.predict(np.array(list(points)))
    np.testing.assert_allclose(found, list(points.values()), rtol=1e-9)


@given(st.lists(shape, min_size=1, max_size=20), shape, st.floats(1e6, 1e15))
def test_a_device_of_one_rate_has_that_rate_everywhere(points, query, rate):
    model = RateModel.of([(p, operations(p) / rate) for p in points])
    np.testing.assert_allclose(model.predict(np.array([query])), operations(query) / rate)


@given(st.dictionaries(shape, seconds, min_size=1, max_size=20), shape)
def test_rates_lie_between_those_of_measured_ones(points, query):
    model = RateModel.of(list(points.items()))
    rates = operations(model.work) / model.seconds
    (found,) = model.predict(np.array([query]))
    inside = [t for p, t in points.items() if np.all(np.array(p) <= query)]
    around = [t for p, t in points.items() if np.all(np.array(p) >= query)]
    is_bounded = max(inside, default=0.0) <= found <= min(around, default=np.inf)
    rate = operations(query) / found
    assert is_bounded or rates.min() * (1 - 1e-9) <= rate <= rates.max() * (1 + 1e-9)


@given(shape, st.tuples(*[st.sampled_from([1, 2, 3])] * 4), st.floats(1e-6, 1e-3))
def test_more_work_never_costs_less_than_what_is_inside_it(query, factors, launch):
    """Measured on a grid of a launch-bound roofline: t = max(launch, operations / rate)."""
    grid = np.array(np.meshgrid([1, 64], *[[1, 64, 4096]] * 3)).reshape(4, -1).T
    model = RateModel.of(
        [(tuple(g), t) for g, t in zip(grid.tolist(), np.maximum(launch, operations(grid) / 1e11))]
    )
    low, high = grid.min(axis=0), grid.max(axis=0)
    larger = np.clip(np.array(query) * factors, low, high)
    measured = model.predict(grid)
    (found,) = model.predict(larger[None])
    assert found >= measured[(grid <= larger).all(axis=1)].max() * (1 - 1e-9)
    assert found <= measured[(grid >= larger).all(axis=1)].min() * (1 + 1e-9)


@given(st.dictionaries(st.integers(1, 2**30), seconds, min_size=1, max_size=12))
def test_curves_are_monotone_and_end_with_a_bandwidth(points):
    curve = StreamCurve.of(list(points.items()))
    queries = np.geomspace(1, 2**34, 300)
    found = curve.predict(queries)
    assert (np.diff(found) >= -1e-12 * found[1:]).all()
    largest, slowest = max(points), max(points.values())
    np.testing.assert_allclose(curve.predict(np.array([8.0 * largest])), 8 * slowest)
    np.testing.assert_allclose(curve.predict(np.array([0.0])), points[min(points)])


def test_a_roofline_s_curve_comes_back_between_its_points():
    sizes = [2**e for e in range(10, 31, 2)]
    curve = StreamCurve.of([(n, max(2e-6, n / 1e9)) for n in sizes])
    queries = np.array([3e6, 5e7, 2e9])
    assert curve.predict(queries) == pytest.approx(queries / 1e9)
