"""A pipeline held against a compiler, stage by stage: its step is several programs, each compiled
ahead of time for the devices of its own stage, equal ones once.

    plan, step -> the stages' programs (`automap.verify.stages`) -> the compiler's process
               -> of each program its schedule, replayed, and its memory
    F, B, W    seconds of the passes of a microbatch
    R          of all that a stage does once in a step: what it computes before the loop, sums of
               gradients over its replicas, outputs, the update      -> in: `_stage_seconds`
    bytes      the most that a device of the stage holds in a step   -> in: `held_bytes.peak_bytes`
    step       the pipeline's simulation with these seconds          -> in: `_step_seconds`

What stages send each other is in no program: a transfer takes the seconds that the plan has for it,
on both sides. A stage fits if its compiler refuses none of its programs and the bytes are within
the device's memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
import hashlib
import json
from pathlib import Path
from typing import Any, Final

from automap.choices import CompilerName
from automap.errors import AutomapError
from automap.pipeline.simulation import simulated_step
from automap.plan.codec import encode
from automap.plan.pipeline import PipelineRecord, StageRecord
from automap.plan.record import PlanRecord
from automap.runtime.pipeline.places import StagePlace
from automap.step.call import TracedCall
from automap.topology.mesh import Mesh
from automap.topology.model import Topology
from automap.topology.parts import sub_topology
from automap.verify.cache import cache_key, load_answer, save_answer
from automap.verify.compilers import COMPILERS, machine_for
from automap.verify.compiling import failure
from automap.verify.held_bytes import peak_bytes
from automap.verify.job_folder import job_folder
from automap.verify.messages import (
    Answer,
    PlanShardings,
    ProgramAnswer,
    ProgramKind,
    Request,
    StagesRequest,
    stage_files,
)
from automap.verify.process import run_job
from automap.verify.replayed import replayed_step
from automap.verify.stages import StageListing, list_programs
from automap.verify.verification import plan_compiler
from hlo_tools.errors import HloError


_PASSES: Final[tuple[ProgramKind, ...]] = ("forward", "backward", "weights")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageNumbers:
    """Seconds and bytes of a stage, None where a compiler does not say them.

    Passes are of one microbatch, `reduce_seconds` of what is done once in a step; `peak_bytes` are
    those of each of its devices, all stages that they have together.
    """

    forward_seconds: float | None
    backward_seconds: float | None
    weights_seconds: float | None
    reduce_seconds: float | None
    peak_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageVerification:
    """One stage: predicted, and by the compiler. `refusal` is the compiler's text if it refuses one
    of its programs, else "".
    """

    stage: int
    devices: tuple[int, ...]
    layers: str
    fits: bool
    refusal: str
    predicted: StageNumbers
    compiled: StageNumbers


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineVerificationRecord:
    """What a compiler says of a pipeline; `plan_compiler` is that of the plan's topology.

    `program_count` programs are `compiled_count` different ones. `compiled_step_seconds` is None
    where the compiler does not say what its kernels take.
    """

    target: str
    plan_compiler: CompilerName
    compiler: CompilerName
    versions: tuple[tuple[str, str], ...]
    topology: str
    schedule: str
    microbatches: int
    memory_limit_bytes: int
    program_count: int
    compiled_count: int
    compile_seconds: float
    predicted_step_seconds: float
    compiled_step_seconds: float | None
    stages: tuple[StageVerification, ...]

    @property
    def is_verdict(self) -> bool:
        """Whether the plan's own compiler was asked, whose word on memory counts."""
        return self.compiler == self.plan_compiler

    @property
    def fits(self) -> bool:
        """Whether the compiler that was asked has room for all stages; see `is_verdict`."""
        return all(stage.fits for stage in self.stages)

    @property
    def peak_bytes(self) -> int | None:
        """Of the fullest stage; None if the compiler does not say it of all."""
        peaks = [stage.compiled.peak_bytes for stage in self.stages]
        known = [peak for peak in peaks if peak is not None]
        return max(known) if len(known) == len(peaks) else None

    @property
    def numerics(self) -> None:
        """None: a pipeline's numbers are held against the step's by running it."""
        return None

    def to_json(self) -> dict[str, Any]:
        """JSON values, as `automap verify --json` prints them."""
        return {**encode(self), "fits": self.fits, "peak_bytes": self.peak_bytes}


def verify_pipeline(
    plan: PlanRecord,
    call: TracedCall,
    name: CompilerName,
    *,
    timeout_seconds: float,
    cache_folder: Path | None,
) -> PipelineVerificationRecord:
    """Compile the stages of a plan's pipeline; `timeout_seconds` are for all of them together, and
    `cache_folder` None asks anew and keeps nothing.

    Raises `CompilerError` for a compiler that is missing, fails or is not done in time, `PlanError`
    for a plan of another step, `InputError` for a step that cannot be sent to one.
    """
    compiler, topology = COMPILERS[name], Topology.from_dict(plan.topology)
    machine = machine_for(name, topology)
    compiler.check_installed()
    listing = list_programs(plan, call, compiler.platform)
    request = Request(
        machine=machine,
        shardings=PlanShardings(
            axes=plan.mesh.axes, devices=plan.mesh.devices, inputs=(), outputs=(), donated=()
        ),
        run=None,
        stages=StagesRequest(
            pipeline=_bare(listing.record),
            programs=tuple(listed.program for listed in listing.programs),
        ),
    )
    text = json.dumps(encode(request.stages), sort_keys=True)
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    key = cache_key(sha256, request.shardings, machine, topology.device.memory_bytes)
    cached = None if cache_folder is None else load_answer(cache_folder, key)
    answer, programs = cached or _ask(request, listing, timeout_seconds)
    if answer.outcome != "done":
        raise failure(name, topology, answer.message)
    if cached is None and cache_folder is not None:
        save_answer(cache_folder, key, answer, programs)
    seconds = [None] * len(answer.programs)
    if name != "cpu":
        seconds = _program_seconds(listing, answer.programs, programs, topology)
    return _verification(plan, listing, answer, seconds, name)


def _bare(record: PipelineRecord) -> PipelineRecord:
    """A pipeline as its compiler needs it: where its stages are. What is predicted of them changes
    no program.
    """

    def bare(stage: StageRecord) -> StageRecord:
        inside = stage.inside and replace(stage.inside, inputs=(), constraints=())
        return replace(
            stage,
            inside=inside,
            layers="",
            forward_seconds=0.0,
            backward_seconds=0.0,
            weights_seconds=0.0,
            reduce_seconds=0.0,
            transfer_seconds=0.0,
            sent_bytes=0,
            peak_bytes=0,
        )

    return replace(record, stages=tuple(map(bare, record.stages)))


def _ask(
    request: Request, listing: StageListing, timeout_seconds: float
) -> tuple[Answer, Mapping[int, bytes]]:
    with job_folder() as folder:
        files = [stage_files(number) for number in range(len(listing.programs))]
        for (artifact, _), listed in zip(files, listing.programs, strict=True):
            (folder / artifact).write_bytes(listed.exported.artifact)
        answer = run_job(request, folder, timeout_seconds=timeout_seconds)
        programs = {
            number: (folder / name).read_bytes()
            for number, (_, name) in enumerate(files)
            if (folder / name).is_file()
        }
    return answer, programs


def _program_seconds(
    listing: StageListing,
    answers: Sequence[ProgramAnswer],
    programs: Mapping[int, bytes],
    topology: Topology,
) -> list[float | None]:
    """The replayed seconds of each program; None where its schedule has none."""
    seconds: list[float | None] = []
    for number, (listed, answer) in enumerate(zip(listing.programs, answers, strict=True)):
        if answer.same_as is not None:
            seconds.append(seconds[answer.same_as])
            continue
        stage = listed.program.stage
        place, record = listing.step.places[stage], listing.record.stages[stage]
        data = programs.get(number)
        seconds.append(None if data is None else _replayed(data, place, record, topology))
    return seconds


def _replayed(
    data: bytes, place: StagePlace, stage: StageRecord, topology: Topology
) -> float | None:
    part = sub_topology(topology, len(stage.devices))
    if part is None:
        return None
    shape = place.mesh.shape
    first = min(stage.devices)
    devices = [device - first for device in stage.devices]
    try:
        return replayed_step(data, part, Mesh(tuple(shape), tuple(shape.values())), devices).seconds
    except (HloError, AutomapError):
        return None


def _verification(
    plan: PlanRecord,
    listing: StageListing,
    answer: Answer,
    seconds: Sequence[float | None],
    name: CompilerName,
) -> PipelineVerificationRecord:
    topology, record = Topology.from_dict(plan.topology), listing.record
    limit = topology.device.memory_bytes
    peaks = peak_bytes(listing, answer.programs)
    stages = []
    for number, stage in enumerate(record.stages):
        peak = peaks[number % len(peaks)]
        refusal = _refusal(listing, answer.programs, number)
        stages.append(
            StageVerification(
                stage=number,
                devices=stage.devices,
                layers=stage.layers,
                fits=not refusal and peak is not None and peak <= limit,
                refusal=refusal,
                predicted=StageNumbers(
                    forward_seconds=stage.forward_seconds,
                    backward_seconds=stage.backward_seconds,
                    weights_seconds=stage.weights_seconds,
                    reduce_seconds=stage.reduce_seconds,
                    peak_bytes=stage.peak_bytes,
                ),
                compiled=_stage_seconds(listing, seconds, number, peak),
            )
        )
    return PipelineVerificationRecord(
        target=plan.workload.target,
        plan_compiler=plan_compiler(plan),
        compiler=name,
        versions=COMPILERS[name].versions(),
        topology=topology.name,
        schedule=record.schedule,
        microbatches=record.microbatches,
        memory_limit_bytes=limit,
        program_count=len(answer.programs),
        compiled_count=sum(each.same_as is None for each in answer.programs),
        compile_seconds=answer.seconds,
        predicted_step_seconds=plan.predicted.step_seconds,
        compiled_step_seconds=_step_seconds(record, stages),
        stages=tuple(stages),
    )


def _refusal(listing: StageListing, answers: Sequence[ProgramAnswer], stage: int) -> str:
    """`the forward pass of stage 0: RESOURCE_EXHAUSTED: ...`; "" if nothing is refused."""
    for listed, answer in zip(listing.programs, answers, strict=True):
        if listed.program.stage == stage and answer.outcome == "out-of-memory":
            return f"{listed.program.name}: {answer.message}"
    return ""


def _stage_seconds(
    listing: StageListing, seconds: Sequence[float | None], stage: int, peak: int | None
) -> StageNumbers:
    own = [
        (listed.program.kind, each)
        for listed, each in zip(listing.programs, seconds, strict=True)
        if listed.program.stage == stage
    ]

    def total(is_kind: Any) -> float | None:
        matching = [each for kind, each in own if is_kind(kind)]
        known = [each for each in matching if each is not None]
        return sum(known, 0.0) if len(known) == len(matching) else None

    forward, backward, weights = (total(lambda kind, p=p: kind == p) for p in _PASSES)
    return StageNumbers(
        forward_seconds=forward,
        backward_seconds=backward,
        weights_seconds=weights,
        reduce_seconds=total(lambda kind: kind not in _PASSES),
        peak_bytes=peak,
    )


def _step_seconds(record: PipelineRecord, stages: Sequence[StageVerification]) -> float | None:
    """The simulated step with the compiler's seconds; None where some are missing."""
    compiled = []
    for stage, verified in zip(record.stages, stages, strict=True):
        each = verified.compiled
        forward, backward = each.forward_seconds, each.backward_seconds
        weights, reduce = each.weights_seconds, each.reduce_seconds
        if forward is None or backward is None or weights is None or reduce is None:
            return None
        compiled.append(
            replace(
                stage,
                forward_seconds=forward,
                backward_seconds=backward,
                weights_seconds=weights,
                reduce_seconds=reduce,
            )
        )
    step = simulated_step(replace(record, stages=tuple(compiled)))
    return step.timeline.makespan_seconds
