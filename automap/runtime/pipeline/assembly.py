"""A blueprint with its functions: all that is made once for a kind of call, and run every step."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding
import numpy as np

from automap.pipeline.schedules import Job
from automap.runtime.pipeline.blueprint import Blueprint
from automap.runtime.pipeline.compiled import (
    finish_function,
    join_function,
    loop_function,
    once_function,
    start_function,
    transfer_form,
)
from automap.runtime.pipeline.divide import StagePass
from automap.runtime.pipeline.loops import Piece
from automap.runtime.pipeline.numbered import Numbered
from automap.runtime.pipeline.pinned import StagePins
from automap.runtime.pipeline.places import StagePlace, SumForm, TransferForm
from automap.runtime.pipeline.programs import LoopProgram, OnceProgram
from automap.runtime.pipeline.storage import StoredLeaf, store_leaf
from automap.runtime.pipeline.update import UpdateProgram
from automap.runtime.pipeline.value_shardings import ValueShardings
from automap.runtime.processes import one_device_each, process_numbers
from automap.runtime.transfer import send


@dataclass(frozen=True)
class LoopFunctions:
    """A loop program: `routes` are the stages that read a value it makes, and how it travels;
    `totals` its sums' values, which grow as `forms` say.
    """

    program: LoopProgram
    run: Any
    start: Any
    finish: Any
    totals: tuple[int, ...]
    forms: Sequence[SumForm]
    part_shardings: Mapping[int, NamedSharding]
    routes: Mapping[int, Sequence[tuple[int, TransferForm]]]


@dataclass(frozen=True, slots=True)
class JoinFunction:
    """An output per sample, `whole`, put together of a value of the microbatches."""

    whole: int
    part: int
    stage: int
    run: Any


@dataclass(frozen=True)
class SweepFunctions:
    """A loop over the microbatches and the update after it."""

    microbatches: int
    order: Sequence[Job]
    loops: Mapping[StagePass, LoopFunctions]
    joins: Sequence[JoinFunction]
    updates: Sequence[tuple[UpdateProgram, Any]]


@dataclass(frozen=True)
class StepPrograms:
    """All programs of a step, on devices or on abstract meshes; `output_stages` are where results
    are to be.
    """

    blueprint: Blueprint
    places: Sequence[StagePlace]
    shardings: ValueShardings
    microbatches: int
    pre: Sequence[tuple[OnceProgram, Any]]
    sweeps: Sequence[SweepFunctions]
    output_stages: Sequence[int]

    def home(self, value: int) -> int:
        """The stage that a value of the whole step comes from."""
        owner = self.blueprint.owner
        return owner[value] if value in owner else self.blueprint.home[value]

    def structure(self) -> str:
        """What runs in which order, as text that is the same in all processes that run the same."""
        numbers = self.blueprint.numbers
        sweeps = [
            (
                sweep.order,
                [loop.program for loop in sweep.loops.values()],
                [p for p, _ in sweep.updates],
            )
            for sweep in self.sweeps
        ]
        equations = numbers.before, numbers.sweeps, numbers.after
        return str((equations, [p for p, _ in self.pre], sweeps, self.output_stages))


@dataclass(frozen=True)
class Assembly:
    """The programs of a step on devices; `inputs` and `outputs` say how the user's arrays are
    stored, `numbers` has those of the microbatches on each stage.

    `state` are the outputs, by leaf, that replace inputs. The others are `everywhere` if there are
    several processes.
    """

    programs: StepPrograms
    inputs: Sequence[StoredLeaf]
    outputs: Sequence[StoredLeaf]
    numbers: Sequence[Sequence[jax.Array]]
    state: Collection[int]
    everywhere: NamedSharding | None


@dataclass(frozen=True)
class Assembler:
    """Makes an assembly; `stage_programs` has the program of each stage's share of a microbatch,
    numbered.

    `shardings` says what its inputs and outputs are of the step's and where they are; `pins` are
    the constraints of each stage, `donated` the inputs that may be overwritten (by leaf of the
    step).
    `orders` are those of a loop with a backward pass and of one without; XLA compiles the functions
    at their first call.
    """

    blueprint: Blueprint
    stage_programs: Sequence[Numbered]
    shardings: ValueShardings
    pins: Sequence[StagePins | None]
    microbatches: int
    orders: Mapping[str, Sequence[Job]]
    donated: frozenset[int]

    def programs(self) -> StepPrograms:
        """The programs' functions."""
        pre = self.blueprint.pre
        return StepPrograms(
            blueprint=self.blueprint,
            places=self.shardings.places,
            shardings=self.shardings,
            microbatches=self.microbatches,
            pre=[(p, self._once(p, self._before(p), ())) for p in pre if p.outputs],
            sweeps=[self._sweep(number) for number in range(len(self.blueprint.sweeps))],
            output_stages=self._output_stages(),
        )

    def assembly(self) -> Assembly:
        """The programs' functions on devices, with all that is on them before a step."""
        blueprint, cut, programs = self.blueprint, self.shardings.cut, self.programs()
        input_stages = [blueprint.owner[v] for v in blueprint.numbers.inputs]
        program, results = blueprint.numbers.program, blueprint.numbers.outputs
        places = self.shardings.places
        # All stages' devices, those of interleaved stages once.
        devices = list(dict.fromkeys(d for place in places for d in place.devices))
        is_shared = len(process_numbers(devices)) > 1
        return Assembly(
            programs=programs,
            inputs=self._stored(cut.inputs, blueprint.numbers.inputs, input_stages, program.inputs),
            outputs=self._stored(cut.outputs, results, programs.output_stages, program.outputs),
            numbers=[
                [send(np.int32(i), place.whole) for i in range(self.microbatches)]
                for place in places
            ],
            state=self.shardings.state.keys(),
            everywhere=one_device_each(devices) if is_shared else None,
        )

    def _output_stages(self) -> list[int]:
        """Where results are to be: new state where the old one is."""
        blueprint = self.blueprint
        number = {piece: n for n, piece in enumerate(self.shardings.cut.inputs)}
        stages = []
        for piece, value in zip(self.shardings.cut.outputs, blueprint.numbers.outputs, strict=True):
            replaced = number.get(Piece(self.shardings.state.get(piece.leaf, -1), piece.range))
            if replaced is not None:
                value = blueprint.numbers.inputs[replaced]
            # A constant result, and one that nothing placed, is stage 0's.
            home = 0 if value is None else blueprint.owner.get(value, blueprint.home.get(value, 0))
            stages.append(home)
        return stages

    def _stored(
        self,
        pieces: Sequence[Piece],
        values: Sequence[int | None],
        stages: Sequence[int],
        atoms: Sequence[Any],
    ) -> list[StoredLeaf]:
        numbers_by_leaf: dict[int, list[int]] = defaultdict(list)
        for number, piece in enumerate(pieces):
            numbers_by_leaf[piece.leaf].append(number)
        result = []
        for _, numbers in sorted(numbers_by_leaf.items()):
            # Pieces are ranges of a leaf's first dimension: together they are as long as it.
            first = atoms[numbers[0]].aval
            length = sum(atoms[n].aval.shape[0] for n in numbers) if len(numbers) > 1 else None
            aval = first if length is None else first.update(shape=(length, *first.shape[1:]))
            ranges = [pieces[n].range for n in numbers]
            parts = [self.shardings.leaf(values[n], stages[n]) for n in numbers]
            result.append(store_leaf(numbers, ranges, parts, aval))
        return result

    def _before(self, program: OnceProgram) -> list[Any]:
        before = self.stage_programs[program.stage].program.before
        return [before[n] for n in program.equations]

    def _once(
        self, program: OnceProgram | UpdateProgram, eqns: Sequence[Any], donated: Sequence[int]
    ) -> Any:
        var, stage = self.stage_programs[program.stage].variables, program.stage
        return once_function(
            eqns,
            [var[v] for v in program.inputs],
            [var[v] for v in program.outputs],
            self.shardings.places[stage],
            [self.shardings.sharding(v, stage) for v in program.outputs],
            self.pins[stage],
            donated,
        )

    def _sweep(self, number: int) -> SweepFunctions:
        programs, update = self.blueprint.sweeps[number]
        sweep = self.blueprint.numbers.sweeps[number]
        loops = {stage_pass: self._loop(number, p) for stage_pass, p in programs.by_pass.items()}
        has_backward = any(stage_pass.kind != "forward" for stage_pass in loops)
        joins = []
        for whole, part in sweep.joins:
            # One pass makes each part, and all parts of an output stay on its stage until the join.
            (stage,) = (r.stage for r, p in programs.by_pass.items() if part in p.made)
            joins.append(
                JoinFunction(
                    whole,
                    part,
                    stage,
                    join_function(self.stage_programs[stage], part, self.shardings.places[stage]),
                )
            )
        return SweepFunctions(
            microbatches=self.microbatches,
            order=self.orders["both" if has_backward else "forward"],
            loops=loops,
            joins=joins,
            updates=[(p, self._update(number, p)) for p in update.programs],
        )

    def _loop(self, number: int, program: LoopProgram) -> LoopFunctions:
        stage = program.stage_pass.stage
        numbers, place = self.stage_programs[stage], self.shardings.places[stage]
        sweep = numbers.program.passes[number]
        totals = tuple(numbers.sweeps[number].sums[n][0] for n in program.sums)
        forms = [
            self.shardings.sum_form(total, sweep.sums[n], stage)
            for total, n in zip(totals, program.sums)
        ]
        readers = self.blueprint.sweeps[number][0].readers
        has_sums = bool(forms)
        return LoopFunctions(
            program=program,
            run=loop_function(numbers, sweep, program, place, forms, self.pins[stage]),
            start=start_function(sweep, program, place, forms) if has_sums else list,
            finish=finish_function(
                sweep, program, place, [self.shardings.sharding(t, stage) for t in totals]
            )
            if has_sums
            else list,
            totals=totals,
            forms=forms,
            part_shardings={
                v: self.shardings.part(v, stage, self.microbatches) for v in program.parts
            },
            routes={
                v: [(s, transfer_form(numbers, v)) for s in sorted(readers.get(v, ()))]
                for v in program.made
            },
        )

    def _update(self, number: int, program: UpdateProgram) -> Any:
        # The equations after the last loop are in the last loop's update: nothing follows them.
        own = self.stage_programs[program.stage].program
        is_last = number == len(self.blueprint.sweeps) - 1
        eqns = (*own.before, *own.passes[number].middle, *(own.after if is_last else ()))
        eqns_here = [eqns[n] for n in program.equations]
        return self._once(program, eqns_here, self.donated_positions(number, program))

    def donated_positions(self, number: int, program: UpdateProgram) -> tuple[int, ...]:
        """Positions of inputs that end in a program of the last update and make room for its
        outputs; none of an update after loop `number` that is not the last.

        They are the state that the user gives away, and after it sums of this step.
        """
        if number < len(self.blueprint.sweeps) - 1:
            return ()
        programs = self.blueprint.sweeps[-1][1].programs
        numbers = self.blueprint.numbers
        later = programs[programs.index(program) + 1 :]
        # A value on its stage may still be sent to another one.
        needed_later = set(numbers.outputs).union(*(p.inputs for p in later))
        # Constants are nobody's to give away: leaf -1 is in no `donated`.
        given = dict.fromkeys(numbers.constants, -1)
        given.update(zip(numbers.inputs, (piece.leaf for piece in self.shardings.cut.inputs)))
        room = Counter(self._type(v, program.stage) for v in program.outputs)
        ending = [
            (v in given, place)
            for place, v in enumerate(program.inputs)
            if v not in needed_later and (v not in given or given[v] in self.donated)
        ]
        donated = []
        # The user's state first: what is of this step alone is freed after it anyway. JAX warns of
        # a donated buffer that fits no output, so no more are given than have room.
        for _, place in sorted(ending, key=lambda pair: not pair[0]):
            kind = self._type(program.inputs[place], program.stage)
            if room[kind]:
                room[kind] -= 1
                donated.append(place)
        return tuple(sorted(donated))

    def _type(self, value: int, stage: int) -> tuple[Any, ...]:
        aval = self.blueprint.numbers.variables[value].aval
        return aval.shape, aval.dtype, self.shardings.sharding(value, stage)
