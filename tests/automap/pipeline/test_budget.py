"""Searches of pipelines end with their budget: work is counted instead of seconds."""

import importlib

import pytest

from automap.config import Options
from automap.cost.evaluate import Evaluator
from automap.deadline import Deadline
from automap.numba_jit import compilation_heard, compiled
from automap.pipeline.hybrid import inner_plans
from automap.pipeline.hybrid.inner_plans import StageKinds
from automap.pipeline.schedules import GPIPE
from automap.pipeline.search import PIPELINE_STRATEGIES
from automap.pipeline.solvers.exact import WORK_PER_SECOND, solve
from automap.planner.spaces import plan_workload
from automap.program.trace import trace_step
from automap.topology import get_topology
from models.gpt import gpt_tiny
from tests.automap.clocks import Work
from tests.automap.pipeline.problems import random_arrays


TOPOLOGY = get_topology("2x2xv100")
# A choice that is begun is finished, and so is a plan inside a stage.
_MOST_LATE = 40


@pytest.fixture(scope="module")
def workload():
    return trace_step(*gpt_tiny())


@pytest.fixture
def work(monkeypatch):
    work = Work()
    for module in (
        "automap.pipeline.search.pipeline_arrays",
        "automap.pipeline.hybrid.inner_plans.pipeline_arrays",
    ):
        owner, _, name = module.rpartition(".")
        monkeypatch.setattr(module, work.counted(getattr(__import__(owner, fromlist=[name]), name)))
    monkeypatch.setattr(Evaluator, "price", work.counted(Evaluator.price))
    monkeypatch.setattr(inner_plans, "candidate", work.counted(inner_plans.candidate))
    monkeypatch.setattr(StageKinds, "options", work.counted(StageKinds.options))
    return work


def planned(workload, work, budget, **options):
    deadline = Deadline.after(budget, work.clock)
    return plan_workload(workload, TOPOLOGY, Options(**options), deadline=deadline)


@pytest.mark.parametrize("strategy", sorted(set(PIPELINE_STRATEGIES) - {"rainbow", "agent-gap"}))
def test_every_strategy_ends_soon_after_the_deadline(workload, work, strategy):
    if strategy == "pivots":
        pytest.importorskip("torch")
    for budget in (0, 7):
        work.done = 0
        plan = planned(workload, work, budget, space="pipeline", strategy=strategy)
        assert plan.predicted.fits
        assert work.done <= budget + 10
        assert "not done after its budget" in plan.warnings[0]


@pytest.mark.parametrize("budget", [0, 60, 200, 400])
def test_a_hybrid_search_ends_soon_after_the_deadline(workload, work, budget):
    plan = planned(workload, work, budget, space="hybrid")
    assert plan.predicted.fits
    assert work.done <= budget + _MOST_LATE
    if budget == 0:
        assert any("before pipelines were looked at" in warning for warning in plan.warnings)


def test_even_splits_are_priced_before_anything_is_solved(workload, work, monkeypatch):
    """A plan is there soon, of all numbers of stages; the exact solver begins with the best of
    them.
    """
    begun = []

    def counted(arrays, stages, *args, **options):
        begun.append((stages, work.done))
        return solve(arrays, stages, *args, **options)

    monkeypatch.setattr("automap.pipeline.search.solve", counted)
    planned(workload, work, 1e5, space="pipeline")
    n_choices = len(begun)
    assert begun[0][1] > 2 * n_choices


def test_no_more_work_is_done_than_there_is_time_for():
    arrays = random_arrays(1, GPIPE, points=24, topology="2x4xv100", microbatches=8)
    whole = solve(arrays, 4)
    assert whole.proven
    for share in (0.01, 0.3):
        seconds = share * whole.work / WORK_PER_SECOND
        found = solve(arrays, 4, deadline=Deadline.after(seconds, Work().clock))
        assert not found.proven
        # What is compared with one tail is counted at once.
        assert found.work <= share * whole.work + whole.widest + 2


def test_it_is_heard_when_something_is_compiled(tmp_path, monkeypatch):
    (tmp_path / "fresh.py").write_text("def twice(x):\n    return 2.0 * x\n")
    monkeypatch.syspath_prepend(tmp_path)
    fresh, heard = importlib.import_module("fresh"), []
    function = compiled(fresh.twice)
    with compilation_heard(lambda: heard.append(1)):
        assert function(2.0) == 4.0
    assert heard
    # From disk nothing is, where there is a place to keep it.
    again = compiled(fresh.twice)
    with compilation_heard(lambda: heard.append(2)):
        again(3.0)
    assert 2 not in heard
