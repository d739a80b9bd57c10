"""What people do in place of the levers of a search: compiled too, and taken where it is faster."""

from dataclasses import replace

import pytest

from automap.config import read_options
from automap.errors import CompilerError
from automap.jaxpr.blocks import block_groups
from automap.plan.levers import LeversRecord, WithoutLeversRecord
from automap.planner.rebuild import levered_workload
from automap.planner.remat import keep_products, remat_records
from automap.planner.sharding import find
from automap.program.trace import trace_step
from automap.refine import loop
from automap.refine.loop import refined_plan
from automap.refine.refinement import Refinement
from automap.refine.trials import policy_outcomes
from automap.topology import get_topology
from automap.verify import confirm
from automap.verify.compiling import Compiled
from automap.verify.witness import StepRecord
from models.gpt import gpt_tiny
from tests.automap.refine.test_loop import FakeClock
from tests.automap.verify.test_witness import WITNESS


GPUS = get_topology("8xh100")
OPTIONS = read_options(strategy="greedy", budget=5.0, levers="remat", seed=0)
ALL, FULL, MINIMAL = (
    "all kept",
    "nothing of each layer kept",
    "products of each layer kept",
)


@pytest.fixture(scope="module")
def workload():
    return trace_step(*gpt_tiny(layers="scanned", batch=64), platform="cuda", target="gpt")


@pytest.fixture(scope="module")
def levered(workload):
    """What a search may come to: the products of each layer kept, and a preset."""
    groups = block_groups(workload.reemitter.flat)
    levers = LeversRecord(
        remat=remat_records(groups, keep_products(groups)),
        recompute_seconds=0.0,
        without=WithoutLeversRecord(step_seconds=1.0, peak_bytes=1, fits=False),
    )
    step = levered_workload(workload, levers, "cuda")
    outcome = find(step, GPUS, replace(OPTIONS, levers=(), preset="data-parallel"))
    return replace(outcome, levers=levers)


def _kept(plan):
    """What the plan's levers keep of a layer; None without levers."""
    levers = plan.levers
    return None if levers is None else frozenset(v for group in levers.remat for v in group.kept)


def test_each_policy_comes_with_the_best_of_all_presets(workload, levered):
    more = replace(levered, levers=replace(levered.levers, microbatches=2))
    policies = dict(policy_outcomes(workload, more, OPTIONS))
    assert list(policies) == [ALL, FULL, MINIMAL]
    assert policies[ALL].levers is None
    assert _kept(policies[FULL]) < _kept(policies[MINIMAL])
    # What is kept of this step with levers is what the policy keeps.
    assert _kept(policies[MINIMAL]) == _kept(levered)
    assert list(dict(policy_outcomes(workload, levered, OPTIONS))) == [ALL, FULL]
    for outcome in policies.values():
        step = (
            workload
            if outcome.levers is None
            else levered_workload(workload, outcome.levers, "cuda")
        )
        options = replace(OPTIONS, levers=())
        steps = [
            find(step, GPUS, replace(options, preset=name)).best.estimate.step_seconds
            for name in levered.context.best_per_preset
        ]
        assert outcome.best.estimate.step_seconds == min(steps)


def test_nothing_is_computed_again_where_the_options_do_not_allow_it(workload, levered):
    parts = replace(levered, levers=replace(levered.levers, remat=(), microbatches=2))
    options = replace(OPTIONS, levers=("accumulate",))
    assert list(dict(policy_outcomes(workload, parts, options))) == [ALL]


@pytest.mark.slow
def test_presets_that_do_not_divide_the_batch_are_left_out():
    step = trace_step(*gpt_tiny(layers="scanned", batch=3), platform="cuda", target="gpt")
    alone = replace(OPTIONS, levers=(), preset="megatron")
    outcome = find(step, GPUS, alone)
    assert "data-parallel" not in outcome.context.best_per_preset
    without = WithoutLeversRecord(step_seconds=1.0, peak_bytes=1, fits=False)
    levers = LeversRecord(remat=(), microbatches=3, recompute_seconds=0.0, without=without)
    outcome = replace(outcome, levers=levers)
    policies = dict(policy_outcomes(step, outcome, OPTIONS))
    assert list(policies) == [ALL, FULL, MINIMAL]
    assert all(each.strategy in outcome.context.best_per_preset for each in policies.values())


def test_a_search_without_levers_has_no_policies_beside_it(workload, levered):
    assert not list(policy_outcomes(workload, replace(levered, levers=None), OPTIONS))


def _refined(workload, levered, monkeypatch, is_fast=lambda kept: False, fits=lambda kept: True):
    """The plan that is refined where a compiler takes these for fast and to fit, by what is kept of
    a layer.
    """
    clock = FakeClock()

    def compile_planned(program, name, *, timeout_seconds, cache_folder):
        clock.seconds += 1.0
        kept = _kept(program.plan)
        step = StepRecord(
            seconds=1e-3 if is_fast(kept) else 1.1e-3, kernel_seconds=1e-3, collective_seconds=0.0
        )
        witness = replace(WITNESS, compiler="gpu", fits=fits(kept), peak_bytes=2**20, step=step)
        return Compiled(witness, b"")

    def nothing_learnt(program, topology):
        raise CompilerError("says nothing of kernels")

    monkeypatch.setattr(confirm, "compile_planned", compile_planned)
    monkeypatch.setattr(loop, "compiled_seconds", nothing_learnt)
    refinement = Refinement(seconds=5.0, cache_folder=None, clock=clock)
    plan = refined_plan(workload, levered, workload.call, OPTIONS, refinement)
    assert plan.refined is not None and plan.refined.chosen is not None
    return plan


@pytest.mark.parametrize(("fast", "chosen"), [(FULL, FULL), ("the search's", "")])
def test_the_fastest_by_the_compiler_is_taken_be_it_a_policys(
    workload, levered, monkeypatch, fast, chosen
):
    kept = {name: _kept(o) for name, o in policy_outcomes(workload, levered, OPTIONS)}
    own = _kept(levered)
    assert own not in kept.values()
    plan = _refined(workload, levered, monkeypatch, lambda it: it == kept.get(fast, own))
    names = [row.plan for row in plan.refined.compiled]
    assert any(name.endswith(FULL) for name in names)
    taken = plan.refined.compiled[plan.refined.chosen]
    assert taken.compiled_seconds == 1e-3
    assert taken.plan.endswith(chosen) and _kept(plan) == kept.get(chosen, own)


@pytest.mark.slow
def test_where_no_plan_of_the_search_fits_a_policys_is_taken(workload, levered, monkeypatch):
    full = _kept(dict(policy_outcomes(workload, levered, OPTIONS))[FULL])
    plan = _refined(workload, levered, monkeypatch, fits=lambda kept: kept == full)
    assert plan.refined.compiled[plan.refined.chosen].plan.endswith(FULL)
    assert _kept(plan) == full
