"""`automap calibrate`: what was measured -> a hardware file, a profile, a summary."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from automap.atomic_file import check_can_be_written
from automap.calibrate.calibration import Calibration, calibrate
from automap.calibrate.grid import Depth
from automap.calibrate.hardware import write_hardware
from automap.calibrate.session import Session
from automap.calibrate.stages import StageSession
from automap.terminal import say, say_json, say_result
from automap.topology.model import Topology


def run(
    *,
    device_count: int | None,
    is_quick: bool,
    targets: Sequence[str],
    output: str | None,
    profile_path: Path | None,
    stage_targets: Sequence[str],
    budget_seconds: float,
    as_json: bool,
) -> None:
    """Measure this machine, write its files and print what it can do."""
    if output is not None:
        check_can_be_written("-o", output)
    # The flag is a pair, --quick and --full, for which click knows only true and false.
    depth: Depth = "quick" if is_quick else "full"
    done = calibrate(
        device_count=device_count,
        depth=depth,
        targets=targets,
        profile_path=profile_path,
        stage_targets=stage_targets,
        budget_seconds=budget_seconds,
    )
    if output is not None:
        write_hardware(output, done.topology)
        say(f"hardware file written to {output}")
    say(f"profile written to {done.profile_path}")
    for line in _warnings(done.session):
        say(f"warning: {line}")
    for target, stages in zip(stage_targets, done.stages, strict=False):
        for line in _stage_lines(target, stages):
            say(line)
    if as_json:
        say_json(_values(done))
        return
    for line in _summary(done.topology):
        say_result(line)


def _values(done: Calibration) -> dict[str, Any]:
    session = done.session
    return {
        "topology": done.topology.to_dict(),
        "profile": str(done.profile_path),
        "is_interrupted": session.is_interrupted,
        "noisy": len(session.noisy),
        "skipped": [{"item": str(item), "reason": reason} for item, reason in session.skipped],
        "stages": [
            {"measured": each.measured, "skipped": len(each.skipped), "is_done": _is_done(each)}
            for each in done.stages
        ],
    }


def _is_done(stages: StageSession) -> bool:
    """Whether all that the search asked for was measured, or cannot be."""
    return not stages.is_over and not stages.is_interrupted


def _stage_lines(target: str, stages: StageSession) -> Iterator[str]:
    yield f"{target}: {stages.measured} stages measured"
    if not _is_done(stages):
        why = "interrupted" if stages.is_interrupted else "the budget is over"
        yield f"warning: {target}: {why}: the model prices the rest; the same command goes on"
    if stages.skipped:
        label, reason = stages.skipped[0]
        count = len(stages.skipped)
        yield f"warning: {target}: {count} stages not measured; the first: {label}: {reason}"


def _warnings(session: Session) -> Iterator[str]:
    if session.is_interrupted:
        yield "interrupted: what was measured is kept; the same command goes on from there"
    if session.noisy:
        yield (
            f"{len(session.noisy)} times vary by half or more: is the device busy with something "
            "else?"
        )
    if session.skipped:
        item, reason = session.skipped[0]
        yield f"{len(session.skipped)} not measured; the first: {item}: {reason}"


def _summary(topology: Topology) -> Iterator[str]:
    device = topology.device
    yield f"{topology.name}: {device.memory_bytes / 2**30:.1f} GiB a device"
    for dtype, peak in device.flops_per_s:
        yield (
            f"  {dtype}: {peak / 1e9:.4g} GFLOP/s, large products reach "
            f"{device.matmul_efficiency:.0%}"
        )
    yield (
        f"  memory: {device.hbm_bytes_per_s / 1e9:.4g} GB/s, large kernels reach "
        f"{device.memory_efficiency:.0%}"
    )
    yield f"  launch: {device.launch_seconds * 1e6:.3g} us"
    if device.fresh_seconds_per_byte:
        yield f"  new memory: {device.fresh_seconds_per_byte * 2**20 * 1e3:.3g} ms a MiB"
    for level in topology.levels:
        yield (
            f"  {level.name} of {level.size}: {level.bytes_per_s / 1e9:.4g} GB/s, "
            f"{level.latency_seconds * 1e6:.3g} us"
        )
