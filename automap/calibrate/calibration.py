"""Calibrating this machine: devices -> profile and hardware file."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from itertools import chain
import os
from pathlib import Path

import jax

from automap.calibrate.grid import (
    EFFORTS,
    Depth,
    grid_kernels,
    grid_transfers,
    measurement_grid,
    target_signatures,
)
from automap.calibrate.hardware import calibrated_topology
from automap.calibrate.machine import Machine, find_machine
from automap.calibrate.session import Item, Session
from automap.calibrate.stopwatch import DeviceStopwatch, fresh_seconds_per_byte
from automap.cost.profile import KernelProfile, default_path
from automap.errors import ProfileError
from automap.program import load_target, trace_step
from automap.program.contained import contained
from automap.progress_bar import ItemProgress
from automap.terminal import say
from automap.topology.model import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What a calibration made; `topology` is that of the hardware file."""

    topology: Topology
    session: Session
    profile_path: Path


def calibrate(
    *,
    device_count: int | None,
    depth: Depth,
    targets: Sequence[str],
    profile_path: Path | None,
) -> Calibration:
    """Measure what the profile lacks. Raises `CalibrationError`, `ProfileError` or `InputError`.

    The profile at `profile_path` (by default that of the device in the user's cache folder) is
    continued.
    """
    machine = find_machine(device_count)
    path = profile_path or default_path(machine.device, jax.__version__)
    profile = _profile(machine, path, is_cache=profile_path is None)
    items = tuple(_items(machine, depth, targets))
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
    return Calibration(topology=topology, session=session, profile_path=path)


def _profile(machine: Machine, path: Path, *, is_cache: bool) -> KernelProfile:
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


def _items(machine: Machine, depth: Depth, targets: Sequence[str]) -> Iterator[Item]:
    grid = measurement_grid(machine.platform, depth)
    target_items = (_target_items(machine, target) for target in targets)
    # The machine's own first: without it there is no hardware file, whatever the targets need.
    return chain(
        grid_kernels(grid),
        grid_transfers(grid, machine.topology),
        chain.from_iterable(target_items),
    )


def _target_items(machine: Machine, target: str) -> Iterator[Item]:
    with contained():
        step, args = load_target(target, {})
        workload = trace_step(step, args, platform=machine.platform, target=target)
    yield from target_signatures(workload, machine.topology)
