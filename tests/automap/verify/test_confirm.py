"""Which of a search's candidates `automap plan --verify` compiles, and which it returns."""

import dataclasses
from types import SimpleNamespace

import pytest

from automap.api.plan import Plan
from automap.config import Options
from automap.errors import InfeasiblePlanError, InputError
from automap.plan.levers import LeversRecord, WithoutLeversRecord
from automap.planner.sharding import find
from automap.program.trace import lower_call
from automap.step.step import traced_call
from automap.topology import get_topology
from automap.verify import confirm
from automap.verify.compiling import Compiled
from automap.verify.confirm import Confirmation, confirmed_plan
from tests.automap.verify.test_witness import WITNESS
from tests.steps import mlp


@pytest.fixture(scope="module")
def searched():
    step, args = mlp()
    call = traced_call(step, args)
    workload = lower_call(call, platform="cpu", target="mlp", rules={})
    return find(workload, get_topology("cpu:8"), Options(budget_seconds=20)), call


def _no_search(options):
    pytest.fail(f"searched again with {options}")


def _confirmed(searched, monkeypatch, answers, top=3, options=None, search_again=_no_search):
    """The plan, and what was compiled, when the compiler answers with each (fits, peak) in turn."""
    compiled = []

    def compile_planned(program, name, **_):
        fits, peak = answers[len(compiled)]
        compiled.append(program.plan)
        return Compiled(dataclasses.replace(WITNESS, fits=fits, peak_bytes=peak), None)

    monkeypatch.setattr(confirm, "compile_planned", compile_planned)
    outcome, call = searched
    confirmation = Confirmation(top=top, timeout_seconds=1.0, cache_folder=None)
    return Plan.from_record(
        confirmed_plan(outcome, call, options or Options(), confirmation, search_again=search_again)
    ), compiled


def test_candidates_are_different_and_in_the_order_of_the_objective(searched):
    context = searched[0].context
    candidates = context.best_candidates(5)
    keys = [context.objective.key(c.estimate) for c in candidates]
    assert keys == sorted(set(keys)) and len(keys) == 5
    everything = {context.objective.key(e) for e in context._priced.values() if e is not None}
    assert keys == sorted(everything)[:5]
    assert candidates[0].estimate == context.best.estimate


def test_the_first_that_is_confirmed_is_returned_and_none_after_it_compiled(searched, monkeypatch):
    plan, compiled = _confirmed(searched, monkeypatch, [(False, 9), (True, 7), (True, 5)])
    assert len(compiled) == 2 and plan.predicted == compiled[1].predicted
    assert plan.verified is not None
    assert (plan.verified.fits, plan.verified.peak_bytes, plan.verified.tried) == (True, 7, 2)
    assert (
        "verified by the TPU compiler (libtpu 0.0.51): peak 7 B: fits; 2 compiled in all"
        in plan.explain()
    )
    assert "verified: no -> the TPU compiler" in Plan.from_record(compiled[1]).diff(plan)


def test_none_confirmed_is_no_plan(searched, monkeypatch):
    with pytest.raises(
        InfeasiblePlanError, match="none of the 2 best plans, the smallest with 8 B"
    ) as raised:
        _confirmed(searched, monkeypatch, [(False, 9), (False, 8)], top=2)
    assert raised.value.exit_status == 1


def test_the_users_limit_counts_beside_the_devices(searched, monkeypatch):
    limited = Options(memory_limit_bytes=8.0)
    plan, compiled = _confirmed(searched, monkeypatch, [(True, 9), (True, 8)], options=limited)
    assert len(compiled) == 2 and plan.verified is not None and plan.verified.peak_bytes == 8


def test_levers_are_chosen_again_in_as_much_less_memory_as_the_compiler_needs_more(
    searched, monkeypatch
):
    outcome, call = searched
    without = WithoutLeversRecord(step_seconds=1.0, peak_bytes=1, fits=False)
    levers = LeversRecord(remat=(), microbatches=2, recompute_seconds=0.0, without=without)
    # Which program a compiler is asked of does not matter here.
    monkeypatch.setattr(confirm, "planned_program", lambda plan, call: SimpleNamespace(plan=plan))
    levered = dataclasses.replace(outcome, levers=levers)
    predicted = outcome.best.estimate.peak_bytes
    limits = []

    def search_again(options):
        limits.append(options.memory_limit_bytes)
        return levered

    limited = Options(memory_limit_bytes=2 * predicted)
    answers = [(True, round(4 * predicted)), (False, None), (True, round(predicted))]
    plan, compiled = _confirmed(
        (levered, call), monkeypatch, answers, options=limited, search_again=search_again
    )
    assert len(compiled) == 3 and plan.verified is not None and plan.verified.tried == 3
    # The plan says what was allowed, not what was searched within.
    assert plan.search.memory_limit_bytes == round(2 * predicted) and plan.predicted.fits
    # As much less as the compiler needs more of the plan that was found, since near ones are alike.
    assert limits[0] == pytest.approx(predicted / 4, rel=1e-4)
    assert limits[1] <= limits[0]
    with pytest.raises(InfeasiblePlanError, match="none of the 2 best plans"):
        _confirmed(
            (levered, call),
            monkeypatch,
            [(True, round(4 * predicted))] * 2,
            top=2,
            options=limited,
            search_again=search_again,
        )


@pytest.mark.parametrize(("top", "timeout"), [(0, 1.0), (-1, 1.0), (1, 0.0), (1, float("nan"))])
def test_numbers_out_of_range_are_refused(top, timeout):
    with pytest.raises(InputError, match="must be a"):
        Confirmation(top=top, timeout_seconds=timeout, cache_folder=None)


def test_no_other_plan_stands_for_a_preset(searched, monkeypatch):
    outcome, call = searched
    context = outcome.context
    slower = max(context.best_per_preset.values(), key=lambda c: context.objective.key(c.estimate))
    assert context.is_better(context.best, slower)
    asked = dataclasses.replace(outcome, best=slower), call
    options = Options(preset=slower.origin)
    plan, compiled = _confirmed(asked, monkeypatch, [(True, 7)], options=options)
    assert plan.predicted.step_seconds == slower.estimate.step_seconds
    assert len(compiled) == 1
    with pytest.raises(InfeasiblePlanError, match="none of the 1 best plans"):
        _confirmed(asked, monkeypatch, [(False, 7)], options=options)
    # So it is where another objective has chosen: the fastest plan is not what was asked for.
    plan, _ = _confirmed(asked, monkeypatch, [(True, 7)])
    assert plan.predicted.step_seconds == slower.estimate.step_seconds
