"""`automap calibrate`: devices -> profile and hardware file."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from itertools import chain
from pathlib import Path

import click
import jax

from automap.calibrate.fresh import fresh_seconds_per_byte
from automap.calibrate.grid import EFFORTS, Depth, grid_of, kernels_of, transfers_of
from automap.calibrate.hardware import calibrated_topology, write_hardware
from automap.calibrate.machine import Machine, find_machine
from automap.calibrate.session import Item, Session
from automap.calibrate.stopwatch import DeviceStopwatch
from automap.calibrate.targets import target_signatures
from automap.cost.profile import KernelProfile, default_path
from automap.errors import ProfileError
from automap.plan_file import check_can_be_written
from automap.report.progress import ItemProgress
from automap.topology.model import Topology
from automap.workload import load_target, trace_step


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

    The profile at `profile_path` (by default that of the device in the user's cache folder) is continued.
    """
    machine = find_machine(device_count)
    path = profile_path or default_path(machine.device, jax.__version__)
    profile = _profile(machine, path, is_cache=profile_path is None)
    items = tuple(_items(machine, depth, targets))
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
    if not path.exists():
        return empty
    try:
        return KernelProfile.load(path).merged(empty)
    except ProfileError as error:
        if not is_cache:
            raise
        click.echo(f"warning: {error}; measuring everything again", err=True)
        return empty


def _items(machine: Machine, depth: Depth, targets: Sequence[str]) -> Iterator[Item]:
    grid = grid_of(machine.platform, depth)
    of_targets = (_target_items(machine, target) for target in targets)
    return chain(
        kernels_of(grid), transfers_of(grid, machine.topology), chain.from_iterable(of_targets)
    )


def _target_items(machine: Machine, target: str) -> Iterator[Item]:
    step, args = load_target(target, {})
    workload = trace_step(step, args, platform=machine.platform, target=target)
    yield from target_signatures(workload, machine.topology)


@click.command("calibrate")
@click.option("--device-count", type=int, help="devices to measure at the same time (default: all)")
@click.option(
    "--quick/--full", "is_quick", default=True, help="a few sizes in a minute or two, or many"
)
@click.option(
    "--target",
    "targets",
    multiple=True,
    help="measure also the kernels of module:function's presets",
)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False), help="write the hardware file (TOML) here"
)
@click.option(
    "--profile", "profile_path", type=click.Path(dir_okay=False, path_type=Path),
    help="the profile to write, or go on with (default: in the user's cache folder)",
)  # fmt: skip
def calibrate_command(
    device_count: int | None,
    is_quick: bool,  # noqa: FBT001 - click passes flags
    targets: tuple[str, ...],
    output: str | None,
    profile_path: Path | None,
) -> None:
    """Measure this machine's accelerators, or its processor, for `automap plan`.

    Writes a hardware file for --topology and a profile for --profile. What is in the profile already is not measured
    again; Ctrl-C keeps what was measured.
    """
    if output is not None:
        check_can_be_written("-o", output)
    depth: Depth = "quick" if is_quick else "full"
    done = calibrate(
        device_count=device_count, depth=depth, targets=targets, profile_path=profile_path
    )
    if output is not None:
        write_hardware(output, done.topology)
        click.echo(f"hardware file written to {output}", err=True)
    click.echo(f"profile written to {done.profile_path}", err=True)
    for line in _warnings(done.session):
        click.echo(f"warning: {line}", err=True)
    for line in _summary(done.topology):
        click.echo(line)


def _warnings(session: Session) -> Iterator[str]:
    if session.is_interrupted:
        yield "interrupted: what was measured is kept; the same command goes on from there"
    if session.noisy:
        yield f"{len(session.noisy)} times vary by half or more: is the device busy with something else?"
    if session.skipped:
        item, reason = session.skipped[0]
        yield f"{len(session.skipped)} not measured; the first: {item}: {reason}"


def _summary(topology: Topology) -> Iterator[str]:
    device = topology.device
    yield f"{topology.name}: {device.memory_bytes / 2**30:.1f} GiB a device"
    for dtype, peak in device.flops_per_s:
        yield f"  {dtype}: {peak / 1e9:.4g} GFLOP/s, large products reach {device.matmul_efficiency:.0%}"
    yield f"  memory: {device.hbm_bytes_per_s / 1e9:.4g} GB/s, large kernels reach {device.memory_efficiency:.0%}"
    yield f"  launch: {device.launch_seconds * 1e6:.3g} us"
    if device.fresh_seconds_per_byte:
        yield f"  new memory: {device.fresh_seconds_per_byte * 2**20 * 1e3:.3g} ms a MiB"
    for level in topology.levels:
        yield (
            f"  {level.name} of {level.size}: {level.bytes_per_s / 1e9:.4g} GB/s, "
            f"{level.latency_seconds * 1e6:.3g} us"
        )
