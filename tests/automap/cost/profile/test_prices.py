"""Corrections of kernels by what a compiler said of them."""

import math

import numpy as np
import pytest

from automap.cost.profile import KernelPrices
from automap.cost.profile.measured import POWER
from automap.cost.profile.prices import CompiledDot, RatioModel, correcting_kernels
from automap.cost.profile.shapes import KernelShape
from automap.cost.profile.signatures import DotSignature, Role
from automap.errors import PlanError


def _dot(sizes, ratio, dtype="f32"):
    batch, m, n, k = sizes
    return CompiledDot(
        signature=DotSignature(dtype=dtype, batch=batch, m=m, n=n, k=k),
        seconds=ratio * 1e-3,
        predicted_seconds=1e-3,
    )


def test_a_ratio_is_exact_where_it_was_compiled_and_one_far_away():
    model = RatioModel(np.log([[1, 64, 64, 64], [1, 512, 64, 64.0]]), np.log([2.0, 0.5]), reach=0.7)
    ratios = model.predict(np.array([[1, 64, 64, 64], [1, 512, 64, 64], [1, 2**30, 2**30, 2**30]]))
    assert ratios[:2] == pytest.approx([2.0, 0.5], rel=1e-9)
    assert ratios[2] == pytest.approx(1.0, abs=1e-3)


def test_at_its_reach_a_single_ratio_counts_half():
    reach = math.log(2)
    model = RatioModel(np.log([[1, 64, 64, 64.0]]), np.log([4.0]), reach=reach)
    doubled, quadrupled = model.predict(np.array([[1, 128, 64, 64], [1, 64, 64, 256]]))
    assert doubled == pytest.approx(4.0**0.5)
    # Twice as far it has the weight 2^-POWER.
    assert quadrupled == pytest.approx(4.0 ** (2**-POWER / (1 + 2**-POWER)))


def test_kernels_are_corrected_by_their_local_shapes_and_the_others_by_one_ratio():
    product = KernelShape(
        "dot", "f32", "elementwise", "wide float", (Role.M, Role.N, Role.K), (128, 64, 64)
    )
    other = KernelShape("", "", "gather", "integer")
    unknown = KernelShape("dot", "bf16", "elementwise", "narrow float", product.roles, (9, 9, 9))
    prices = KernelPrices(
        dots=(_dot((1, 32, 64, 64), 3.0), _dot((1, 128, 64, 64), 0.25)), other_ratio=1.5
    )
    kernels = correcting_kernels((product, other, unknown), np.arange(3), prices)

    def ratios(*split):
        factors = np.array([split, [-1] * len(split), [-1] * len(split)])
        return kernels.override(np.ones(3), np.full(3, 8.0), factors, (4,) * len(split))

    assert ratios(-1) == pytest.approx([0.25, 1.5, 1.0])
    assert ratios(0) == pytest.approx([3.0, 1.5, 1.0])


def test_newer_prices_win_and_the_rest_stays():
    old = KernelPrices(dots=(_dot((1, 2, 3, 4), 2.0), _dot((1, 5, 6, 7), 3.0)), other_ratio=1.2)
    new = old.with_kernels([_dot((1, 2, 3, 4), 5.0), _dot((9, 9, 9, 9), 6.0)])
    ratios = [row.seconds / row.predicted_seconds for row in new.dots]
    assert ratios == pytest.approx([5.0, 3.0, 6.0]) and new.other_ratio == 1.2


@pytest.mark.parametrize("ratio", [0.0, -1.0, math.nan, math.inf])
def test_a_ratio_of_nothing_is_refused(ratio):
    with pytest.raises(PlanError, match="allowed"):
        KernelPrices(other_ratio=ratio)
    with pytest.raises(PlanError, match="allowed"):
        _dot((1, 1, 1, 1), ratio)


def test_a_signature_stands_once():
    with pytest.raises(PlanError, match="each signature once"):
        KernelPrices(dots=(_dot((1, 2, 3, 4), 2.0),) * 2)
