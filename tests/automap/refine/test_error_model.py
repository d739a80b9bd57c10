"""Errors as a Gaussian process: closed forms, and sums of numbers that are drawn."""

import math

import numpy as np
import pytest

from automap.refine.candidates import (
    Beliefs,
    ErrorModel,
    ErrorScale,
    chance_to_fit,
    expected_improvement,
)


SCALE = ErrorScale(shared=0.2, own=0.05, reach=0.25)


def _model(points, errors, scale=SCALE):
    return ErrorModel(
        scale=scale,
        step_seconds=1.0,
        points=np.array(points, float),
        errors=np.array(errors, float),
    )


def test_without_a_compiled_plan_the_prior_is_believed():
    believed = _model([], []).at(np.ones((3, 2)))
    assert believed.means == pytest.approx(np.zeros(3))
    assert believed.deviations == pytest.approx(np.full(3, math.hypot(0.2, 0.05)))


def test_compiled_plans_are_known_and_far_ones_share_a_part():
    model = _model([[0.0, 1.0], [1.0, 0.0]], [0.3, 0.1])
    believed = model.at(np.array([[0.0, 1.0], [1.0, 0.0], [40.0, 40.0]]))
    assert believed.means[:2] == pytest.approx([0.3, 0.1], abs=1e-6)
    assert believed.deviations[:2] == pytest.approx(0.0, abs=1e-4)
    # At infinity k* = shared^2 of each: the mean by hand, with K = [[a, b], [b, a]].
    a = 0.2**2 + 0.05**2
    b = 0.2**2 + 0.05**2 * math.exp(-1 / 0.25)
    weight = 0.2**2 / (a + b)
    assert believed.means[2] == pytest.approx(weight * 0.4, rel=1e-6)
    size = 1 + model.errors @ np.linalg.solve([[a, b], [b, a]], model.errors)
    alone = a - 0.2**4 * 2 / (a + b)
    assert believed.deviations[2] == pytest.approx(math.sqrt(size / 3 * alone), rel=1e-5)


def test_a_near_plan_has_more_of_an_error_of_its_own():
    model = _model([[0.0], [3.0]], [0.0, 0.2])
    near, far = model.at(np.array([[2.9], [2.0]])).means
    assert 0.2 > near > far > 0.1


def test_two_plans_that_are_the_same_do_not_break_it():
    believed = _model([[1.0], [1.0]], [0.1, 0.1]).at(np.array([[1.0]]))
    assert believed.means == pytest.approx([0.1], abs=1e-4)


def test_what_a_plan_has_alone_is_known_of_no_equal_plan():
    scale = ErrorScale(shared=0.2, own=0.05, reach=0.25, alone=0.03)
    believed = _model([[1.0]], [0.1], scale).at(np.array([[1.0]]))
    prior, covariance = 0.2**2 + 0.05**2 + 0.03**2, 0.2**2 + 0.05**2
    assert believed.means == pytest.approx([covariance / prior * 0.1])
    size = (1 + 0.1**2 / prior) / 2
    assert believed.deviations == pytest.approx([(size * (prior - covariance**2 / prior)) ** 0.5])


@pytest.mark.parametrize(("mean", "deviation"), [(0.1, 0.05), (-0.2, 0.1), (0.0, 0.3), (0.5, 0.02)])
def test_expected_improvement_is_the_mean_of_what_is_drawn(mean, deviation):
    drawn = np.random.default_rng(0).normal(mean, deviation, 400_000)
    sampled = np.maximum(1 - np.exp(drawn), 0)
    expected = expected_improvement(np.array([mean]), np.array([deviation]))[0]
    error = 5 * sampled.std() / math.sqrt(len(sampled))
    assert expected == pytest.approx(sampled.mean(), abs=error + 1e-12)


def test_what_is_sure_improves_by_what_it_is_shorter():
    gains = expected_improvement(np.log([0.8, 1.0, 1.2]), np.zeros(3))
    assert gains == pytest.approx([0.2, 0.0, 0.0])


def test_improvement_of_a_very_uncertain_plan_is_a_fraction():
    gains = expected_improvement(np.array([50.0, -50.0, 0.0]), np.array([60.0, 1.0, 1e3]))
    assert ((gains >= 0) & (gains <= 1)).all()


def test_chances_to_fit_are_those_of_the_normal_distribution():
    believed = Beliefs(means=np.array([0.0, 0.1, 0.1]), deviations=np.array([0.1, 0.1, 0.0]))
    chances = chance_to_fit(np.zeros(3), believed, 0.1)
    assert chances == pytest.approx([0.8413447, 0.5, 1.0])
