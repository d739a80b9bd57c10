"""Parameter counts of the published configurations; small ones through the whole planner."""

import importlib
import math

import jax
import pytest

from automap.options import Options
from automap.planner import plan_workload
from automap.space.point import Mesh
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


def _split(leaves, axes):
    """Dimensions that lie on one of the axes, over all the leaves."""
    specs = [leaf.spec for leaf in leaves]
    return {tuple(d for d, on in enumerate(s) if set(on or ()) & set(axes)) for s in specs}


def _batch(plan):
    return [leaf for leaf in plan.inputs if leaf.role == "batch"]


def _parameters(plan, part):
    return [leaf for leaf in plan.inputs if leaf.role == "parameter" and part in leaf.path]


def test_search_finds_megatron_for_t5_when_the_batch_is_pinned_off_the_model_axis():
    step, args = load_target("models.t5:t5_base", {"batch": "64"})
    options = Options(mesh=Mesh(("data", "model"), (4, 4)), pins=("[1]*=data,null",))
    plan = plan_workload(trace_step(step, args), get_topology("v5e:4x4"), options)
    for name in ("q", "k", "v", "up"):
        assert _split(_parameters(plan, f"['{name}']['kernel']"), ["model"]) == {(1,)}, name
    for name in ("o']['kernel", "down']['kernel", "tokens']['embedding"):
        assert _split(_parameters(plan, f"['{name}']"), ["model"]) == {(0,)}, name
    assert _split(_batch(plan), ["model"]) == {()}


@pytest.mark.parametrize("topology", ["8xv100", "v5e:2x4"])
def test_search_splits_the_batch_in_vggs_convolutions_and_the_features_in_its_classifier(topology):
    step, args = load_target("models.vgg:vgg_19", {})
    plan = plan_workload(trace_step(step, args), get_topology(topology), Options())
    axes = [name for name, _ in plan.mesh.axes]
    assert _split(_batch(plan), axes) == {(0,)}
    compute = [d for d in plan.decisions if d.kind == "compute"]
    assert not [d.group for d in compute if any("blocks" in path for path in d.covers)]
    for layer in (0, 1):
        (dims,) = _split(_parameters(plan, f"['classifier'][{layer}]['kernel']"), axes)
        assert dims, layer
