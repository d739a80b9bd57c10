"""Parameter counts of the published configurations; small ones traced and planned."""

import math
from pathlib import Path

from flax import nnx
import jax
from jax import numpy as jnp
import pytest

from automap.config import Options
from automap.errors import InputError
from automap.planner.spaces import plan_workload
from automap.program import load_target, trace_step
from automap.topology import get_topology
from automap.topology.mesh import Mesh
import models
from models import llama
from models.training import train_step


# Published counts, but for GPT's vocabulary, padded from 50,257 to 50,304, and `moe_8x`: GPT-2
# medium so padded, with 8 feed-forwards without biases and a gate for one in 12 of its layers.
COUNTS = {
    "alexnet:alexnet": 61_100_840,
    "gpt:gpt_124m": 124_439_808 + 47 * 768,
    "inception:inception_v3": 23_834_568,
    "lenet:lenet": 61_706,
    "llama:llama_1b": 1_235_814_400,
    "llama:llama_8b": 8_030_261_248,
    "mamba:mamba_130m": 129_135_360,
    "moe:moe_8x": 354_823_168 + 47 * 1024 + 12 * (7 * 2 * 1024 * 4096 - 5 * 1024 + 8 * 1024),
    "resnet:resnet_50": 25_557_032,
    "resnet:resnet_101": 44_549_160,
    "t5:t5_base": 222_903_552,
    "t5:t5_3b": 2_851_598_336,
    "t5:t5_11b": 11_307_321_344,
    "unet:unet_cifar": 35_746_307,
    "vgg:vgg_19": 143_667_240,
    "vit:vit_b16": 86_567_656,
    "vit:vit_l16": 304_326_632,
}
SCANNED = {"layers": "scanned"}
STEPS = {"steps": "scanned"}
REMAT = {"remat": "layer"}
DROPOUT = {"dropout": "0.1"}
SORTED = {"dispatch": "sorted"}
BFLOAT16 = {"dtype": "bfloat16"}
# Every tiny target with the options that change its program.
VARIANTS = {
    "alexnet": [{}],
    "bert": [{}, SCANNED, REMAT, SCANNED | REMAT],
    "dlrm": [{}],
    "gpt": [{}, SCANNED, REMAT, SCANNED | REMAT | DROPOUT, DROPOUT],
    "inception": [{}],
    "lenet": [{}],
    "llama": [{}, SCANNED, REMAT, SCANNED | REMAT | DROPOUT, DROPOUT, BFLOAT16],
    "mamba": [{}, SCANNED],
    "mlp": [{}],
    "moe": [{}, SCANNED, SORTED, SCANNED | SORTED, SORTED | BFLOAT16],
    "nmt": [{}, STEPS],
    "resnet": [{}],
    "rnnlm": [{}, STEPS],
    "rnntc": [{}, STEPS],
    "t5": [{}, SCANNED, REMAT, SCANNED | REMAT],
    "unet": [{}],
    "vgg": [{}],
    "vit": [{}, SCANNED],
}
TRACED = [(name, options) for name, variants in VARIANTS.items() for options in variants]
PLANNED = ["llama", "moe", "vgg", "mlp"]


@pytest.mark.parametrize(("target", "count"), COUNTS.items())
def test_parameter_count_is_the_published_one(target, count):
    _, (state, _) = load_target(f"models.{target}", {})
    leaves = jax.tree.leaves(state["params"])
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
    assert sum(math.prod(leaf.shape) for leaf in leaves) == count


def test_abstract_state_is_that_of_the_parameters_that_are_made():
    # A convolution, running statistics and a linear layer.
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.conv = nnx.Conv(3, 4, (3, 3), rngs=rngs)
            self.norm = nnx.BatchNorm(4, rngs=rngs)
            self.out = nnx.Linear(4, 2, param_dtype="bfloat16", rngs=rngs)

    made = train_step(Model, lambda model, batch: jnp.zeros(()), {"x": ((2, 8, 8, 3), "float32")})
    state, _ = made.args
    wanted = jax.eval_shape(made.init, jax.random.key(0))
    assert jax.tree.map(_shape, state) == jax.tree.map(_shape, wanted)


def _shape(leaf):
    return leaf.shape, leaf.dtype, leaf.weak_type


INFERENCE_COUNTS = {
    # Torchvision's, and the published NASNet-A (6 @ 4032) without the second path of its reductions
    # of the result before the last.
    "squeezenet:squeezenet": 1_248_424,
    "inception:inception_v3_forward": 23_834_568,
    "nasnet:nasnet_large": 88_743_820,
    "randwire:randwire": 61_414_624,
}


@pytest.mark.parametrize(("target", "count"), INFERENCE_COUNTS.items())
def test_parameter_count_of_an_inference_step(target, count):
    _, (state, _) = load_target(f"models.{target}", {})
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state["params"])) == count


def test_every_module_with_a_tiny_target_is_traced():
    found = {
        p.stem
        for p in Path(models.__path__[0]).glob("*.py")
        if f"def {p.stem}_tiny(" in p.read_text()
    }
    assert found == set(VARIANTS)


@pytest.mark.parametrize(
    ("name", "options"), TRACED, ids=[" ".join((n, *o.values())) for n, o in TRACED]
)
def test_every_tiny_target_is_traced_with_a_batch_class_and_without_warnings(name, options):
    step, args = load_target(f"models.{name}:{name}_tiny", options)
    # On a CPU ragged dots are lowered to dense ones.
    problem = trace_step(step, args, platform="tpu").problem
    assert problem.batch_class is not None
    assert not problem.warnings


@pytest.mark.parametrize("name", PLANNED)
def test_small_models_are_planned_no_worse_than_their_presets(name):
    step, args = load_target(f"models.{name}:{name}_tiny", {})
    workload = trace_step(step, args)
    plan = plan_workload(workload, get_topology("v5e:2x4"), Options(budget_seconds=4))
    assert plan.predicted.step_seconds <= min(p.step_seconds for p in plan.presets if p.fits)


@pytest.mark.parametrize("options", [{"remat": "all"}, {"dropout": 1}, {"dropout": "half"}])
def test_an_option_that_is_not_possible_is_refused_when_the_step_is_built(options):
    (name,) = options
    with pytest.raises(InputError, match=name):
        llama.llama_tiny(**options)


def _split(leaves, axes):
    """Dimensions that lie on one of the axes, over all the leaves."""
    specs = [leaf.spec for leaf in leaves]
    return {tuple(d for d, on in enumerate(s) if set(on or ()) & set(axes)) for s in specs}


def _batch(plan):
    return [leaf for leaf in plan.inputs if leaf.role == "batch"]


def _parameters(plan, part):
    return [leaf for leaf in plan.inputs if leaf.role == "parameter" and part in leaf.path]


def test_search_splits_t5s_features_and_beats_megatron_with_the_batch_off_the_model_axis():
    step, args = load_target("models.t5:t5_base", {"batch": "64"})
    options = Options(mesh=Mesh(("data", "model"), (4, 4)), pins=("[1]*=data,null",))
    plan = plan_workload(trace_step(step, args), get_topology("v5e:4x4"), options)
    # Where positions take the axis around a block, its weights are stored as whatever is fastest.
    for name in ("q", "k", "v", "o"):
        assert _split(_parameters(plan, f"['{name}']['kernel']"), ["model"]) in ({(0,)}, {(1,)}), (
            name
        )
    assert _split(_parameters(plan, "['tokens']['embedding']"), ["model"]) != {()}
    # The stream between layers is split too: a scattered sum and a gather where Megatron sums up
    # whole activations.
    (megatron,) = (preset for preset in plan.presets if preset.name == "megatron")
    assert plan.predicted.step_seconds < 0.9 * megatron.step_seconds
    assert _split(_batch(plan), ["model"]) == {()}


@pytest.mark.parametrize("topology", [pytest.param("8xv100", marks=pytest.mark.slow), "v5e:2x4"])
def test_search_splits_the_batch_in_vggs_convolutions_and_the_features_in_its_classifier(topology):
    step, args = load_target("models.vgg:vgg_19", {})
    plan = plan_workload(trace_step(step, args), get_topology(topology), Options())
    axes = [name for name, _ in plan.mesh.axes]
    # On TPUs images are split by height too, so that a device has 128 examples, which fill a tile:
    # libtpu 0.0.51 says 40.9 ms of this plan, and 50.0 of that with the batch alone.
    expected = {(0,)} if topology == "8xv100" else {(0,), (0, 1)}
    assert _split(_batch(plan), axes) == expected
    compute = [d for d in plan.decisions if d.kind == "compute"]
    assert not [d.group for d in compute if any("blocks" in path for path in d.covers)]
    for layer in (0, 1):
        (dims,) = _split(_parameters(plan, f"['classifier'][{layer}]['kernel']"), axes)
        assert dims, layer
