"""A pipeline held against a compiler, stage by stage: its step is several programs, each compiled
ahead of time for the devices of its own stage, equal ones once.

    plan, step -> the stages' programs (`automap.verify.stages`) -> the compiler's process
               -> of each program its schedule, replayed, and its memory
    F, B, W    seconds of the passes of a microbatch
    R          of all that a stage does once in a step: what it computes before the loop, sums of
               gradients over its replicas, outputs, the update      -> in: `_stage_seconds`
    bytes      the most that a device of the stage holds in a step   -> in: `peak_bytes`
    step       the pipeline's simulation with these seconds          -> in: `_step_seconds`

What stages send each other is in no program: a transfer takes the seconds that the plan has for it,
on both sides. A stage fits if its compiler refuses none of its programs and the bytes are within
the device's memory.

For the bytes the step is gone through pass by pass in the order of the schedule, as the runtime
does it (`automap.runtime.pipeline.runner`), with bytes in the place of arrays:

    held    state, what the stage was sent of other stages' state, sums that grow, and of each
            microbatch what a later pass of the stage reads
    peak    the largest of held + outputs - aliased + temporaries, over all programs that run

Batch inputs count by their microbatch's part: the whole batch is in the memory of the host. The
stages of a group of interleaved ones share their devices, whose bytes are those of all of them.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
import hashlib
import json
import math
from pathlib import Path
from typing import Any, Final

from automap.choices import CompilerName
from automap.errors import AutomapError
from automap.pipeline.schedules import Job
from automap.pipeline.simulation import simulated_step
from automap.plan.codec import encode
from automap.plan.pipeline import PipelineRecord, StageRecord
from automap.plan.record import PlanRecord
from automap.runtime.pipeline.divide import StagePass
from automap.runtime.pipeline.places import StagePlace
from automap.topology.mesh import Mesh
from automap.topology.model import Topology
from automap.topology.parts import sub_topology
from automap.verify.cache import cache_key, load_answer, save_answer
from automap.verify.compilers import COMPILERS, machine_for
from automap.verify.compiling import failure
from automap.verify.job_folder import job_folder
from automap.verify.messages import (
    Answer,
    PlanShardings,
    ProgramAnswer,
    ProgramKind,
    Request,
    stage_files,
)
from automap.verify.process import run_job
from automap.verify.replayed import replayed_step
from automap.verify.stages import Key, StageListing, SweepListing
from automap.verify.verification import (
    PipelineVerificationRecord,
    StageNumbers,
    StageVerification,
    plan_compiler,
)
from hlo_tools.errors import HloError


_PASSES: Final[tuple[ProgramKind, ...]] = ("forward", "backward", "weights")


def verify_pipeline(
    plan: PlanRecord,
    listing: StageListing,
    name: CompilerName,
    *,
    timeout_seconds: float,
    cache_folder: Path | None,
) -> PipelineVerificationRecord:
    """Compile the listed programs of a plan's pipeline; `timeout_seconds` are for all of them
    together, and `cache_folder` None asks anew and keeps nothing.

    Raises `CompilerError` for a compiler that is missing, fails or is not done in time.
    """
    topology = Topology.from_dict(plan.topology)
    machine = machine_for(name, topology)
    COMPILERS[name].check_installed()
    request = Request(
        machine=machine,
        shardings=PlanShardings(
            axes=plan.mesh.axes, devices=plan.mesh.devices, inputs=(), outputs=(), donated=()
        ),
        run=None,
        stages=listing.request,
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


def peak_bytes(listing: StageListing, answers: Sequence[ProgramAnswer]) -> list[int | None]:
    """By group of devices; None where some program's memory is not known."""
    walk = _Walk(listing, answers)
    walk.go()
    groups = range(len(listing.record.groups))
    return [None if group in walk.unknown else walk.peak[group] for group in groups]


@dataclass
class _Walk:
    """A step in progress: `held` has bytes by group and value, a value of a microbatch with its
    number, else with -1.
    """

    listing: StageListing
    answers: Sequence[ProgramAnswer]
    held: dict[int, dict[tuple[int, Key, int], int]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    peak: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    unknown: set[int] = field(default_factory=set)

    def go(self) -> None:
        """All of the step."""
        self._put_state()
        for number in self.listing.before:
            self._run(number, -1)
        for sweep in self.listing.sweeps:
            self._loop(sweep)
            for number in sweep.ends:
                self._run(number, -1)
            # Of the step alone something stays after a loop.
            for held in self.held.values():
                for key in [key for key in held if key[1][0] != "step"]:
                    del held[key]
            for number in sweep.updates:
                self._run(number, -1)

    def _put_state(self) -> None:
        step = self.listing.step
        numbers, batch = step.blueprint.numbers, set(step.blueprint.numbers.slices.values())
        for value in (*numbers.inputs, *numbers.constants):
            if value not in batch:
                stage, aval = step.home(value), numbers.variables[value].aval
                shape = step.shardings.leaf(value, stage).shard_shape(aval.shape)
                self._put(stage, ("step", value), -1, math.prod(shape) * aval.dtype.itemsize)

    def _loop(self, listed: SweepListing) -> None:
        for number in listed.starts:
            self._run(number, -1)
        joined = {join.part for join in listed.sweep.joins}
        for job in listed.sweep.order:
            stage_pass = StagePass(job.kind, job.stage)  # pyright: ignore[reportArgumentType]
            number = listed.passes.get(stage_pass)
            if number is None:
                continue
            self._run(number, job.microbatch)
            self._drop(job, listed.sweep.loops[stage_pass].program.last)
            self._send(number, job, listed, joined)

    def _drop(self, job: Job, values: Any) -> None:
        held = self.held[self._group(job.stage)]
        for value in values:
            for kind in ("part", "microbatch"):
                held.pop((job.stage, (kind, value), job.microbatch), None)

    def _send(self, number: int, job: Job, listed: SweepListing, joined: set[int]) -> None:
        """What a pass has made, on the stages that read it."""
        loop = listed.sweep.loops[StagePass(job.kind, job.stage)]  # pyright: ignore[reportArgumentType]
        program, answer = self.listing.programs[number], self.answers[number]
        for key, n_bytes in zip(program.makes, answer.output_bytes):
            if key[0] != "microbatch":
                continue
            for stage, _ in loop.routes[key[1]]:
                # Elsewhere it takes what the first program that reads it there says.
                here = n_bytes if stage == job.stage else self._input_bytes.get((stage, key), 0)
                self._put(stage, key, job.microbatch, here)
            if key[1] in joined:
                self._put(job.stage, key, job.microbatch, n_bytes)

    @cached_property
    def _input_bytes(self) -> dict[tuple[int, Key], int]:
        return {
            (listed.program.stage, key): n_bytes
            for listed, answer in zip(self.listing.programs, self.answers, strict=True)
            for key, n_bytes in zip(listed.reads, answer.input_bytes)
        }

    def _run(self, number: int, microbatch: int) -> None:
        """Run a program: what it reads is there, what it makes is there after it."""
        listed, answer = self.listing.programs[number], self.answers[number]
        stage, memory = listed.program.stage, answer.memory
        group = self._group(stage)
        if memory is None:
            self.unknown.add(group)
            return
        for key, n_bytes in zip(listed.reads, answer.input_bytes, strict=True):
            # A part of the batch, and a value of the step that another stage owns, come now.
            if key[0] in ("part", "step"):
                self._put(stage, key, microbatch if key[0] == "part" else -1, n_bytes)
        held = self.held[group]
        running = memory.outputs - memory.aliased + memory.temporaries
        self.peak[group] = max(self.peak[group], sum(held.values()) + running)
        for place in listed.program.donated:
            held.pop((stage, listed.reads[place], -1), None)
        for key, n_bytes in zip(listed.makes, answer.output_bytes, strict=True):
            if key[0] != "microbatch":
                self._put(stage, key, -1, n_bytes)

    def _group(self, stage: int) -> int:
        return stage % len(self.listing.record.groups)

    def _put(self, stage: int, key: Key, microbatch: int, n_bytes: int) -> None:
        if key[0] != "number":
            self.held[self._group(stage)].setdefault((stage, key, microbatch), n_bytes)
