"""`auto` on random train steps and machines: no preset is better, and it finds a plan that fits
where one is known.
"""

from dataclasses import replace
from functools import partial
import math
from random import Random

import jax
import jax.numpy as jnp
import pytest

from automap.config import Options
from automap.deadline import Deadline
from automap.errors import InfeasiblePlanError
from automap.planner.sharding import find
from automap.planner.spaces import plan_workload
from automap.program import trace_step
from automap.search import get_strategy, portfolio
from automap.search.agent.play import Player, roll_outs, shipped_player
from automap.search.context import Candidate, Objective, OutOfBudget
from automap.search.greedy import random_point
from automap.topology import get_topology
from tests.automap.clocks import ticking
from tests.automap.search.brute import search_context
from tests.random_programs import random_program
from tests.steps import decoder, problem_of


MACHINES = ("v5e:2x2", "v5e:2x4", "v4:2x2x2", "4xv100", "2x2xh100", "2x8x2080ti", "cpu:4")
RANDOM_POINTS = 150


def random_step(seed):
    """Momentum on a random program whose first inputs are parameters."""
    program = random_program(Random(seed), most_steps=10)
    arrays = [jax.ShapeDtypeStruct(shape, "float32") for shape in program.inputs]
    params, batch = arrays[:-1], arrays[-1]

    def step(state, batch):
        def loss(params):
            return sum(jnp.mean(jnp.sin(x)) for x in program.run(*params, batch))

        value, grads = jax.value_and_grad(loss)(state["params"])
        m = jax.tree.map(lambda m, g: 0.9 * m + g, state["m"], grads)
        return {"params": jax.tree.map(jnp.subtract, state["params"], m), "m": m}, value

    return step, ({"params": params, "m": params}, batch)


def least_known_peak(context, source):
    """Of presets, the empty points, and points at random, on all meshes."""
    priced = [c.estimate for c in context.best_per_preset.values()]
    for _ in range(RANDOM_POINTS):
        point = random_point(context, source.choice(context.meshes), source)
        if context.space.is_valid(point):
            priced.append(context.evaluator.evaluate(context.space.split_classes(point)))
    return min(e.peak_bytes for e in priced)


def check(seed):
    """Both properties, with much memory and with little."""
    source = Random(seed)
    topology = get_topology(source.choice(MACHINES))
    workload = trace_step(*random_step(seed), platform=topology.platform)
    known = find(workload, topology, Options(strategy="optcnn")).context
    least = least_known_peak(known, source)
    for limit in (topology.device.memory_bytes, least * source.choice([1.0, 1.1, 1.5])):
        options = Options(budget_seconds=60.0, memory_limit_bytes=limit, seed=seed)
        plan = plan_workload(workload, topology, options)
        assert not plan.warnings or "budget" not in plan.warnings[0]
        assert plan.predicted.peak_bytes <= limit
        fitting = (p.step_seconds for p in plan.presets if p.fits)
        assert plan.predicted.step_seconds <= min(fitting, default=math.inf)


def test_random_steps():
    check(1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", (0, *range(2, 60)))
def test_many_random_steps(seed):
    check(seed)


def test_where_no_preset_fits_it_finds_what_does():
    problem, meshes = problem_of(*decoder(layers=1)), [(8,)]
    exact, auto = (search_context(problem, "v5e:2x4", 1.0, meshes=meshes) for _ in range(2))
    get_strategy("exact")(exact)
    least = exact.best.estimate.peak_bytes
    auto.objective = type(auto.objective)(least)
    get_strategy("auto")(auto)
    assert auto.objective.fits(auto.best.estimate)


@pytest.mark.parametrize("player", [shipped_player(), Player()])
def test_climbs_begin_where_the_agent_led(monkeypatch, player):
    context = search_context(problem_of(*decoder(layers=1)), "2x2xh100")
    began: list[Candidate] = []

    def climb(context, meshes, more=()):
        began.extend(more)
        context.evaluate(context.empty(meshes[0]), "test")
        raise OutOfBudget

    monkeypatch.setattr(portfolio, "climb_meshes", climb)
    with pytest.raises(OutOfBudget):
        portfolio.begun_with(context, partial(roll_outs, player))
    assert {c.point.mesh for c in began} == set(context.distinct_meshes)
    # Where the player has led is among them.
    assert context.best is not None
    assert context.best.estimate == min((c.estimate for c in began), key=context.objective.key)


def test_a_part_of_a_search_that_runs_out_of_work_is_noted():
    context = search_context(problem_of(*decoder(layers=1)), "v5e:2x4", meshes=[(8,)])
    context.evaluate(context.empty(context.meshes[0]), "test")
    with context.within(1e3, "not cut"):
        context.spend(999.0)
    with context.within(1e3, "cut"):
        context.spend(999.0)
        context.spend(2.0)
        raise AssertionError("the work is done")
    assert context.notes == ["cut"]
    context.check_time()
    context.deadline = Deadline.after(0.0)
    with pytest.raises(OutOfBudget), context.within(1e3, "of no part"):
        context.check_time()
    assert context.notes == ["cut"]


def test_the_frontier_is_the_best_step_at_each_limit_of_memory():
    context = search_context(problem_of(*decoder(layers=1)), "v5e:2x4", 1.0)
    get_strategy("greedy")(context)
    priced = [c.estimate for c in context.best_candidates(10**6)]
    frontier = context.frontier()
    assert len(frontier) > 1 and frontier == sorted(frontier)
    for limit in {estimate.peak_bytes for estimate in priced}:
        least = min(e.step_seconds for e in priced if e.peak_bytes <= limit)
        assert min(seconds for seconds, n_bytes in frontier if n_bytes <= limit) == least


@pytest.mark.slow
def test_a_slow_machine_finds_the_same_plan():
    """Where memory is short, and the exact search is ended: work is counted, so that no clock
    decides.
    """
    problem = problem_of(*decoder(layers=2))
    known = search_context(problem, "v5e:2x4", 1.0)
    get_strategy("greedy")(known)
    least = min(c.estimate.peak_bytes for c in known.best_candidates(10**6))
    outcomes = []
    for seconds_per_look in (0.0, 0.5):
        context = search_context(problem, "v5e:2x4", 1.0)
        context.objective = Objective(1.02 * least)
        context.deadline = Deadline.after(1e9, ticking(seconds_per_look))
        context.policy = replace(context.policy, exact_seconds=0.2)
        get_strategy("auto")(context)
        assert context.notes
        outcomes.append((context.best.point, context.bound_seconds, context.evaluations))
    assert outcomes[0] == outcomes[1]


@pytest.mark.slow
def test_it_walks_where_the_proof_is_left_open():
    """Where memory is short: single moves are stuck, and what the exact search has not proven may
    be far off. The walks try more plans, and never lose what was known.
    """
    problem = problem_of(*decoder(layers=2))
    known = search_context(problem, "v5e:2x4", 1.0)
    get_strategy("greedy")(known)
    least = min(c.estimate.peak_bytes for c in known.best_candidates(10**6))
    outcomes = []
    for walks in (0, 3):
        context = search_context(problem, "v5e:2x4", 1.0)
        context.objective = Objective(least)
        context.policy = replace(context.policy, exact_seconds=0.2, open_walks=walks)
        get_strategy("auto")(context)
        outcomes.append(context)
    without, with_walks = outcomes
    assert not without.is_proven
    assert with_walks.evaluations > without.evaluations
    assert with_walks.fitting_seconds <= without.fitting_seconds < math.inf


@pytest.mark.slow
def test_a_brief_search_that_is_searched_on_is_the_whole_one():
    problem = problem_of(*decoder(layers=2))
    known = search_context(problem, "v5e:2x4", 1.0)
    get_strategy("greedy")(known)
    least = min(c.estimate.peak_bytes for c in known.best_candidates(10**6))

    def searched(*, is_brief):
        context = search_context(problem, "v5e:2x4", 1.0)
        context.objective = Objective(least)
        context.policy = replace(context.policy, exact_seconds=0.2)
        context.is_brief = is_brief
        get_strategy("auto")(context)
        return context

    whole, brief = searched(is_brief=False), searched(is_brief=True)
    assert brief.evaluations < whole.evaluations
    assert brief.fitting_seconds >= whole.fitting_seconds
    portfolio.search_on(brief)
    assert brief.best.point == whole.best.point
    assert (brief.evaluations, brief.bound_seconds) == (whole.evaluations, whole.bound_seconds)


def test_what_fits_nowhere_is_refused():
    workload = trace_step(*random_step(0))
    with pytest.raises(InfeasiblePlanError, match="no plan fits"):
        plan_workload(workload, get_topology("cpu:4"), Options(memory_limit_bytes=1.0))
