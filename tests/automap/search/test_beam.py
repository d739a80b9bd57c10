"""The beam against exhaustive search."""

import pytest

from automap.search.beam import beam, beam_from
from automap.search.exhaustive import exhaustive, points
from tests.automap.search.contexts import best_preset_seconds, search_context, step_seconds
from tests.steps import decoder, mlp


@pytest.mark.parametrize(
    "sizes", [{}, pytest.param({"width": 128, "hidden": 512}, marks=pytest.mark.slow)]
)
def test_without_limit_every_point_is_reached(sizes):
    wanted, beam_context = search_context(*mlp(**sizes)), search_context(*mlp(**sizes))
    exhaustive(wanted)
    for mesh in beam_context.meshes:
        start = beam_context.evaluate(beam_context.empty(mesh), "start")
        reached = {
            (c.estimate.step_seconds, c.estimate.peak_bytes)
            for c in beam_from(beam_context, start, None)
        }
        for point in points(wanted, mesh):
            priced = wanted.evaluate(point, "")
            if priced is not None:
                assert (priced.estimate.step_seconds, priced.estimate.peak_bytes) in reached
    assert step_seconds(beam_context) <= step_seconds(wanted)


@pytest.mark.slow
def test_a_narrow_beam_is_no_better_than_a_wide_one_on_a_small_space():
    steps = []
    for width in (1, 64, None):
        context = search_context(*mlp(width=128, hidden=512))
        start = context.evaluate(context.empty(context.meshes[-1]), "start")
        steps.append(beam_from(context, start, width)[0].estimate.step_seconds)
    assert steps[0] >= steps[1] >= steps[2]


def test_no_worse_than_the_best_preset_and_the_same_again():
    contexts = [search_context(*decoder(), topology="v5e:2x4") for _ in range(2)]
    for context in contexts:
        beam(context)
    assert contexts[0].best == contexts[1].best
    assert step_seconds(contexts[0]) <= best_preset_seconds(contexts[0])
