"""One step of a pipeline: the host hands the stages their programs in the order of the schedule,
and waits for none.

Of several processes, each goes through all of it and leaves out what none of its devices has a part
in.

    inputs -> pre -> per loop: start, passes in order, finish, joins, update -> outputs

Each stage that reads a value of a microbatch holds it until its last use there; so it is with
values of the step.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend import core
from jax.sharding import NamedSharding
import numpy as np

from automap.pipeline.schedules import PASSES, Job
from automap.pipeline.simulation import simulated_step
from automap.plan.pipeline import PipelineRecord
from automap.runtime.pipeline.assembly import Assembly, SweepFunctions
from automap.runtime.pipeline.compiled import part_function
from automap.runtime.pipeline.divide import StagePass
from automap.runtime.pipeline.places import TransferForm
from automap.runtime.processes import is_own
from automap.runtime.transfer import send


_part = jax.jit(lambda x, i, n: lax.dynamic_slice_in_dim(x, i * n, n), static_argnums=2)


def run_step(assembly: Assembly, inputs: Sequence[Any], on_job: Callable[[Job], None]) -> list[Any]:
    """The step's outputs for its flat inputs; `on_job` is called with every pass when its stage is
    given it.
    """
    pieces: list[Any] = [None] * len(assembly.programs.blueprint.numbers.inputs)
    for leaf, stored in zip(inputs, assembly.inputs, strict=True):
        for number, piece in zip(stored.numbers, stored.split(leaf), strict=True):
            pieces[number] = piece
    values = _StepValues(assembly, pieces)
    for once, function in assembly.programs.pre:
        made = function(*(values.get(v, once.stage) for v in once.inputs))
        values.keep(once.stage, once.outputs, made)
    for sweep in assembly.programs.sweeps:
        _microbatches(values, sweep, on_job)
        for update, function in sweep.updates:
            made = function(*(values.get(v, update.stage) for v in update.inputs))
            values.keep(update.stage, update.outputs, made)
    made = list(values.outputs())
    outputs = [stored.join([made[n] for n in stored.numbers]) for stored in assembly.outputs]
    if assembly.everywhere is None:
        return outputs
    return [
        x if leaf in assembly.state else send(x, assembly.everywhere)
        for leaf, x in enumerate(outputs)
    ]


class _StepValues:
    """The values of one step that are not of one microbatch, by number and stage."""

    def __init__(self, assembly: Assembly, inputs: Sequence[Any]) -> None:
        numbers = assembly.programs.blueprint.numbers
        self._assembly = assembly
        self._given = dict(zip(numbers.inputs, inputs, strict=True))
        self._given.update(zip(numbers.constants, numbers.program.values, strict=True))
        self._by_stage: dict[tuple[int, int], Any] = {}

    def get(self, value: int, stage: int) -> Any:
        """A value on a stage; what several stages read comes to each from its owner."""
        if (value, stage) not in self._by_stage:
            home = self._assembly.programs.home(value)
            source = self._given[value] if stage == home else self.get(value, home)
            self._by_stage[value, stage] = send(
                source, self._assembly.programs.shardings.leaf(value, stage)
            )
        return self._by_stage[value, stage]

    def keep(self, stage: int, values: Sequence[int], arrays: Sequence[Any]) -> None:
        """Hold what a stage made."""
        self._by_stage.update(((v, stage), x) for v, x in zip(values, arrays, strict=True))

    def received(self, form: TransferForm, value: jax.Array, stage: int) -> NamedSharding:
        """Where a value of a microbatch comes to on another stage."""
        place = self._assembly.programs.places[stage]
        return place.received(form.dims(place.replica_axes), value)

    def number(self, microbatch: int, stage: int) -> jax.Array:
        """A microbatch's number on a stage."""
        return self._assembly.numbers[stage][microbatch]

    def part(self, value: int, microbatch: int) -> Any:
        """A microbatch's part of a batch input, where the whole is."""
        # The host's arrays are sliced by numpy, so that no device gets more than its part.
        number = self._assembly.programs.blueprint.numbers.slices[value]
        whole = self._given[number]
        n = whole.shape[0] // self._assembly.programs.microbatches
        if isinstance(whole, np.ndarray):
            return whole[microbatch * n : (microbatch + 1) * n]
        if self._assembly.everywhere is None or is_own(whole):
            return _part(whole, microbatch, n)
        home = self._assembly.programs.home(number)
        place = self._assembly.programs.places[home]
        return part_function(place, n)(self.get(number, home), np.int32(microbatch))

    def outputs(self) -> Iterator[Any]:
        """The step's results, new versions of inputs where the inputs belong."""
        for atom, stage in zip(
            self._assembly.programs.blueprint.numbers.program.outputs,
            self._assembly.programs.output_stages,
            strict=True,
        ):
            if isinstance(atom, core.Literal):
                value = np.asarray(atom.val, jax.typeof(atom.val).dtype)
                yield send(value, self._assembly.programs.places[stage].whole)
            else:
                yield self.get(self._assembly.programs.blueprint.numbers.number[atom], stage)


def _microbatches(
    values: _StepValues, sweep: SweepFunctions, on_job: Callable[[Job], None]
) -> None:
    """One loop; what it made for the whole step is held then."""
    totals = {stage_pass: loop.start() for stage_pass, loop in sweep.loops.items()}
    # (value, stage, microbatch): what is on its stage until its last reader there has run.
    here: dict[tuple[int, int, int], Any] = {}
    joined: dict[int, list[Any]] = {join.part: [None] * sweep.microbatches for join in sweep.joins}
    for job in sweep.order:
        on_job(job)
        stage_pass, i = StagePass(job.kind, job.stage), job.microbatch  # pyright: ignore[reportArgumentType]
        # A stage without equations of this pass: all of them were copied or belong to others.
        loop = sweep.loops.get(stage_pass)
        if loop is None:
            continue
        for value in loop.program.parts:
            if (value, job.stage, i) not in here:
                here[value, job.stage, i] = send(values.part(value, i), loop.part_shardings[value])
        read = [
            [here[v, job.stage, i] for v in vs]
            for vs in (loop.program.parts, loop.program.received)
        ]
        fixed = [values.get(v, job.stage) for v in loop.program.fixed]
        # No later pass of the stage reads them: from here on this one alone keeps them alive.
        for value in loop.program.last:
            del here[value, job.stage, i]
        totals[stage_pass], made = loop.run(
            totals[stage_pass], values.number(i, job.stage), read[0], fixed, read[1]
        )
        for value, array in zip(loop.program.made, made, strict=True):
            # Sent at once: the transfer overlaps with what the stage does next.
            for stage, form in loop.routes[value]:
                here[value, stage, i] = (
                    array
                    if stage == job.stage
                    else send(array, values.received(form, array, stage))
                )
            if value in joined:
                joined[value][i] = array
    for stage_pass, loop in sweep.loops.items():
        values.keep(stage_pass.stage, loop.totals, loop.finish(totals[stage_pass]))
    for join in sweep.joins:
        values.keep(join.stage, [join.whole], [join.run(joined.pop(join.part))])


def simulated_order(record: PipelineRecord) -> tuple[Job, ...]:
    """All passes in the order in which the simulation starts them."""
    # A stage's own passes are in the schedule's order in it; between stages any order that respects
    # the transfers is right, and this one hands out first what can start first.
    step = simulated_step(record)
    passes = [n for n, job in enumerate(step.jobs) if job.kind in PASSES]
    passes.sort(key=lambda n: (step.timeline.start_seconds[n], n))
    return tuple(step.jobs[n] for n in passes)


def forward_order(record: PipelineRecord) -> tuple[Job, ...]:
    """The forward passes of a loop without a backward pass, one microbatch after another."""
    return tuple(
        Job("forward", s, m) for m in range(record.microbatches) for s in range(len(record.stages))
    )
