"""A preset is kept unless another plan is faster, also if nothing stays on the chip."""

from dataclasses import replace

import pytest

from automap.search.greedy import climb_meshes
from automap.search.portfolio import keep_preset
from automap.search.presets import preset_points
from tests.automap.search.contexts import search_context
from tests.steps import decoder, images, mlp


STEPS = {
    "mlp": lambda: mlp(batch=4096, width=1024, hidden=4096),
    "decoder": lambda: decoder(width=512, heads=8, hidden=2048, vocab=4096, batch=64, length=256),
    "images": lambda: images(batch=256, size=64, channels=64),
}


def searched(step, topology):
    """A search after climbs, which knows the presets."""
    context = search_context(*STEPS[step](), topology=topology)
    climb_meshes(context, context.meshes)
    for name, point in preset_points(context):
        if context.space.is_valid(point):
            estimate = context.evaluator.evaluate(context.space.split_classes(point))
            context.remember_preset(name, point, estimate)
    return context


def seconds(context, candidate, on_chip_bytes):
    """The step of a candidate on a machine with so much memory on the chip."""
    device = replace(context.evaluator.topology.device, on_chip_bytes=on_chip_bytes)
    topology = replace(context.evaluator.topology, device=device)
    evaluator = replace(context.evaluator, topology=topology)
    return evaluator.evaluate(context.space.split_classes(candidate.point)).step_seconds


@pytest.mark.parametrize("topology", ["v5e:2x4", "v5p:2x2x1", "4xh100"])
@pytest.mark.parametrize("step", STEPS)
def test_what_is_kept_is_a_preset_or_faster_under_both_assumptions(step, topology):
    context = searched(step, topology)
    preset = min(context.best_per_preset.values(), key=lambda c: c.estimate.step_seconds)
    on_chip_bytes = context.evaluator.topology.device.on_chip_bytes

    def gain(plan, n_bytes):
        return seconds(context, preset, n_bytes) / seconds(context, plan, n_bytes) - 1

    plans = [context.best, *context.best_candidates(20)]
    sure = [p for p in plans if gain(p, on_chip_bytes) > 0.03 and gain(p, 0) > 0.01]
    keep_preset(context)
    assert context.best.point == [*sure, preset][0].point
    # Who is told of a faster plan, as by the progress, is told why it is not the one returned.
    faster = preset.estimate.step_seconds / plans[0].estimate.step_seconds - 1
    is_said = any(f"{preset.origin} kept: the fastest plan" in note for note in context.kept_preset)
    assert is_said == (not sure and faster >= 0.01)


def test_a_gain_that_needs_the_chip_is_none():
    context = searched("decoder", "v5e:2x4")
    best = context.best
    preset = min(context.best_per_preset.values(), key=lambda c: c.estimate.step_seconds)
    context.policy = replace(context.policy, preset_margin=-1.0, preset_margin_off_chip=-1.0)
    keep_preset(context)
    assert context.best == best
    # No plan is so much faster.
    context.policy = replace(context.policy, preset_margin_off_chip=100.0)
    keep_preset(context)
    assert context.best.point == preset.point
