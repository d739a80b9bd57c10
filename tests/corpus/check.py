"""An entry planned for machines that are not here, and run for three steps under four plans beside
one device.

error     of each array that a step made, rms, after one, two and three steps
allowed   as `automap.verify.numerics` allows it: what sums of another order may differ by, and what
          rounding the arguments otherwise before each step does on one device; of several draws the
          largest, as where a step compares numbers one draw may well decide as the step itself did
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from random import Random
import zlib

import automap
from automap.api.plan import Plan
from automap.errors import InputError
from automap.planner.records import build_plan
from automap.program import Workload, trace_step
from automap.space.point import StorageLevel
from automap.verify.messages import LeafErrors
from automap.verify.numerics import (
    SAFETY,
    allowed_error,
    least_precise,
    rounding_error,
    tolerance,
)
from automap.verify.run_both import leaf_errors
from tests.automap.runtime.random_outcomes import random_outcome
from tests.corpus.entry import Entry
from tests.corpus.trajectory import Made, Trajectory, run, run_with_noise


MACHINES = ("v5e:2x4", "8xh100")
DEVICES = 8
_LOCAL = f"cpu:{DEVICES}"
_BUDGET_SECONDS = 10.0
_DRAWS = 4
# Where one rounding of the arguments moves an array by more of what the steps do to it, that is
# rounding and no more (the gradient of a bias before a batch norm): only its size is compared.
_NOISE = 0.1


@dataclass(frozen=True)
class Comparison:
    """Of the arrays under a plan the one with the largest error over what is allowed."""

    excess: float
    where: str


@dataclass(frozen=True)
class Reference:
    """What one device computes, several times with other roundings, and what sums may differ by."""

    exact: Trajectory
    noisy: tuple[Trajectory, ...]
    relative: float

    def compare(self, other: Trajectory) -> Comparison:
        """Hold a plan's run against it."""
        if other.keys() != self.exact.keys():
            missing = sorted(self.exact.keys() ^ other.keys())
            return Comparison(float("inf"), f"arrays of one side only: {', '.join(missing[:3])}")
        found = [Comparison(self._excess(path, made), path) for path, made in other.items()]
        return max(found, key=lambda c: c.excess)

    def _excess(self, path: str, made: Made) -> float:
        exact = self.exact[path]
        if exact.value.shape != made.value.shape or exact.value.dtype != made.value.dtype:
            return float("inf")
        errors = [self._errors(exact, made, noisy[path]) for noisy in self.noisy]
        worst = replace(errors[0], rounding=max(e.rounding for e in errors))
        allowed = allowed_error(worst, str(exact.value.dtype), self.relative)
        if exact.value.dtype.kind == "f" and worst.rounding > _NOISE * worst.change:
            allowed = max(allowed, SAFETY * (worst.change + worst.rounding))
        return 0.0 if worst.error == 0 else worst.error / allowed if allowed else float("inf")

    @staticmethod
    def _errors(exact: Made, made: Made, noisy: Made) -> LeafErrors:
        return leaf_errors(exact.value, made.value, noisy.value, (exact.before, noisy.before))


def reference(entry: Entry) -> Reference:
    """Run an entry on one device, without and with noise."""
    call = entry.make()
    dtype = least_precise(_workload(entry).reemitter)
    # First, as the step without noise may donate its arguments or change them.
    noisy = tuple(
        run_with_noise(call, entry.carried, rounding_error(dtype), seed) for seed in range(_DRAWS)
    )
    return Reference(run(call.step, call, entry.carried), noisy, tolerance(dtype, DEVICES))


@cache
def _workload(entry: Entry) -> Workload:
    call = entry.make()
    return trace_step(call.step, call.args, call.kwargs)


@cache
def planned_for(entry: Entry, machine: str) -> Plan:
    """The plan for a machine, made once in a process."""
    call = entry.make()
    return automap.plan(call.step, call.args, call.kwargs, topology=machine, budget=_BUDGET_SECONDS)


def run_searched(entry: Entry) -> Trajectory:
    """Three steps as a user has them: `parallelize`, which plans at the first call."""
    call = entry.make()
    step = automap.parallelize(call.step, topology=_LOCAL, budget=_BUDGET_SECONDS)
    return run(step, call, entry.carried)


def run_of_machine(entry: Entry) -> Trajectory:
    """Three steps under the plan for a machine whose links are fast, on CPU devices."""
    call = entry.make()
    return run(planned_for(entry, MACHINES[-1]).jit(call.step), call, entry.carried)


def run_zero_3(entry: Entry) -> Trajectory | None:
    """Three steps under ZeRO-3, by a plan and its `jit`; None if no input is a batch."""
    call = entry.make()
    try:
        plan = automap.plan(call.step, call.args, call.kwargs, topology=_LOCAL, preset="zero-3")
    except InputError as error:
        if "does not suit" in str(error):
            return None
        raise
    return run(plan.jit(call.step), call, entry.carried)


def run_random(entry: Entry) -> Trajectory | None:
    """Three steps under a plan drawn at random, the same for a name; None if nothing splits."""
    call = entry.make()
    rng = Random(zlib.crc32(entry.name.encode()))
    for _ in range(_DRAWS):
        outcome = random_outcome(_workload(entry), rng, tuple(StorageLevel))
        point = outcome.best.point
        if any(point.compute) and outcome.context.space.is_valid(point):
            return run(Plan.from_record(build_plan(outcome)).jit(call.step), call, entry.carried)
    return None


RUNS: dict[str, Callable[[Entry], Trajectory | None]] = {
    "searched": run_searched,
    f"plan for {MACHINES[-1]}": run_of_machine,
    "zero-3": run_zero_3,
    "random": run_random,
}
