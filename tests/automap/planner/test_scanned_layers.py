"""A scan over layers gets the decisions of the unrolled model: forward, backward, recomputed, and
the optimizer.
"""

from collections import Counter
from functools import cache, partial
from importlib.util import find_spec
import re

import jax
import jax.numpy as jnp
import pytest

import automap
from automap.api.verification import Verification
from automap.config import Options, read_options
from automap.planner.records import build_plan
from automap.planner.sharding import find
from automap.program import trace_step
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from models.gpt import gpt_tiny
from models.llama import llama_tiny
from models.t5 import t5_tiny


TOPOLOGY = get_topology("v5e:4x2")
MESH = Mesh(("data", "model"), (4, 2))
MESH_TEXT = "data=4,model=2"
MODELS = {"gpt": gpt_tiny, "t5": t5_tiny, "llama": llama_tiny}
PRESETS = ("data-parallel", "zero-1", "zero-3", "megatron")
# Of scaled layers: all parameters are stored split, and whole in a product.
SPLIT = {
    "mesh": "data=2,model=4",
    "pin": [
        "[0]['before']=null,data+model",
        "[0]['after']=null,data+model",
        "[0]['up']=null,null,data",
        "[0]['down']=null,data,null",
        "[1]=model,null,null",
    ],
}


@cache
def _workload(make, layers, remat):
    options = {} if remat is None else {"remat": remat}
    step, args = make(layers=layers, **options)
    return trace_step(step, args, platform="tpu")


@cache
def _plan(make, layers, preset, remat=None):
    workload = _workload(make, layers, remat)
    return build_plan(find(workload, TOPOLOGY, Options(mesh=MESH, preset=preset)))


def _specs(plan):
    """Specs of the state by path without layer numbers; those of stacked leaves without the
    stacking.
    """
    leaves_by_path = {}
    for leaf in plan.inputs:
        if leaf.role in ("parameter", "optimizer state"):
            path = re.sub(r"(layers|blocks|encoder|decoder)'\]\[\d+\]", r"\1']", leaf.path)
            leaves_by_path.setdefault(path, set()).add((leaf.shape, leaf.spec))
    return leaves_by_path


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", MODELS)
def test_specs_of_the_state_are_the_same(name, preset):
    unrolled, scanned = (
        _specs(_plan(MODELS[name], layers, preset)) for layers in ("unrolled", "scanned")
    )
    assert unrolled.keys() == scanned.keys()
    stacked = 0
    for path, unrolled_leaves in unrolled.items():
        ((shape, spec),) = scanned[path]
        ((layer_shape, layer_spec),) = unrolled_leaves
        is_stacked = len(shape) > len(layer_shape)
        stacked += is_stacked
        assert shape[is_stacked:] == layer_shape
        if preset.startswith("zero"):
            # Storage may split the stacking dimension too; what is split is as many ways.
            assert Counter(map(bool, spec))[True] == Counter(map(bool, layer_spec))[True], path
        else:
            assert spec == (None,) * is_stacked + layer_spec, path
    assert stacked


def _bytes_moved(plan):
    """Bytes of a step by kind, axes and phase."""
    moved = Counter()
    for c in plan.predicted.collectives:
        moved[c.kind, c.axes, c.phase] += c.bytes
    return moved


# Not ZeRO-3, where the loop of the backward pass gathers what the unrolled program has at hand, and
# not T5, whose loops carry the gradients of what all layers share.
@pytest.mark.parametrize("preset", ["data-parallel", "zero-1", "megatron"])
@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_as_many_bytes_are_moved(name, preset):
    unrolled, scanned = (_plan(MODELS[name], how, preset) for how in ("unrolled", "scanned"))
    assert _bytes_moved(unrolled) == _bytes_moved(scanned) != Counter()


@pytest.mark.parametrize("preset", ["data-parallel", "megatron"])
def test_recomputing_layers_moves_no_fewer_bytes(preset):
    kept, recomputed = (
        _bytes_moved(_plan(gpt_tiny, "scanned", preset, remat=remat)) for remat in ("none", "layer")
    )
    assert all(recomputed[key] >= n for key, n in kept.items())


def _scaled_layers(parameters, x):
    """Each layer scales by two vectors that the loop keeps, cast, for the backward pass."""

    def scaled(h, scale):
        normal = h * jax.lax.rsqrt(jnp.mean(h * h, -1, keepdims=True))
        return normal * scale.astype(jnp.float32)

    def layer(h, w):
        h = scaled(h, w["before"])
        return scaled(h + jax.nn.relu(h @ w["up"]) @ w["down"], w["after"]), None

    def loss(p):
        stacks = {**p, **{name: p[name].astype(jnp.bfloat16) for name in ("before", "after")}}
        return jnp.mean(jax.lax.scan(layer, x, stacks)[0])

    gradients = jax.grad(loss)(parameters)
    return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradients)


def _plan_of_scaled_layers(topology, **options):
    """A plan that stores the scales split, which the loop stacks whole, and arguments for it."""
    shapes = {"before": (2, 32), "after": (2, 32), "up": (2, 32, 64), "down": (2, 64, 32)}
    keys = dict(zip(shapes, jax.random.split(jax.random.key(0), 4), strict=True))
    parameters = {name: jax.random.normal(keys[name], shape) for name, shape in shapes.items()}
    args = parameters, jax.random.normal(jax.random.key(1), (8, 16, 32))
    return automap.plan(_scaled_layers, args, topology=topology, **options), args


def test_what_a_loop_stacks_is_pinned_where_it_is_made_and_where_it_is_read_again():
    """Were it not pinned in the body, before the loop's own write to the stack, the partitioner
    would stack the parts. Were it not pinned behind the stack, it would carry parts through the
    stack into all that the backward pass computes.
    """
    plan, _ = _plan_of_scaled_layers("8xh100", **SPLIT)
    pinned = {c.at: c for c in plan.constraints}
    made = [
        c for c in pinned.values() if c.value == "operand of dynamic-update-slice f32[1,1,1,32]"
    ]
    assert [c.spec for c in made] == [(None, None, None)] * 2
    assert all(":out" in c.at for c in made)
    assert not [w for w in plan.warnings if "dynamic-update-slice" in w]
    read = [c for at, c in pinned.items() if ":from" in at]
    whole = [c for c in read if c.value == "operand of broadcast f32[1,1,32]"]
    assert [c.spec for c in whole] == [(None, None, None)] * 2


def test_pinned_stacks_compute_what_one_device_does():
    plan, args = _plan_of_scaled_layers("cpu:8", **SPLIT)
    ours, alone = plan.jit(_scaled_layers)(*args), jax.jit(_scaled_layers)(*args)
    for name, expected in alone.items():
        assert jnp.allclose(ours[name], expected, rtol=1e-5, atol=1e-6), name


def test_a_layer_is_moved_to_other_dimensions_and_not_the_stack_that_it_is_cut_from():
    """Were the slice not pinned as the stack is, the partitioner would carry what the product wants
    into the stack, and move all layers in each trip.
    """
    step, args = gpt_tiny(layers="scanned")
    # The plan of the least memory stores layers by other dimensions than their products split.
    options = read_options(strategy="greedy", mesh=MESH_TEXT, memory_limit=1e-9, budget=600.0)
    outcome = find(trace_step(step, args, platform="cpu"), get_topology("cpu:8"), options)
    plan = automap.Plan.from_record(build_plan(outcome))
    text = plan.jit(step).lower(*args).compile().as_text()
    gathered = re.findall(r"= f32\[([\d,]+)\]\S* all-gather\(.*/while/body/", text)
    assert "64,256" in gathered
    assert not [dims for dims in gathered if dims.count(",") == 2 and dims.startswith("2,")]


@pytest.mark.gpu_compiler
@pytest.mark.skipif(
    find_spec("jax_cuda12_plugin") is None or find_spec("nvidia") is None,
    reason="ptxas or the CUDA plugin is not installed (extra gpu-compiler)",
)
def test_what_a_loop_stacks_is_gathered_as_often_as_planned(tmp_path):
    """Not once more in each trip of the backward loop, from stacked parts."""
    plan, args = _plan_of_scaled_layers("8xh100", preset="zero-3")
    verified = automap.verify(plan, _scaled_layers, args, cache_dir=tmp_path, numerics=False)
    assert isinstance(verified, Verification)
    (gathers,) = (row for row in verified.comparison.rows or () if row.kind == "all-gather")
    assert gathers.compiled_count == gathers.predicted_count


def _cast_layers(parameters, x, dtype=jnp.bfloat16):
    """Layers computed again, whose weights are cast and, in the backward loop, read twice."""

    def layer(h, w):
        half = {name: w[name].astype(dtype) for name in ("up", "down")}
        return h + jax.nn.gelu(h @ half["up"]) @ half["down"], None

    def loss(p):
        out = jax.lax.scan(jax.checkpoint(layer), x.astype(dtype), p)[0]
        return jnp.mean(out.astype(jnp.float32) ** 2)

    gradients = jax.grad(loss)(parameters)
    return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradients)


def _plan_of_cast_layers(topology):
    """ZeRO-3 of these, and arguments for it."""
    up, down, x = (jax.random.key(n) for n in range(3))
    parameters = {
        "up": 0.1 * jax.random.normal(up, (2, 256, 1024)),
        "down": 0.1 * jax.random.normal(down, (2, 1024, 256)),
    }
    args = parameters, jax.random.normal(x, (8, 16, 256))
    return automap.plan(_cast_layers, args, topology=topology, preset="zero-3"), args


def test_what_is_cast_to_fewer_bytes_is_pinned_before_it_is_gathered():
    """Two gathers of one cast the partitioner would make one of what is cast: twice the bytes."""
    plan, _ = _plan_of_cast_layers("8xh100")
    for value, kept in {
        "bf16[256,1024]": (None, ("data",)),
        "bf16[1024,256]": (("data",), None),
    }.items():
        cast = [c for c in plan.constraints if c.value == f"result of convert {value}"]
        # One in each loop.
        assert [c.spec for c in cast] == [kept] * 2
        assert all(":out" in c.at for c in cast)


def test_pinned_casts_compute_what_one_device_does():
    plan, args = _plan_of_cast_layers("cpu:8")
    ours, alone = plan.jit(_cast_layers)(*args), jax.jit(_cast_layers)(*args)
    exact = jax.jit(partial(_cast_layers, dtype=jnp.float32))(*args)
    for name, expected in exact.items():
        # One device rounds too, with JAX 0.12 more of the sums.
        error, rounding = (jnp.abs(x[name] - expected).max() for x in (ours, alone))
        assert rounding < 0.05 * jnp.abs(expected - args[0][name]).max(), name
        assert error < 1.5 * rounding, name


@pytest.mark.gpu_compiler
@pytest.mark.skipif(
    find_spec("jax_cuda12_plugin") is None or find_spec("nvidia") is None,
    reason="ptxas or the CUDA plugin is not installed (extra gpu-compiler)",
)
def test_a_cast_is_gathered_and_not_what_is_cast(tmp_path):
    plan, args = _plan_of_cast_layers("8xh100")
    verified = automap.verify(plan, _cast_layers, args, cache_dir=tmp_path, numerics=False)
    assert isinstance(verified, Verification)
    (gathers,) = (row for row in verified.comparison.rows or () if row.kind == "all-gather")
    assert gathers.compiled_bytes == gathers.predicted_bytes
