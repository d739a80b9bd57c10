"""Parameter counts of the published configurations; small ones through the whole planner."""

import importlib
import math

import jax
import pytest

from automap.options import Options
from automap.planner import plan_workload
from automap.topology import get_topology
from automap.workload import load_target, trace_step


# Published counts; GPT's vocabulary is padded from 50,257 to 50,304.
COUNTS = {
    "models.gpt:gpt_124m": 124_439_808 + 47 * 768,
    "models.t5:t5_base": 222_903_552,
    "models.vgg:vgg_19": 143_667_240,
}
TINY = ["gpt:gpt_tiny", "t5:t5_tiny", "bert:bert_tiny", "vgg:vgg_tiny", "mlp:mlp_tiny"]


@pytest.mark.parametrize(("target", "count"), COUNTS.items())
def test_parameter_count_is_the_published_one(target, count):
    module, _, name = target.partition(":")
    _, (state, _) = getattr(importlib.import_module(module), name)()
    leaves = jax.tree.leaves(state["params"])
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
    assert sum(math.prod(leaf.shape) for leaf in leaves) == count


@pytest.mark.parametrize("target", TINY)
def test_small_models_are_planned_no_worse_than_their_presets(target):
    step, args = load_target(f"models.{target}", {})
    workload = trace_step(step, args)
    assert workload.problem.batch_class is not None
    assert not workload.problem.warnings
    plan = plan_workload(workload, get_topology("v5e:2x4"), Options(budget_seconds=4))
    assert plan.predicted.step_seconds <= min(p.step_seconds for p in plan.presets if p.fits)
