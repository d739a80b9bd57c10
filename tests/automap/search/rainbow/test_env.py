"""Episodes over the decisions of a small step: what is seen and rewarded, what is never done."""

import math

import numpy as np
import pytest

from automap.cost.evaluate import Evaluator
from automap.cost.tables import build_tables
from automap.deadline import Deadline
from automap.program.trace import trace_step
from automap.search.context import Objective, SearchContext
from automap.search.greedy import starts
from automap.search.rainbow.env import StepTimeEnv, Table, decisions
from automap.space.pins import parse_pins
from automap.space.space import Space
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from tests.steps import decoder, mlp, shapes_of


TOPOLOGY = get_topology("v5e:2x4")
MESHES = (Mesh(("data",), (8,)), Mesh(("data", "model"), (2, 4)))


def search_context(step, *, memory_limit_bytes=2**40, pins=()):
    problem = trace_step(*step).problem
    space = Space(problem)
    return SearchContext(
        space=space,
        evaluator=Evaluator(build_tables(problem, TOPOLOGY.platform), problem.n_classes, TOPOLOGY),
        meshes=MESHES,
        objective=Objective(memory_limit_bytes),
        pins=parse_pins(pins, problem, shapes_of(problem), MESHES),
        seed=0,
        deadline=Deadline.never(),
        on_progress=lambda context: None,
    )


@pytest.fixture(scope="module")
def context():
    return search_context(decoder())


def played(env, seed):
    """Random allowed actions, forever: (observation, actions, outcome) of each step."""
    source = np.random.default_rng(seed)
    while True:
        seen = env.observe()
        actions = np.where(seen.mask, source.random(seen.mask.shape), -1.0).argmax(1)
        yield seen, actions, env.step(actions)


def test_rewards_of_an_episode_add_up_to_what_it_saves(context):
    start = starts(context)[-1]
    table, total = Table(context, start), 0.0
    source = np.random.default_rng(1)
    while not table.is_over:
        there = [i for i, option in enumerate(table.options) if option is not None]
        total += table.take(int(source.choice(there)))
    seconds = [c.estimate.step_seconds for c in (start, table.current)]
    assert total == pytest.approx(math.log(seconds[0] / seconds[1]))
    assert table.position == len(decisions(context.space, start.point.mesh))


def test_the_baseline_is_the_reward_at_once(context):
    env = StepTimeEnv(context, starts(context), 3)
    for _, (seen, actions, outcome) in zip(range(60), played(env, 0)):
        assert np.isfinite(seen.features).all() and np.isfinite(seen.flat).all()
        assert seen.baseline[np.arange(3), actions] == pytest.approx(outcome.rewards, abs=1e-6)
        assert seen.mask[:, 0].all() and (seen.baseline[:, 0] == 0.0).all()
    assert env.episodes > 0


def test_pins_hold_in_every_episode():
    context = search_context(mlp(), pins=("[1]*=null,null",))
    env = StepTimeEnv(context, starts(context), 2)
    for _ in zip(range(100), played(env, 0)):
        pass
    priced = context.best_candidates(1_000)
    assert len(priced) > 10
    for candidate in priced:
        assert context.pinned.allows(candidate.point)


def test_leaving_the_memory_costs_and_coming_back_pays():
    context = search_context(decoder())
    estimates = [candidate.estimate for candidate in starts(context)]
    peaks = sorted(e.peak_bytes for e in estimates)
    objective = Objective(memory_limit_bytes=peaks[len(peaks) // 2])
    for estimate in estimates:
        extra = objective.cost(estimate) - math.log(estimate.step_seconds)
        over = estimate.peak_bytes / objective.memory_limit_bytes
        assert (extra == 0.0) if over <= 1.0 else (extra > math.log(2.0) + math.log(over))


def test_every_move_of_the_neighbourhood_of_small_spaces_is_some_decision(context):
    from automap.search.moves import moves

    for mesh in MESHES:
        known = {move for decision in decisions(context.space, mesh) for move in decision}
        assert set(moves(context.space, context.empty(mesh))) <= known
