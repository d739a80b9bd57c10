"""Pipelines held against compilers, stage by stage: bytes by closed form, refusals by name, and the
CPU's compiler on stages that are sharded inside.
"""

from dataclasses import replace
import math

from jax import export
import pytest

import automap
from automap.api.plan import Plan
from automap.api.verification import PipelineVerification
from automap.config import Options
from automap.errors import CompilerError, InfeasiblePlanError
from automap.plan.record import PlanRecord
from automap.step.step import traced_call
from automap.verify import confirm, near_limit, pipelines
from automap.verify.confirm import Confirmation, confirmed_pipeline
from automap.verify.messages import Answer, MemoryBytes, ProgramAnswer, StageProgram
from automap.verify.pipelines import peak_bytes, verify_pipeline
from automap.verify.stages import list_programs
from tests.automap.runtime.pipeline.hybrids import Inside, hybrid_plan
from tests.automap.runtime.pipeline.running import even_cuts, mlp, record


WIDTH, BATCH, MICROBATCHES = 16, 64, 8
FLOAT_BYTES = 4


@pytest.fixture(scope="module")
def step():
    return mlp(depth=4, width=WIDTH, batch=BATCH)


@pytest.fixture(scope="module")
def planned(step):
    """A plan of two stages, for its leaves and hashes."""
    return automap.plan(
        *step, topology="cpu:4", space="pipeline", stages=2, microbatches=MICROBATCHES
    )


def _with(planned: PlanRecord, step, devices, schedule="1f1b") -> PlanRecord:
    """The plan with as many equal stages of these devices."""
    pipeline = record(devices, even_cuts(*step, len(devices)), MICROBATCHES, schedule)
    return replace(planned, pipeline=pipeline)


def _answer(listed, temporaries=0) -> ProgramAnswer:
    """A program whose buffers are its inputs and outputs."""
    shapes = export.deserialize(bytearray(listed.exported.artifact))
    sizes = lambda avals: tuple(math.prod(a.shape) * a.dtype.itemsize for a in avals)  # noqa: E731
    inputs, outputs = sizes(shapes.in_avals), sizes(shapes.out_avals)
    return ProgramAnswer(
        outcome="done",
        message="",
        same_as=None,
        memory=MemoryBytes(
            arguments=sum(inputs),
            outputs=sum(outputs),
            aliased=sum(inputs[n] for n in listed.program.donated),
            temporaries=temporaries,
            generated_code=0,
        ),
        input_bytes=inputs,
        output_bytes=outputs,
    )


def _peaks(planned, step, schedule):
    plan = _with(planned, step, (1, 1, 1, 1), schedule)
    call = traced_call(*step, {}, name=plan.workload.target, mesh=plan.mesh.axes)
    listing = list_programs(plan, call, "cpu")
    return listing, peak_bytes(listing, [_answer(p) for p in listing.programs])


@pytest.mark.slow
def test_gpipe_holds_what_its_microbatches_in_flight_are_more(planned, step):
    """Of a middle stage, tanh(x @ w + b), a microbatch in flight is what entered and what left:
    1F1B has S - s of them, GPipe all.
    """
    _, some = _peaks(planned, step, "1f1b")
    _, most = _peaks(planned, step, "gpipe")
    saved = 2 * (BATCH // MICROBATCHES) * WIDTH * FLOAT_BYTES
    for stage in (1, 2):
        # At the peak one of them is running: it is held by both.
        assert most[stage] - some[stage] == (MICROBATCHES - (4 - stage)) * saved


def test_state_is_held_by_the_stage_that_owns_it(planned, step):
    listing, peaks = _peaks(planned, step, "1f1b")
    layer = (WIDTH * WIDTH + WIDTH) * FLOAT_BYTES
    for stage in range(4):
        # Parameters, momentum, sums that grow, and the sums that they end in or their terms.
        assert peaks[stage] >= 3 * layer
        assert peaks[stage] <= 5 * layer + 20 * BATCH * WIDTH * FLOAT_BYTES
    assert {p.program.stage for p in listing.programs} == {0, 1, 2, 3}


class _FakeCompiler:
    """Answers as the worker does, without compiling; refuses programs that `refuses` says."""

    def __init__(self, listing, temporaries=0, refuses=lambda program: False):
        self._answers = [
            replace(_answer(listed, temporaries), outcome="out-of-memory", memory=None, message="x")
            if refuses(listed.program)
            else _answer(listed, temporaries)
            for listed in listing.programs
        ]

    def __call__(self, request, folder, *, timeout_seconds):
        assert len(request.stages.programs) == len(self._answers)
        assert all(isinstance(program, StageProgram) for program in request.stages.programs)
        for number in range(len(self._answers)):
            assert (folder / f"planned-{number}.bin").is_file()
        return Answer(
            outcome="done",
            message="",
            seconds=1.0,
            memory=None,
            leaves=(),
            programs=tuple(self._answers),
        )


@pytest.fixture(scope="module")
def listed(planned, step):
    """A plan of three stages, the last one of two replicas, with its call and programs."""
    plan = _with(planned, step, (1, 1, 2))
    call = traced_call(*step, {}, name=plan.workload.target, mesh=plan.mesh.axes)
    return plan, call, list_programs(plan, call, "cpu")


def _verified(listed, monkeypatch, **compiler_options):
    plan, _, listing = listed
    monkeypatch.setattr(pipelines, "run_job", _FakeCompiler(listing, **compiler_options))
    return verify_pipeline(plan, listing, "cpu", timeout_seconds=1.0, cache_folder=None)


def test_all_stages_fit(listed, monkeypatch):
    verified = _verified(listed, monkeypatch)
    peaks = [stage.compiled.peak_bytes for stage in verified.stages]
    assert verified.fits and verified.peak_bytes == max(peaks)
    text = PipelineVerification.from_record(verified).explain()
    assert "fits, says the CPU compiler" in text and "stage 2 on devices 2 to 3" in text


def test_a_stage_that_is_refused_is_named(listed, monkeypatch):
    refuses = lambda program: program.stage == 1 and program.kind == "backward"  # noqa: E731
    verified = _verified(listed, monkeypatch, refuses=refuses)
    assert [stage.fits for stage in verified.stages] == [True, False, True]
    assert not verified.fits and verified.peak_bytes is None
    text = PipelineVerification.from_record(verified).explain()
    assert "DOES NOT FIT, says" in text and "the backward pass of stage 1: x" in text


def test_a_stage_beyond_the_memory_is_named(listed, monkeypatch):
    verified = _verified(listed, monkeypatch, temporaries=2**40)
    assert not any(stage.fits for stage in verified.stages)
    assert verified.to_json()["stages"][0]["compiled"]["peak_bytes"] > 2**40


def _confirmed(planned, listed, monkeypatch, answers, top=3):
    """The plan, and the limits of memory of all searches."""
    verified = _verified(listed, monkeypatch)
    limits: list[float | None] = []

    def plan_within(options: Options) -> PlanRecord:
        limits.append(options.memory_limit_bytes)
        return planned

    def verify(plan, listing, name, **_):
        fits, peak = answers[len(limits) - 1]
        stages = [
            replace(s, fits=fits, compiled=replace(s.compiled, peak_bytes=peak))
            for s in verified.stages
        ]
        return replace(verified, stages=tuple(stages))

    monkeypatch.setattr(confirm, "verify_pipeline", verify)
    confirmation = Confirmation(top=top, timeout_seconds=1.0, cache_folder=None)
    return confirmed_pipeline(plan_within, listed[1], "cpu", Options(), confirmation), limits


def test_after_a_refusal_the_search_goes_on_with_less(planned, listed, monkeypatch):
    peak = planned.predicted.peak_bytes
    plan, limits = _confirmed(planned, listed, monkeypatch, [(False, 2 * peak), (True, peak)])
    assert plan.verified is not None
    assert (plan.verified.peak_bytes, plan.verified.tried) == (peak, 2)
    assert limits[0] is None
    # As far off as the plan was, and less than the plan itself.
    assert limits[1] == (peak - 1) / 2


@pytest.mark.slow
def test_a_pipeline_that_is_never_confirmed_is_not_returned(planned, listed, monkeypatch):
    with pytest.raises(InfeasiblePlanError, match="none of 2 plans: stage 0 needs 1 GiB, stage 1"):
        _confirmed(planned, listed, monkeypatch, [(False, 2**30)] * 2, top=2)


def test_a_pipeline_near_the_limit_is_compiled_stage_by_stage(step, listed, monkeypatch):
    """Beyond the margin it is not; without a compiler it is unsure."""
    verified = _verified(listed, monkeypatch)
    compiled = list[PlanRecord]()

    def verify(plan, listing, name, **_):
        compiled.append(plan)
        peak = plan.predicted.peak_bytes
        stages = [
            replace(s, fits=True, compiled=replace(s.compiled, peak_bytes=peak))
            for s in verified.stages
        ]
        return replace(verified, stages=tuple(stages))

    def plan_within(n_bytes: float | None) -> Plan:
        limit = n_bytes and n_bytes / 2**30
        given = {"stages": 2, "microbatches": MICROBATCHES, "memory_limit": limit}
        return automap.plan(*step, topology="4xv100", space="pipeline", **given)

    def install(module: str) -> None:
        gpu = replace(near_limit.COMPILERS["gpu"], module=module)
        monkeypatch.setattr(near_limit, "COMPILERS", {**near_limit.COMPILERS, "gpu": gpu})

    monkeypatch.setattr(confirm, "verify_pipeline", verify)
    install("jaxlib")
    alone = plan_within(None).predicted
    near = plan_within(alone.peak_bytes * (1 + alone.memory_margin / 2))
    (asked,) = compiled
    assert asked.predicted.unsure and asked.predicted.fits
    assert near.verified is not None and near.verified.peak_bytes == near.predicted.peak_bytes
    assert not alone.unsure and not near.predicted.unsure
    install("no_such_module")
    unsure = plan_within(alone.peak_bytes * (1 + alone.memory_margin / 2))
    assert unsure.predicted.unsure and any("was not asked" in w for w in unsure.warnings)


def test_a_compiler_that_is_missing_is_said_before_the_search(listed):
    def plan_within(options):
        raise AssertionError("nothing is searched")

    confirm_with = Confirmation(timeout_seconds=1.0, cache_folder=None)
    installed = confirm.COMPILERS["tpu"]
    missing = replace(installed, module="no_such_module")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(confirm, "COMPILERS", {**confirm.COMPILERS, "tpu": missing})
        with pytest.raises(CompilerError, match="TPU compiler is not installed"):
            confirmed_pipeline(plan_within, listed[1], "tpu", Options(), confirm_with)


@pytest.mark.slow
def test_stages_sharded_inside_are_compiled_as_they_are_run(tmp_path):
    """The compiler chooses where values lie inside of a stage: each program is told what those
    before it chose, and equal ones are compiled once.
    """
    step, args = mlp(depth=8, width=WIDTH, batch=BATCH)
    plan: Plan = hybrid_plan(step, args, [Inside("megatron", {"model": 2})] * 4, microbatches=4)
    verified = automap.verify(plan, step, args, cache_dir=tmp_path)
    assert isinstance(verified, PipelineVerification)
    assert verified.fits and verified.compiled_step_seconds is None
    assert 0 < verified.compiled_count < verified.program_count
    # All buffers of a stage are at least its parameters, split as the plan says.
    for stage in verified.stages:
        assert stage.compiled.peak_bytes > 2 * WIDTH * WIDTH * FLOAT_BYTES / 2
    again = automap.verify(plan, step, args, cache_dir=tmp_path)
    assert again == verified
