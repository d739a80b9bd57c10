"""Searches of small train steps, ready to be given to a strategy."""

import math

from automap.cost.evaluate import Evaluator
from automap.cost.tables import build_tables
from automap.deadline import Deadline
from automap.planner.sharding import candidate_meshes
from automap.search import Objective, SearchContext
from automap.search.presets import preset_points
from automap.space.pins import parse_pins
from automap.space.space import Space
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from tests.steps import problem_of, shapes_of


def search_context(
    step,
    args,
    *,
    topology="4xh100",
    mesh: Mesh | None = None,
    memory_limit_bytes=math.inf,
    seed=0,
    pins=(),
    deadline=None,
) -> SearchContext:
    """A search that has priced nothing yet."""
    machine = get_topology(topology)
    problem = problem_of(step, args)
    space, meshes = Space(problem), candidate_meshes(machine, mesh)
    tables = build_tables(problem, machine.platform)
    return SearchContext(
        space=space,
        evaluator=Evaluator(tables, problem.n_classes, machine),
        meshes=meshes,
        objective=Objective(memory_limit_bytes),
        pins=parse_pins(pins, problem, shapes_of(problem), meshes),
        seed=seed,
        deadline=deadline or Deadline.never(),
        on_progress=lambda context: None,
    )


def step_seconds(context: SearchContext) -> float:
    """The best step so far."""
    assert context.best is not None
    return context.best.estimate.step_seconds


def best_preset_seconds(context: SearchContext) -> float:
    """The best step of all presets on all meshes that fit."""
    candidates = [
        context.consider(context.pinned.nearest(point), name)
        for name, point in preset_points(context)
    ]
    return min(
        c.estimate.step_seconds for c in candidates if c and context.objective.fits(c.estimate)
    )
