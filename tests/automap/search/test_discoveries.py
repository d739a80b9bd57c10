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
    found = discovered(case)
    assert [p.name for p in found.plan.presets] == ["data-parallel"]
    assert found.plan.predicted.fits
    assert found.plan.predicted.step_seconds <= found.named_seconds
    # What does not fit may be faster.
    assert found.named_seconds < found.start_seconds or not found.start_fits
    assert set(case.splits) <= set(found.split)
    if case.room is not None:
        assert not found.start_fits
        assert found.stored_share < 1.1 / math.prod(size for _, size in found.plan.mesh.axes)
