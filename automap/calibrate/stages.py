"""Stages of operators measured on this machine's devices, as a search asks for them.

The search of `automap.streams.measured` asks for a stage; the profile answers if it has one of that
fingerprint, else the stage's program is run in a loop as kernels are (`automap.calibrate.loops`):

    trip   (inputs, results of the last trip) -> barrier -> (inputs, results of the program)

The barrier makes each trip wait for the one before it, so that the compiler neither moves a trip's
work out of the loop nor drops what nobody reads; it is no kernel, and nothing is taken off for it
                                                                           -> in: `stage_loop`

When the budget is over, or after Ctrl-C, no more is measured: the search ends with what there is.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
from jax import lax
from jax.extend.core import jaxpr_as_fun

from automap.calibrate.loops import Arrays, KernelLoop
from automap.calibrate.session import Unmeasurable
from automap.calibrate.timing import Clock, Timing
from automap.config import Options
from automap.cost.profile import KernelProfile, StageTime
from automap.deadline import Deadline
from automap.planner.streams import priced_operators, stage_limits, stage_programs
from automap.program.trace import Workload
from automap.streams.measured import find_measured
from automap.streams.schedule import Stage
from automap.streams.stage_programs import StagePrograms
from automap.topology.model import Topology


# Stages that a crash may lose.
_SAVE_EVERY = 10


class LoopStopwatch(Protocol):
    """Measures a loop; raises `Unmeasurable` for what the device cannot run."""

    def time_loop(self, program: KernelLoop, expected_seconds: float) -> Timing:
        """Seconds of one trip."""
        ...


@dataclass(kw_only=True)
class StageSession:
    """What measures the stages of a step; `profile` grows. `deadline_seconds` is a reading of the
    clock.
    """

    stopwatch: LoopStopwatch
    profile: KernelProfile
    on_progress: Callable[[int, object], None]
    save: Callable[[KernelProfile], None]
    clock: Clock
    deadline_seconds: float
    on_streams: bool
    measured: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    is_interrupted: bool = False
    is_over: bool = False
    _known: dict[str, float] = field(default_factory=dict)

    def run(self, workload: Workload, topology: Topology) -> None:
        """Measure what the search of the step's stages asks for."""
        priced = priced_operators(workload, topology)
        programs = stage_programs(workload, priced)
        if programs is None:
            return
        self._known = {time.signature: time.seconds for time in self.profile.stages}
        limits = stage_limits(Options(space="streams"))
        try:
            find_measured(
                priced, "auto", limits, Deadline.never(), lambda stage: self._ask(programs, stage)
            )
        finally:
            self.save(self.profile)

    def _ask(self, programs: StagePrograms, stage: Stage) -> float | None:
        """Seconds of a stage; None if there is no time left, or it cannot be measured."""
        signature = programs.signature(stage)
        if signature is None or signature in self._known:
            return self._known.get(signature or "")
        self.is_over = self.is_over or self.clock() >= self.deadline_seconds
        if self.is_over or self.is_interrupted:
            return None
        label = " | ".join(programs.operators[group[0]].label for group in stage.groups)
        self.on_progress(self.measured, label)
        try:
            seconds = self._seconds(programs, stage)
        except Unmeasurable as error:
            self.skipped.append((label, str(error)))
            return None
        except KeyboardInterrupt:
            self.is_interrupted = True
            return None
        self._known[signature] = seconds
        self.measured += 1
        self.profile = self.profile.with_stages([StageTime(signature=signature, seconds=seconds)])
        if self.measured % _SAVE_EVERY == 0:
            self.save(self.profile)
        return seconds

    def _seconds(self, programs: StagePrograms, stage: Stage) -> float:
        loop = stage_loop(programs.program(stage, on_streams=self.on_streams))
        timing = self.stopwatch.time_loop(loop, stage.seconds)
        if timing.seconds <= 0:
            raise Unmeasurable("took no longer than an empty loop")
        return timing.seconds


def stage_loop(jaxpr: Any) -> KernelLoop:
    """The loop that measures a stage's program. Raises `Unmeasurable` for inputs that are no
    numbers.
    """
    shapes = []
    for aval in (*jaxpr.in_avals, *jaxpr.out_avals):
        if jax.numpy.issubdtype(aval.dtype, jax.dtypes.extended):
            raise Unmeasurable(f"an input of type {aval.dtype}; allowed: numbers")
        shapes.append(jax.ShapeDtypeStruct(aval.shape, aval.dtype))
    run, count = jaxpr_as_fun(jaxpr), len(jaxpr.in_avals)

    def trip(carry: Arrays) -> Arrays:
        inputs, _ = lax.optimization_barrier((carry[:count], carry[count:]))
        return (*inputs, *run(*inputs))

    return KernelLoop(tuple(shapes), trip)
