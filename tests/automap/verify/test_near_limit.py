"""Plans near the limit of memory: which are compiled, and what is returned."""

import dataclasses

import pytest

from automap.config import Options
from automap.errors import InfeasiblePlanError
from automap.plan.record import PlanRecord
from automap.planner.sharding import find
from automap.planner.spaces import plan_workload
from automap.program.trace import lower_call
from automap.step.step import traced_call
from automap.topology import get_topology
from automap.verify import confirm, near_limit
from automap.verify.compilers import COMPILERS
from automap.verify.compiling import Compiled
from automap.verify.near_limit import settled
from tests.automap.verify.test_witness import WITNESS
from tests.steps import mlp


TOPOLOGY = get_topology("v5e:2x2")


@pytest.fixture(scope="module")
def planned():
    step, args = mlp()
    call = traced_call(step, args)
    workload = lower_call(call, platform="tpu", target="mlp", rules={})

    def plan_within(options):
        return plan_workload(workload, TOPOLOGY, options)

    outcome = find(workload, TOPOLOGY, Options(strategy="greedy"))
    return plan_within, call, outcome.best.estimate.peak_bytes, outcome.context


def _settled(planned, monkeypatch, answers, share, *, is_installed=True):
    """The plan, and those that were compiled, where a plan's peak is `share` of the limit and the
    compiler answers with each (fits, compiled bytes / predicted bytes) in turn.
    """
    plan_within, call, peak, _ = planned
    compiled = list[PlanRecord]()

    def compile_planned(program, name, **_):
        fits, ratio = answers[len(compiled)]
        compiled.append(program.plan)
        n_bytes = round(program.plan.predicted.peak_bytes * ratio)
        return Compiled(dataclasses.replace(WITNESS, fits=fits, peak_bytes=n_bytes), None)

    module = "jaxlib" if is_installed else "there_is_no_such_module"
    tpu = dataclasses.replace(COMPILERS["tpu"], module=module)
    monkeypatch.setattr(near_limit, "COMPILERS", {**COMPILERS, "tpu": tpu})
    monkeypatch.setattr(confirm, "compile_planned", compile_planned)
    options = Options(strategy="greedy", memory_limit_bytes=peak / share)
    plan = settled(plan_within(options), call, options, plan_within)
    return plan, compiled


def test_a_plan_far_from_the_limit_is_not_compiled(planned, monkeypatch):
    plan, compiled = _settled(planned, monkeypatch, [], 0.5)
    assert not compiled and not plan.predicted.unsure and plan.verified is None


def test_near_the_limit_the_compiler_decides(planned, monkeypatch):
    plan, compiled = _settled(planned, monkeypatch, [(True, 1.02)], 0.97)
    assert len(compiled) == 1 and compiled[0].predicted.unsure
    assert not plan.predicted.unsure
    assert plan.verified is not None and plan.verified.fits
    assert plan.verified.peak_bytes == round(compiled[0].predicted.peak_bytes * 1.02)


def test_after_a_refusal_the_search_goes_on_with_less(planned, monkeypatch):
    plan, compiled = _settled(planned, monkeypatch, [(False, 1.2), (True, 1.2)], 0.97)
    refused, peak = compiled[0].predicted.peak_bytes, planned[2]
    # As if the compiler needed a fifth more of every plan.
    assert plan.predicted.peak_bytes <= refused / 1.2 * (1 + 1e-6) < peak
    assert plan.predicted.fits and not plan.predicted.unsure


@pytest.mark.parametrize(
    "ratio",
    [pytest.param(0.9, marks=pytest.mark.slow), 1.0, pytest.param(1.01, marks=pytest.mark.slow)],
)
def test_a_plan_that_is_refused_is_never_returned(planned, monkeypatch, ratio):
    # A compiler may refuse for another reason than the bytes that it says.
    try:
        plan, compiled = _settled(planned, monkeypatch, [(False, ratio)] * 9, 0.999_999)
    except InfeasiblePlanError:
        return
    peaks = [c.predicted.peak_bytes for c in compiled]
    assert peaks == sorted(set(peaks), reverse=True)
    assert plan.predicted.peak_bytes < peaks[-1]


def test_where_everything_is_refused_nothing_fits(planned, monkeypatch):
    with pytest.raises(InfeasiblePlanError, match="no plan fits"):
        _settled(planned, monkeypatch, [(False, 1e6)] * 9, 0.999_999)


def test_without_a_compiler_a_plan_near_the_limit_is_unsure(planned, monkeypatch):
    plan, compiled = _settled(planned, monkeypatch, [], 0.97, is_installed=False)
    assert not compiled and plan.predicted.unsure and plan.verified is None
    assert plan.predicted.fits and plan.predicted.memory_margin > 0
    assert any("was not asked (the TPU compiler is not installed" in w for w in plan.warnings)


def test_of_equal_steps_the_sure_one_is_better(planned):
    context, peak = planned[3], planned[2]
    objective = dataclasses.replace(context.objective, memory_limit_bytes=peak * 1.01)
    near = context.best.estimate
    far = dataclasses.replace(near, peak_bytes=peak / 2)
    slower = dataclasses.replace(far, compute_seconds=near.compute_seconds * 1.001)
    assert objective.key(far) < objective.key(near) < objective.key(slower)
    assert objective.is_unsure(near) and not objective.is_unsure(far)
