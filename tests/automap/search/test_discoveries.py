"""Named plans are found from data parallelism alone, or from Megatron's where there is no batch."""

from functools import cache
import math

import pytest

from scripts.discoveries import CASES, discovered


GATHERED = "sequence parallel attention, gathered keys and values"
EXCHANGED = "sequence parallel attention, heads for positions"
made = cache(lambda name: discovered(CASES[name]))
SLOW = {"one weird trick, AlexNet", "one weird trick, VGG-19", GATHERED, EXCHANGED}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in CASES]
)
def test_a_named_plan_is_found_by_itself(name):
    case = CASES[name]
    discovery = made(name)
    assert [p.name for p in discovery.plan.presets] == [case.start]
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


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [(GATHERED, "all-gather"), (EXCHANGED, "all-to-all")])
def test_attention_is_split_by_positions(name, kind):
    """On all devices, with collectives inside of a layer, and without a whole layer's scores."""
    plan = made(name).plan
    sizes = dict(plan.mesh.axes)
    axes = {d.group: d.axes for d in plan.decisions if d.kind == "compute"}
    devices = math.prod(sizes.values())
    assert math.prod(sizes[axis] for axis in axes["[1]['targets'][1]"]) == devices
    assert any(c.kind == kind and c.phase == "forward" for c in plan.predicted.collectives)
    (seq,) = {leaf.shape[1] for leaf in plan.inputs if leaf.path == "[1]['targets']"}
    heads = CASES[name].target.keywords["heads"]
    assert plan.predicted.peak_bytes < 4 * heads * seq**2
