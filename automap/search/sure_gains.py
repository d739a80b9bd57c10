"""What `auto` returns: the best preset, unless another plan is surely faster.

    step(preset) > (1 + g) step(plan)        as predicted, with g = `_LEAST_GAIN`
    step'(preset) > (1 + g') step'(plan)     if nothing stays in the memory on the chip, with g' = `_LEAST_OFF_CHIP`

Predicted steps of near plans are not surer than g (docs/reports/schedules.md), and a plan that people know
is worth having. What stays on the chip is XLA's choice and the least sure part of a prediction: a
gain that is there only if XLA chooses as predicted is none.
"""

from dataclasses import replace

from automap.search.candidate import Candidate
from automap.search.context import SearchContext


_LEAST_GAIN, _LEAST_OFF_CHIP = 0.03, 0.01
# Plans that are tried in the place of the best if that is not surely faster.
_MOST_PLANS = 20


def keep_preset(context: SearchContext) -> None:
    """Go back to the best preset that is allowed if nothing found is surely faster."""
    preset = _best_preset(context)
    if preset is None or context.best is None:
        return
    step_seconds = preset.estimate.step_seconds
    preset_off_chip = _off_chip_seconds(context, preset)

    def is_surely_faster(plan: Candidate) -> bool:
        if not context.objective.fits(plan.estimate):
            return False
        if step_seconds <= plan.estimate.step_seconds * (1 + _LEAST_GAIN):
            return False
        return preset_off_chip > _off_chip_seconds(context, plan) * (1 + _LEAST_OFF_CHIP)

    if not is_surely_faster(context.best):
        others = context.best_candidates(_MOST_PLANS)
        context.best = next(filter(is_surely_faster, others), preset)


def _best_preset(context: SearchContext) -> Candidate | None:
    priced = [context.consider(p.point, p.origin) for p in context.best_per_preset.values()]
    fitting = [c for c in priced if c is not None and context.objective.fits(c.estimate)]
    return min(fitting, key=lambda c: context.objective.key(c.estimate), default=None)


def _off_chip_seconds(context: SearchContext, plan: Candidate) -> float:
    """A plan's step if every access goes to the memory of the device."""
    evaluator = context.evaluator
    device = replace(evaluator.topology.device, on_chip_bytes=0)
    topology = replace(evaluator.topology, device=device)
    split_classes = context.space.split_classes(plan.point)
    return replace(evaluator, topology=topology).evaluate(split_classes).step_seconds
