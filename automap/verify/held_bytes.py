"""The most bytes that each stage's devices hold in a step, by what the compiler says of the stages'
programs.

The step is gone through pass by pass in the order of the schedule, as the runtime does it
(`automap.runtime.pipeline.runner`), with bytes in the place of arrays:

    held    state, what the stage was sent of other stages' state, sums that grow, and of each
            microbatch what a later pass of the stage reads
    peak    the largest of held + outputs - aliased + temporaries, over all programs that run

Batch inputs count by their microbatch's part: the whole batch is in the memory of the host. The
stages of a group of interleaved ones share their devices, whose bytes are those of all of them.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
import math
from typing import Any

from automap.pipeline.schedules import Job
from automap.runtime.pipeline.divide import StagePass
from automap.verify.messages import ProgramAnswer
from automap.verify.stages import Key, StageListing, SweepListing


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
