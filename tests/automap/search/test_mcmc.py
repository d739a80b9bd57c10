"""Walks over the space: they reach the optimum, keep limits, budgets and pins, and repeat
themselves.
"""

from functools import cache
import random
import subprocess
import sys

import jax
import pytest

from automap.deadline import Deadline
from automap.search import OutOfBudget
from automap.search.beam import beam
from automap.search.exhaustive import exhaustive
from automap.search.mcmc import change_randomly, mcmc, move_to_mesh, walk_from
from automap.search.portfolio import auto
from automap.topology.mesh import Mesh
from tests.automap.search.contexts import best_preset_seconds, search_context, step_seconds
from tests.steps import decoder, mlp


@cache
def _least_seconds(**sizes):
    context = search_context(*mlp(**sizes))
    exhaustive(context)
    return step_seconds(context)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "sizes",
    [
        {},
        pytest.param({"width": 128, "hidden": 512}, marks=pytest.mark.slow),
        pytest.param({"batch": 512}, marks=pytest.mark.slow),
    ],
)
def test_finds_the_optimum_of_a_small_space(sizes, seed):
    walk_context = search_context(*mlp(**sizes), seed=seed)
    mcmc(walk_context)
    # Walks also choose sides and small parts, which exhaustive search leaves alone.
    assert step_seconds(walk_context) <= _least_seconds(**sizes)


def test_walks_lead_back_from_what_does_not_fit():
    """From a start that needs twice the limit, with a limit that only few points keep."""
    free = search_context(*mlp(width=256, hidden=1024))
    exhaustive(free)
    smallest = min(e.peak_bytes for e in free._priced.values() if e is not None)
    tight = search_context(*mlp(width=256, hidden=1024), memory_limit_bytes=1.05 * smallest)
    start = tight.evaluate(tight.empty(tight.meshes[0]), "start")
    assert not tight.objective.fits(start.estimate)
    walk_from(tight, [start], random.Random(0))
    assert tight.objective.fits(tight.best.estimate)


@pytest.mark.parametrize("strategy", [mcmc, auto])
def test_no_worse_than_the_best_preset_under_a_memory_limit(strategy):
    free = search_context(*decoder())
    peaks = [free.consider(free.empty(mesh), "").estimate.peak_bytes for mesh in free.meshes]
    context = search_context(*decoder(), memory_limit_bytes=0.3 * min(peaks))
    strategy(context)
    assert context.objective.fits(context.best.estimate)
    assert step_seconds(context) <= best_preset_seconds(context)


@pytest.mark.parametrize("strategy", [mcmc, pytest.param(auto, marks=pytest.mark.slow)])
def test_pins_hold_all_the_way(strategy):
    mesh = Mesh(("data", "model"), (2, 2))
    context = search_context(*decoder(), mesh=mesh, pins=("[0]['params']*['up']=null,model",))
    strategy(context)
    split_classes = context.space.split_classes(context.best.point)
    assert context.pinned.keeps(context.best.point, split_classes)


def test_a_spent_budget_ends_the_walk_and_keeps_the_best():
    context = search_context(*decoder(), deadline=Deadline.after(0.0))
    first = context.consider(context.empty(context.meshes[0]), "start")
    with pytest.raises(OutOfBudget):
        mcmc(context)
    assert context.best == first


def test_an_interrupt_keeps_the_best():
    context = search_context(*decoder())

    def interrupt(context):
        if context.evaluations > 20:
            raise KeyboardInterrupt

    context.on_progress = interrupt
    with pytest.raises(KeyboardInterrupt):
        mcmc(context)
    priced = [e.step_seconds for e in context._seen.values()]
    assert step_seconds(context) == min(priced)


_ALONE = """
from automap.search.{module} import {name}
from automap.topology.mesh import Mesh
from tests.automap.search.contexts import search_context
from tests.steps import decoder
context = search_context(*decoder(), mesh=Mesh(("data", "model"), (2, 2)), seed=3)
{name}(context)
print(context.best, context.evaluations)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("module", "name"), [("mcmc", "mcmc"), ("portfolio", "auto")])
def test_the_same_seed_gives_the_same_plan_in_another_process(module, name):
    program = _ALONE.format(module=module, name=name)
    outputs = set()
    for salt in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": salt, "PYTHONPATH": ".", "JAX_PLATFORMS": "cpu"},
        )
        outputs.add(done.stdout)
    assert len(outputs) == 1


def test_changes_stay_on_the_mesh_and_carried_decisions_divide():
    context, source = search_context(*decoder(), topology="v5e:2x4"), random.Random(0)
    point = context.empty(context.meshes[-1])
    for _ in range(300):
        mesh = source.choice(context.meshes)
        moved = move_to_mesh(context.space, point, mesh, source)
        assert moved.mesh == mesh
        assert context.space.is_valid(moved)
        after = change_randomly(context.space, moved, source)
        assert after.mesh == mesh
        point = after if context.space.is_valid(after) else moved


def test_what_is_carried_to_the_same_mesh_are_the_same_axes_in_some_order():
    context, source = search_context(*decoder(), topology="v5e:2x2"), random.Random(0)
    mesh = Mesh(("data", "model"), (2, 2))
    batch = context.space.problem.batch_class
    point = context.space.point(mesh, [[batch], [context.space.candidates[0]]])
    reached = {move_to_mesh(context.space, point, mesh, source).compute for _ in range(20)}
    assert reached == {point.compute, point.compute[::-1]}


@pytest.mark.parametrize("strategy", [mcmc, auto, beam])
def test_nothing_is_found_where_pins_leave_no_mesh(strategy):
    context = search_context(*mlp())
    context.meshes = ()
    strategy(context)
    assert context.best is None


@pytest.mark.parametrize("strategy", [mcmc, auto, beam])
def test_a_step_with_nothing_to_decide_and_a_machine_of_one_device(strategy):
    scalar = jax.ShapeDtypeStruct((), "float32")
    nothing = search_context(lambda state, x: state + x, (scalar, scalar))
    strategy(nothing)
    assert nothing.best is not None
    alone = search_context(*mlp(), topology="1xh100")
    strategy(alone)
    assert step_seconds(alone) == best_preset_seconds(alone)
