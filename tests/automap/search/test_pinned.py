"""Pins that some plan keeps are kept by what every strategy starts from; pins that none keeps are
found out.
"""

import functools
import random

from hypothesis import given, settings, strategies as st
import jax
import jax.numpy as jnp
import pytest

from automap.cost.shardings import shardings
from automap.search.exact.strategy import exact
from automap.search.greedy import greedy, random_point
from automap.search.pinned import Pinned
from automap.search.portfolio import auto
from automap.space.pins import Pin
from automap.topology.mesh import Mesh
from tests.automap.search.contexts import search_context
from tests.steps import decoder, mlp


def adapters(width=64, rank=8, batch=32):
    """Frozen layers with trained adapters of low rank, whose momentum is kept by layer."""

    def array(*shape):
        return jax.ShapeDtypeStruct(shape, "float32")

    def step(state, frozen, x):
        def loss(params):
            y = x
            for layer, fixed in zip(params, frozen, strict=True):
                y = jax.nn.relu(y @ fixed["w"] + (y @ layer["a"]) @ layer["b"])
            return jnp.mean(y * y)

        grads = jax.grad(loss)(state["params"])
        m = jax.tree.map(lambda m, g: 0.9 * m + g, state["m"], grads)
        return {"params": jax.tree.map(lambda p, m: p - 0.1 * m, state["params"], m), "m": m}

    params = [{"a": array(width, rank), "b": array(rank, width)} for _ in range(3)]
    frozen = [{"w": array(width, width)} for _ in range(3)]
    return step, ({"params": params, "m": params}, frozen, array(batch, width))


TARGETS = {"adapters": adapters, "decoder": decoder, "mlp": mlp}
MESH = Mesh(("replica", "data", "model"), (2, 2, 2))


@functools.cache
def unpinned(target):
    """A search that was not run."""
    return search_context(*TARGETS[target](), topology="v5e:2x4", mesh=MESH)


def draw_pins(context, point, positions):
    """Pins of inputs as a point has them."""
    tables, problem = context.evaluator.tables, context.space.problem
    sharding = shardings(tables, problem.n_classes, context.space.split_classes(point))
    for position in positions:
        value = problem.graph.inputs[position]
        dims = sharding.dim_of_axis[tables.row_of_value[value]].tolist()
        axes_of_dim = tuple(
            tuple(name for name, dim in zip(MESH.names, dims, strict=True) if dim == d)
            for d in range(len(problem.graph.values[value].dims))
        )
        yield Pin(position, axes_of_dim, "drawn")


@settings(max_examples=60, deadline=None)
@given(target=st.sampled_from(sorted(TARGETS)), seed=st.integers(0, 2**32), count=st.integers(1, 6))
def test_what_some_plan_keeps_is_kept_from_the_start(target, seed, count):
    context, source = unpinned(target), random.Random(seed)
    point = random_point(context, MESH, source)
    inputs = range(len(context.space.problem.paths))
    pins = tuple(draw_pins(context, point, source.sample(inputs, min(count, len(inputs)))))
    pinned = Pinned(context.space, context.evaluator, pins)
    assert pinned.allows(point)
    assert pinned.impose(point) == pinned.nearest(point) == point
    nothing = context.space.point(MESH, [()] * 3)
    assert pinned.allows(pinned.nearest(nothing))
    assert not pinned.impossible_pins([MESH])


@pytest.mark.parametrize(
    ("strategy", "topology"),
    [
        (auto, "8xh100"),
        pytest.param(greedy, "v5e:2x4", marks=pytest.mark.slow),
        (exact, "v5e:2x4"),
        (exact, "8xh100"),
    ],
)
@pytest.mark.parametrize(
    "texts",
    [
        ("[0]['m'][1]['a']=data,null", "[1][0]['w']=null,null"),
        ("[0]['m'][0]['b']=null,replica+data", "[0]['params'][0]['b']=null,null"),
        ("[1][*]['w']=model,null", "[0]['params'][2]['a']=null,null", "[2]=data,null"),
    ],
)
def test_strategies_find_plans_that_keep_pins_of_optimizer_state_and_frozen_layers(
    strategy, topology, texts
):
    context = search_context(*adapters(), topology=topology, mesh=MESH, pins=texts)
    strategy(context)
    assert context.best is not None
    assert context.pinned.allows(context.best.point)


def test_the_bound_is_of_plans_that_keep_the_pins_where_no_preset_does():
    """Where collectives run beside kernels the bound starts from plans."""
    context = search_context(*mlp(), topology="8xh100", pins=("[1]['x']=null,data",))
    exact(context)
    assert context.best is not None and context.bound_seconds is not None
    assert 0 < context.bound_seconds <= context.best.estimate.step_seconds * (1 + 1e-9)


def test_pins_that_no_point_keeps_are_told_apart_from_those_that_some_does():
    """A leaf is stored split along the dimension that suits it best, and a pin of the other is for
    computation alone.
    """
    mesh = Mesh(("data",), (8,))
    fsdp = ("[0]['params']['w1']=data,null", "[1]['x']=data,null")
    alone = [
        search_context(*mlp(), topology="v5e:2x4", mesh=mesh, pins=(pin,)).pinned for pin in fsdp
    ]
    assert [pinned.impossible_pins([mesh]) for pinned in alone] == [(), ()]
    both = search_context(*mlp(), topology="v5e:2x4", mesh=mesh, pins=fsdp).pinned
    assert both.impossible_pins([mesh]) == both.pins


def test_without_pins_every_point_is_as_it_was():
    context = unpinned("mlp")
    point = random_point(context, MESH, random.Random(0))
    assert context.pinned.nearest(point) is context.pinned.impose(point) is point
