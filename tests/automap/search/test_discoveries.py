"""Named plans are found from data parallelism alone."""

import math

import pytest

from scripts.discoveries import CASES, discovered


SLOW = {"one weird trick, AlexNet", "one weird trick, VGG-19"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in CASES]
)
def test_a_named_plan_is_found_by_itself(name):
    case = CASES[name]
    discovery = discovered(case)
    assert [p.name for p in discovery.plan.presets] == ["data-parallel"]
    assert discovery.plan.predicted.fits
    assert discovery.plan.predicted.step_seconds <= discovery.named_seconds
    # What does not fit may be faster.
    assert discovery.named_seconds < discovery.start_seconds or not discovery.start_fits
    assert set(case.splits) <= set(discovery.split)
    if case.room is not None:
        assert not discovery.start_fits
        assert discovery.stored_share < 1.1 / math.prod(
            size for _, size in discovery.plan.mesh.axes
        )
