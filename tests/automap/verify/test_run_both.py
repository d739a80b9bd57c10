"""Errors of leaves where numbers are not finite."""

import numpy as np
import pytest

from automap.verify.run_both import leaf_errors


INF = np.inf


def _error(single, planned):
    a, b = (np.array([number, 1.0], np.float32) for number in (single, planned))
    return leaf_errors(a, b, a, (None, None)).error


@pytest.mark.parametrize(
    ("single", "planned"), [(INF, INF), (-INF, -INF), (np.nan, np.nan), (INF, 3e38), (3e38, INF)]
)
def test_numbers_that_overflow_alike_are_no_error(single, planned):
    assert _error(single, planned) == 0


@pytest.mark.parametrize(
    ("single", "planned"), [(INF, 1e38), (-INF, 3e38), (np.nan, 3e38), (np.nan, INF), (1.0, INF)]
)
def test_other_numbers_that_are_not_finite_are_the_largest_error(single, planned):
    assert _error(single, planned) > 1e300


def test_integers_have_no_infinity():
    a = np.array([2**31 - 1, 3], np.int32)
    assert leaf_errors(a, a, a, (None, None)).error == 0
