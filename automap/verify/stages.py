"""The programs of a pipeline's stages as files that a compiler's process can compile, each with
what it reads and where that lies.

The programs are those of the runtime (`automap.runtime.pipeline.assembly`), made on abstract meshes
and exported one by one, in an order in which each comes after those that make what it reads:

    before -> of each loop: start, passes of a microbatch, finish, join -> update   -> in: `_list`

Where a value lies is known (state, sums, all of stages of replicas), or as the program that makes
it leaves it, which the compiler says when it has compiled that one
                                                        -> in: `automap.verify.messages.StageInput`
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import jax
from jax import numpy as jnp
from jax.sharding import NamedSharding

from automap.plan.checks import Spec
from automap.plan.pipeline import PipelineRecord, StageRecord
from automap.plan.record import PlanRecord
from automap.runtime.pipeline.assembly import (
    Assembler,
    JoinFunction,
    LoopFunctions,
    StepPrograms,
    SweepFunctions,
)
from automap.runtime.pipeline.compiled import chooses_layout, transfer_form
from automap.runtime.pipeline.divide import StagePass
from automap.runtime.pipeline.places import StagePlace, abstract_places
from automap.runtime.pipeline.programs import OnceProgram
from automap.runtime.pipeline.step import assembler
from automap.runtime.pipeline.update import UpdateProgram
from automap.runtime.planned_calls import PlannedCalls
from automap.step.call import TracedCall
from automap.topology.model import Platform
from automap.verify.messages import ProgramKind, StageInput, StageProgram, StagesRequest
from automap.verify.program import LOCATION_OR_NAME, ExportedStep, export_program, planned_tpu


Key = tuple[Literal["step", "part", "microbatch", "total", "number"], int]
"""What a value is: of the step, a part of the batch, of a microbatch, a growing sum, or the number
of the microbatch; and its number in the blueprint."""


@dataclass(frozen=True, slots=True)
class ListedProgram:
    """A program with the values of its flat inputs and outputs."""

    program: StageProgram
    exported: ExportedStep
    reads: tuple[Key, ...]
    makes: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class SweepListing:
    """The numbers of a loop's programs, in the order in which they run but for the passes; `ends`
    are those that finish sums and join outputs.
    """

    sweep: SweepFunctions
    starts: tuple[int, ...]
    passes: Mapping[StagePass, int]
    ends: tuple[int, ...]
    updates: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StageListing:
    """All programs of a pipeline's step; `before` has the numbers of those before the loops."""

    record: PipelineRecord
    step: StepPrograms
    programs: tuple[ListedProgram, ...]
    before: tuple[int, ...]
    sweeps: tuple[SweepListing, ...]

    @property
    def request(self) -> StagesRequest:
        """What the compiler's process is asked."""
        return StagesRequest(
            pipeline=_bare(self.record), programs=tuple(each.program for each in self.programs)
        )


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


def list_programs(plan: PlanRecord, call: TracedCall, platform: Platform) -> StageListing:
    """The programs of a traced call under a pipeline plan, exported for a platform.

    Raises `PlanError` if the plan is of another step, `InputError` for what cannot be exported, and
    what `automap.runtime.pipeline.step.assembler` raises.
    """
    calls = PlannedCalls(plan, is_program_known=False)
    call = calls.levered(call)
    record = calls.plan_for(call).pipeline
    assert record is not None  # noqa: S101 - of pipelines only, as is said
    made = assembler(call, record, abstract_places(record, planned_tpu(plan)))
    return _Lister(made, made.programs(), platform).listing(record)


@dataclass(frozen=True, slots=True)
class _Operand:
    """A flat input of a program."""

    key: Key
    aval: Any
    lies: StageInput


@dataclass
class _Lister:
    """A listing in progress: `made` says which program's output a value on a stage is, `avals`
    what it is.
    """

    assembler: Assembler
    step: StepPrograms
    platform: Platform
    programs: list[ListedProgram] = field(default_factory=list)
    made: dict[tuple[Key, int], tuple[int, int]] = field(default_factory=dict)
    avals: dict[tuple[Key, int], Any] = field(default_factory=dict)

    def listing(self, record: PipelineRecord) -> StageListing:
        """All programs of the step."""
        before = tuple(self._once("before", once, run, ()) for once, run in self.step.pre)
        sweeps = tuple(self._sweep(n, sweep) for n, sweep in enumerate(self.step.sweeps))
        return StageListing(record, self.step, tuple(self.programs), before, sweeps)

    def _sweep(self, number: int, sweep: SweepFunctions) -> SweepListing:
        adding = [loop for loop in sweep.loops.values() if loop.totals]
        starts = tuple(self._start(loop) for loop in adding)
        # A microbatch's passes in the schedule's order: each after what it reads.
        passes = [StagePass(j.kind, j.stage) for j in sweep.order if not j.microbatch]  # pyright: ignore[reportArgumentType]
        by_pass = {p: self._loop(sweep.loops[p]) for p in passes if p in sweep.loops}
        ends = (*map(self._finish, adding), *map(self._join, sweep.joins))
        updates = (
            self._once("update", p, run, self.assembler.donated_positions(number, p))
            for p, run in sweep.updates
        )
        return SweepListing(sweep, starts, by_pass, ends, tuple(updates))

    def _once(
        self,
        kind: ProgramKind,
        program: OnceProgram | UpdateProgram,
        run: Any,
        donated: Sequence[int],
    ) -> int:
        stage = program.stage
        operands = [self._step_wide(v, stage) for v in program.inputs]
        outputs = [_spec(self.step.shardings.sharding(v, stage)) for v in program.outputs]
        makes: list[Key] = [("step", v) for v in program.outputs]
        return self._add(kind, stage, run, operands, (outputs, makes), donated)

    def _start(self, loop: LoopFunctions) -> int:
        stage = loop.program.stage_pass.stage
        return self._add("start", stage, loop.start, [], self._totals(loop))

    def _totals(self, loop: LoopFunctions) -> tuple[list[Spec | None], list[Key]]:
        """The specs and keys of a loop's growing sums."""
        place = self.step.places[loop.program.stage_pass.stage]
        return [_spec(form.sharding(place)) for form in loop.forms], [
            ("total", v) for v in loop.totals
        ]

    def _growing(self, loop: LoopFunctions) -> list[_Operand]:
        stage = loop.program.stage_pass.stage
        return [
            _Operand(key, self.avals[key, stage], StageInput(spec=spec))
            for spec, key in zip(*self._totals(loop), strict=True)
        ]

    def _loop(self, loop: LoopFunctions) -> int:
        program, stage = loop.program, loop.program.stage_pass.stage
        place = self.step.places[stage]
        number = _Operand(("number", 0), jax.ShapeDtypeStruct((), jnp.int32), StageInput(spec=()))
        operands = (
            self._growing(loop),
            number,
            [self._part(loop, v) for v in program.parts],
            [self._step_wide(v, stage) for v in program.fixed],
            [self._sent(v, stage) for v in program.received],
        )
        specs, makes = self._totals(loop)
        forms = {v: transfer_form(self.assembler.stage_programs[stage], v) for v in program.made}
        specs += [_spec(place.sent(forms[v])) for v in program.made]
        makes = [*makes, *(_microbatch_key(v) for v in program.made)]
        donated = range(len(loop.totals))
        numbers = self.assembler.stage_programs[stage]
        free = [
            place
            for place, v in enumerate(program.made, len(loop.totals))
            if chooses_layout(numbers, program, v)
        ]
        kind = program.stage_pass.kind
        return self._add(kind, stage, loop.run, operands, (specs, makes), donated, free)

    def _finish(self, loop: LoopFunctions) -> int:
        stage = loop.program.stage_pass.stage
        outputs = [_spec(self.step.shardings.sharding(v, stage)) for v in loop.totals]
        makes: list[Key] = [("step", v) for v in loop.totals]
        return self._add("finish", stage, loop.finish, (self._growing(loop),), (outputs, makes))

    def _join(self, join: JoinFunction) -> int:
        part = self._sent(join.part, join.stage)
        whole = _spec(self.step.places[join.stage].whole)
        makes: list[Key] = [("step", join.whole)]
        operands = ([part] * self.step.microbatches,)
        return self._add("join", join.stage, join.run, operands, ([whole], makes))

    def _step_wide(self, value: int, stage: int) -> _Operand:
        """A value of the whole step: as a program of the stage made it, or from its owner."""
        key: Key = ("step", value)
        if (key, stage) in self.made:
            return _Operand(key, self.avals[key, stage], StageInput(made=self.made[key, stage]))
        home = self.step.home(value)
        aval = self.avals.get((key, home))
        if aval is None:
            aval = _plain(self.assembler.stage_programs[stage].variables[value].aval)
        spec = _spec(self.step.shardings.leaf(value, stage))
        return _Operand(key, aval, StageInput(spec=spec))

    def _part(self, loop: LoopFunctions, value: int) -> _Operand:
        numbers = self.step.blueprint.numbers
        whole = numbers.variables[numbers.slices[value]].aval
        samples, *rest = whole.shape
        aval = jax.ShapeDtypeStruct((samples // self.step.microbatches, *rest), whole.dtype)
        return _Operand(("part", value), aval, StageInput(spec=_spec(loop.part_shardings[value])))

    def _sent(self, value: int, stage: int) -> _Operand:
        key = _microbatch_key(value)
        # One pass makes it, on this stage or another one.
        maker = next(s for s in range(len(self.step.places)) if (key, s) in self.made)
        aval, made = self.avals[key, maker], self.made[key, maker]
        if maker == stage:
            return _Operand(key, aval, StageInput(made=made))
        axes = self.step.places[stage].replica_axes
        dims = transfer_form(self.assembler.stage_programs[stage], value).dims(axes)
        return _Operand(key, aval, StageInput(made=made, received=dims))

    def _add(
        self,
        kind: ProgramKind,
        stage: int,
        run: Any,
        operands: Sequence[Any],
        makes: tuple[Sequence[Spec | None], Sequence[Key]],
        donated: Sequence[int] = (),
        free: Sequence[int] = (),
    ) -> int:
        """A program's number; `operands` are nested as its arguments are."""
        place = self.step.places[stage]
        is_operand = lambda x: isinstance(x, _Operand)  # noqa: E731
        given = jax.tree.map(lambda x: _on(place, x), operands, is_leaf=is_operand)
        exported = export_program(run, given, self.platform, LOCATION_OR_NAME)
        flat: list[_Operand] = jax.tree.leaves(operands, is_leaf=is_operand)
        specs, keys = makes
        program = StageProgram(
            kind=kind,
            stage=stage,
            sha256=exported.sha256,
            inputs=tuple(x.lies for x in flat),
            outputs=tuple(specs),
            donated=tuple(donated),
            laid_freely=tuple(free),
        )
        reads = tuple(x.key for x in flat)
        number = len(self.programs)
        self.programs.append(ListedProgram(program, exported, reads, tuple(keys)))
        results = jax.tree.leaves(jax.eval_shape(run, *given))
        for output, (key, aval) in enumerate(zip(keys, results, strict=True)):
            self.made[key, stage] = number, output
            self.avals[key, stage] = _plain(aval)
        return number


def _on(place: StagePlace, operand: _Operand) -> jax.ShapeDtypeStruct:
    """What is exported of an operand: with a sharding if that is known."""
    aval, spec = operand.aval, operand.lies.spec
    sharding = None if spec is None else place.split([axes or () for axes in spec])
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding)


def _microbatch_key(value: int) -> Key:
    return "microbatch", value


def _plain(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def _spec(sharding: NamedSharding | None) -> Spec | None:
    if sharding is None:
        return None
    entries = sharding.spec
    return tuple((e,) if isinstance(e, str) else tuple(e) if e else None for e in entries)
