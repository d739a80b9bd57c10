"""The exact search against every plan of small spaces."""

import functools
import math

import jax
import jax.numpy as jnp
import pytest

from automap.api.plan import Plan
from automap.config import Options
from automap.deadline import Deadline
from automap.planner.spaces import plan_workload
from automap.program import trace_step
from automap.search import OutOfBudget, get_strategy
from automap.topology import get_topology
from tests.automap.search.brute import every_point, search_context
from tests.steps import decoder, mlp, problem_of


exact = get_strategy("exact")


def one_layer(batch, width, hidden):
    """x W, with momentum; few enough plans to price them all."""
    params = {"w": jax.ShapeDtypeStruct((width, hidden), "float32")}
    x = jax.ShapeDtypeStruct((batch, width), "float32")

    def step(state, batch):
        value, grads = jax.value_and_grad(lambda p: jnp.mean(jnp.tanh(batch @ p["w"])))(
            state["params"]
        )
        m = jax.tree.map(lambda m, g: 0.9 * m + g, state["m"], grads)
        return {"params": jax.tree.map(jnp.subtract, state["params"], m), "m": m}, value

    return step, ({"params": params, "m": params}, x)


PROBLEMS = {
    "wide": problem_of(*one_layer(batch=8, width=1024, hidden=4096)),
    "tall": problem_of(*one_layer(batch=8192, width=64, hidden=128)),
    "mlp": problem_of(*mlp(batch=64, width=512, hidden=1024)),
}
# Several axes only where there are few plans.
CASES = [
    (name, topology, shape)
    for topology, name, shape in [
        ("v5e:2x2", "wide", (2, 2)),
        ("v5e:2x2", "tall", (2, 2)),
        ("v5e:2x2", "mlp", (4,)),
        ("2x2xh100", "wide", (2, 2)),
        ("4xh100", "tall", (2, 2)),
        ("4xh100", "mlp", (4,)),
    ]
]


@functools.cache
def estimates(name, topology, shape, pins=()):
    """What every plan that keeps the pins costs."""
    context = search_context(PROBLEMS[name], topology, pins=pins, meshes=[shape])
    every = dict[object, object]()
    for point in every_point(context):
        if context.space.is_valid(point):
            split_classes = context.space.split_classes(point)
            if split_classes not in every and context.pinned.keeps(point, split_classes):
                every[split_classes] = context.evaluator.evaluate(split_classes)
    return list(every.values())


def optimum(name, topology, shape, limit=math.inf, pins=()):
    """The least step of all plans that fit."""
    fitting = (e for e in estimates(name, topology, shape, pins) if e.peak_bytes <= limit)
    return min((e.step_seconds for e in fitting), default=math.inf)


@pytest.mark.parametrize("room", [math.inf, 2.0, 1.2, 1.0])
@pytest.mark.parametrize(("name", "topology", "shape"), CASES)
def test_nothing_is_better_than_what_it_finds(name, topology, shape, room):
    limit = room * min(e.peak_bytes for e in estimates(name, topology, shape))
    best = optimum(name, topology, shape, limit)
    context = search_context(PROBLEMS[name], topology, limit, meshes=[shape])
    exact(context)
    assert context.objective.fits(context.best.estimate)
    assert context.bound_seconds <= best * (1 + 1e-9)
    assert context.best.estimate.step_seconds >= best * (1 - 1e-9)
    if context.evaluator.topology.platform != "cuda":
        assert context.best.estimate.step_seconds == pytest.approx(best, rel=1e-9)
        assert context.gap(context.best) == pytest.approx(0.0, abs=1e-8)


@pytest.mark.parametrize(
    "pins", [("[0]['params']['w']=a,null",), ("[1]=null,null", "[0]['params']['w']=b,a")]
)
@pytest.mark.parametrize("name", ["wide", "tall"])
def test_pins_are_kept(name, pins):
    context = search_context(PROBLEMS[name], "v5e:2x2", pins=pins, meshes=[(2, 2)])
    exact(context)
    best = optimum(name, "v5e:2x2", (2, 2), pins=pins)
    assert context.best.estimate.step_seconds == pytest.approx(best, rel=1e-9)
    assert context.gap(context.best) == pytest.approx(0.0, abs=1e-8)


def test_what_fits_nowhere_is_proven_not_to():
    context = search_context(PROBLEMS["wide"], "v5e:2x2", limit_bytes=1e6)
    exact(context)
    assert context.bound_seconds == math.inf
    assert context.gap(context.best) is None


@pytest.mark.parametrize("topology", ["v5e:2x4", "8xh100"])
def test_no_plan_of_another_search_is_below_the_bound(topology):
    problem = problem_of(*decoder())
    context, other = (
        search_context(problem, topology, 3e6, meshes=[(8,), (2, 4)]) for _ in range(2)
    )
    exact(context)
    get_strategy("greedy")(other)
    assert other.objective.fits(other.best.estimate)
    assert context.bound_seconds <= other.best.estimate.step_seconds * (1 + 1e-9)
    assert context.bound_seconds <= context.best.estimate.step_seconds
    if topology == "v5e:2x4":
        assert context.gap(context.best) == pytest.approx(0.0, abs=1e-8)


def test_when_time_is_up_the_bound_is_what_was_proven_by_then():
    problem = problem_of(*decoder())
    whole, cut = (search_context(problem, "v5e:2x4", 3e6, meshes=[(8,), (2, 4)]) for _ in range(2))
    exact(whole)
    cut.deadline = Deadline.after(0.0)
    with pytest.raises(OutOfBudget):
        exact(cut)
    assert cut.best is not None
    assert 0 <= cut.bound_seconds <= whole.best.estimate.step_seconds * (1 + 1e-9)


def test_the_plan_says_its_gap_and_only_where_one_was_proven():
    workload, topology = trace_step(*mlp()), get_topology("v5e:2x2")
    plan = Plan.from_record(plan_workload(workload, topology, Options(strategy="exact")))
    assert plan.search.gap == pytest.approx(0.0, abs=1e-8)
    assert "above the proven bound" in plan.explain()
    assert (
        Plan.from_record(plan_workload(workload, topology, Options(strategy="greedy"))).search.gap
        is None
    )
