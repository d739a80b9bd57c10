"""Calibrating this machine: devices -> profile and hardware file.

A profile has the times of loops of one kernel, which the devices run at the same time
                                                                   -> in: `DeviceStopwatch`
Besides it is measured what new memory costs where a runtime takes it from its operating system in
every step. The processor's runtime gives back what a step allocates, so that the next one touches
every page for the first time:

    fresh = (T(results in new memory) - T(results in the operands' memory)) / bytes

of one elementwise kernel on all devices at once. Accelerators keep a pool of memory: 0
                                                                   -> in: `fresh_seconds_per_byte`
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from itertools import chain
import os
from pathlib import Path
from statistics import median
import time
from typing import Final

import jax
from jax import numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np

from automap.calibrate.grid import (
    EFFORTS,
    Depth,
    grid_kernels,
    grid_transfers,
    measurement_grid,
    target_signatures,
)
from automap.calibrate.hardware import calibrated_topology
from automap.calibrate.loops import KernelLoop, compiled_loop
from automap.calibrate.machine import LocalMachine, find_machine
from automap.calibrate.programs import kernel_loop
from automap.calibrate.session import Item, Session, Unmeasurable
from automap.calibrate.stages import StageSession
from automap.calibrate.timing import Clock, Effort, Timing, seconds_per_trip
from automap.calibrate.transfers import transfer_loop
from automap.cost.profile import KernelProfile, Transfer, default_path
from automap.errors import ProfileError
from automap.program import load_target, trace_step
from automap.program.contained import contained
from automap.program.trace import Workload
from automap.progress_bar import ItemProgress
from automap.terminal import say
from automap.topology.model import Topology


STAGE_BUDGET_SECONDS: Final = 120.0
_EMPTY_SAMPLES: Final = 7
# A loop may hold its carry twice. A processor has no allocator that refuses: what is too large
# kills the program.
_LOOP_COPIES: Final = 2
# Larger than what C libraries keep for themselves; memory for both arrays of all devices is a small
# part.
_MOST_BYTES: Final = 64 * 2**20
_SHARE: Final = 1 / 8
_SAMPLES: Final = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What a calibration made; `topology` is that of the hardware file."""

    topology: Topology
    session: Session
    profile_path: Path
    stages: tuple[StageSession, ...] = ()


def calibrate(
    *,
    device_count: int | None,
    depth: Depth,
    targets: Sequence[str],
    profile_path: Path | None,
    stage_targets: Sequence[str] = (),
    budget_seconds: float = STAGE_BUDGET_SECONDS,
) -> Calibration:
    """Measure what the profile lacks, and of each of `stage_targets` the stages of operators that
    decide, for at most so many seconds. Raises `CalibrationError`, `ProfileError` or `InputError`.

    The profile at `profile_path` (by default that of the device in the user's cache folder) is
    continued.
    """
    machine = find_machine(device_count)
    path = profile_path or default_path(machine.device, jax.__version__)
    profile = _profile(machine, path, is_cache=profile_path is None)
    # All targets are read before anything is measured: a wrong name is said at once.
    items = tuple(_items(machine, depth, targets))
    staged = tuple(_traced(machine, target) for target in stage_targets)
    # What is measured is saved as it goes, as a calibration may be interrupted.
    with ItemProgress() as progress:
        stopwatch = DeviceStopwatch(machine, EFFORTS[depth])
        session = Session(
            stopwatch, profile, progress.update, save=lambda profile: profile.save(path)
        )
        session.run(items)
    topology = calibrated_topology(machine, session.profile, date.today())
    fresh = fresh_seconds_per_byte(machine)
    topology = replace(topology, device=replace(topology.device, fresh_seconds_per_byte=fresh))
    stages = ()
    if not session.is_interrupted:
        stages = tuple(
            _measured_stages(machine, topology, staged, stopwatch, session, path, budget_seconds)
        )
    return Calibration(topology=topology, session=session, profile_path=path, stages=stages)


def _measured_stages(
    machine: LocalMachine,
    topology: Topology,
    steps: Sequence[Workload],
    stopwatch: "DeviceStopwatch",
    session: Session,
    path: Path,
    budget_seconds: float,
) -> Iterator[StageSession]:
    """The stages of each step, until one is interrupted; the session's profile grows."""
    for workload in steps:
        with ItemProgress() as progress:
            stages = StageSession(
                stopwatch=stopwatch,
                profile=session.profile,
                on_progress=lambda number, item: progress.update(number, None, item),
                save=lambda profile: profile.save(path),
                clock=time.monotonic,
                deadline_seconds=time.monotonic() + budget_seconds,
                on_streams=machine.platform == "cuda",
            )
            stages.run(workload, topology)
        session.profile = stages.profile
        yield stages
        if stages.is_interrupted:
            return


def _profile(machine: LocalMachine, path: Path, *, is_cache: bool) -> KernelProfile:
    """The profile to go on with; a cache that cannot be used is begun anew, with a warning."""
    empty = KernelProfile(
        device=machine.device, device_kind=machine.device_kind, jax_version=jax.__version__
    )
    if not os.path.exists(path):
        return empty
    try:
        return KernelProfile.load(path).merged(empty)
    except ProfileError as error:
        # A file that the user names is not overwritten.
        if not is_cache:
            raise
        say(f"warning: {error}; measuring everything again")
        return empty


def _items(machine: LocalMachine, depth: Depth, targets: Sequence[str]) -> Iterator[Item]:
    grid = measurement_grid(machine.platform, depth)
    target_items = (_target_items(machine, target) for target in targets)
    # The machine's own first: without it there is no hardware file, whatever the targets need.
    return chain(
        grid_kernels(grid),
        grid_transfers(grid, machine.topology),
        chain.from_iterable(target_items),
    )


def _target_items(machine: LocalMachine, target: str) -> Iterator[Item]:
    yield from target_signatures(_traced(machine, target), machine.topology)


def _traced(machine: LocalMachine, target: str) -> Workload:
    with contained():
        step, args = load_target(target, {})
        return trace_step(step, args, platform=machine.platform, target=target)


class DeviceStopwatch:
    """Measures on the devices of a machine, all of which run the same loop at once."""

    def __init__(
        self, machine: LocalMachine, effort: Effort, clock: Clock = time.perf_counter
    ) -> None:
        """Measures the time of an empty program first."""
        self.longest_seconds = effort.longest_seconds
        self._machine, self._effort, self._clock = machine, effort, clock
        self._overhead_seconds = self._empty_seconds()

    def time(self, item: Item, expected_seconds: float) -> Timing:
        """Seconds of one trip of the item's loop. Raises `Unmeasurable` for what XLA refuses."""
        if isinstance(item, Transfer):
            return self._time(transfer_loop(item), item.sizes, expected_seconds)
        return self.time_loop(kernel_loop(item), expected_seconds)

    def time_loop(self, program: KernelLoop, expected_seconds: float) -> Timing:
        """Seconds of one trip of a loop that needs no other device."""
        return self._time(program, (len(self._machine.devices),), expected_seconds)

    def _time(self, program: KernelLoop, sizes: tuple[int, ...], expected_seconds: float) -> Timing:
        needed = _LOOP_COPIES * program.n_bytes
        if needed > self._machine.memory_bytes:
            raise Unmeasurable(f"needs {needed / 2**30:.3g} GiB on each device")
        try:
            return seconds_per_trip(
                compiled_loop(program, self._machine.mesh(sizes)),
                expected_seconds=expected_seconds,
                overhead_seconds=self._overhead_seconds,
                effort=self._effort,
                clock=self._clock,
            )
        except (jax.errors.JaxRuntimeError, ValueError, TypeError, NotImplementedError) as error:
            # XLA's messages have many lines, of which the first says what is wrong.
            raise Unmeasurable(str(error).partition("\n")[0]) from error

    def _empty_seconds(self) -> float:
        leaf = jax.ShapeDtypeStruct((1,), "float32")
        mesh = self._machine.mesh((len(self._machine.devices),))
        # A loop of no trips: what calling a program and waiting for it costs.
        run = compiled_loop(KernelLoop((leaf,), lambda carry: carry), mesh)(0)
        run()
        return float(np.median([self._once(run) for _ in range(_EMPTY_SAMPLES)]))

    def _once(self, run: Callable[[], None]) -> float:
        start = self._clock()
        run()
        return self._clock() - start


def fresh_seconds_per_byte(
    machine: LocalMachine, *, most_bytes: int = _MOST_BYTES, clock: Clock = time.perf_counter
) -> float:
    """Seconds a byte of new memory costs on each device while all of them allocate.

    The array has `most_bytes` on each device, or less where memory is short.
    """
    if machine.platform != "cpu":
        return 0.0
    count = len(machine.devices)
    n_bytes = min(most_bytes, int(machine.memory_bytes * _SHARE))
    # One row for each device, so that all of them allocate as much at one time.
    mesh = machine.mesh((count,))
    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    shape = jax.ShapeDtypeStruct((count, n_bytes // 4), "float32", sharding=sharding)

    def add(array: jax.Array) -> jax.Array:
        return array + 1

    fresh = jax.jit(add).lower(shape).compile()
    reused = jax.jit(add, donate_argnums=0).lower(shape).compile()
    array = jax.device_put(jnp.zeros(shape.shape, shape.dtype), sharding)
    new_seconds = _median_seconds(lambda: jax.block_until_ready(fresh(array)), clock)
    # A donated array is gone: each run takes the result of the one before.
    arrays = [array]

    def run_in_place() -> None:
        arrays[0] = jax.block_until_ready(reused(arrays[0]))

    return max(new_seconds - _median_seconds(run_in_place, clock), 0.0) / n_bytes


def _median_seconds(run: Callable[[], object], clock: Clock) -> float:
    run()  # the first run compiles what is left to compile, and is not counted
    seconds = []
    for _ in range(_SAMPLES):
        start = clock()
        run()
        seconds.append(clock() - start)
    return median(seconds)
