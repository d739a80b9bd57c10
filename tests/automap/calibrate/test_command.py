"""`automap calibrate` as a user runs it, with a stopwatch that computes a roofline instead of
measuring.
"""

import json

from click.testing import CliRunner
import pytest

from automap.calibrate import calibration
from automap.calibrate.session import units
from automap.calibrate.timing import Timing
from automap.cli import main
from automap.cost.profile import KernelProfile, record as profile_module
from automap.topology import get_topology


class Roofline:
    """A device of 1e9 operations or bytes per second; after `stop_after` items comes Ctrl-C."""

    longest_seconds = 100.0
    stop_after = None
    timed: list = []  # noqa: RUF012 - shared on purpose: the command makes the instance

    def __init__(self, machine, effort):
        self.timed.clear()

    def time(self, item, expected_seconds):
        if len(self.timed) == self.stop_after:
            raise KeyboardInterrupt
        self.timed.append(item)
        return Timing(seconds=1e-6 + units(item) / 1e9, spread=0.0)


@pytest.fixture
def stopwatch(monkeypatch, tmp_path):
    monkeypatch.setattr(calibration, "DeviceStopwatch", Roofline)
    monkeypatch.setattr(Roofline, "stop_after", None)
    monkeypatch.setattr(profile_module.platformdirs, "user_cache_dir", lambda name: tmp_path / name)
    return Roofline


def run(*arguments):
    done = CliRunner().invoke(main, list(arguments))
    assert "Traceback" not in done.output
    return done


@pytest.mark.slow
def test_what_it_writes_is_planned_with(stopwatch, tmp_path):
    hardware, profile = str(tmp_path / "hardware.toml"), str(tmp_path / "profile.json")
    target = "tests.steps:mlp"
    done = run("calibrate", "--target", target, "-o", hardware, "--profile", profile)
    assert done.exit_code == 0, done.output
    assert "f32: 1 GFLOP/s" in done.stdout and "profile written to" in done.stderr
    assert get_topology(hardware).device.peak_flops_per_s("f32") == pytest.approx(1e9, rel=1e-3)
    planned = run("plan", target, "--topology", hardware, "--profile", profile, "--json")
    assert planned.exit_code == 0, planned.output
    alone = run("plan", target, "--topology", hardware, "--json")
    seconds = [json.loads(p.stdout)["predicted"]["compute_seconds"] for p in (planned, alone)]
    assert seconds[0] != seconds[1]
    compared = run("compare", target, "--topology", "cpu:8", "--profile", profile)
    assert compared.exit_code == 0, compared.output


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_measured_and_the_next_run_goes_on(stopwatch, tmp_path, monkeypatch):
    monkeypatch.setattr(stopwatch, "stop_after", 75)
    stopped = run("calibrate", "-o", str(tmp_path / "hardware.toml"))
    assert stopped.exit_code == 0, stopped.output
    assert "interrupted: what was measured is kept" in stopped.stderr
    first = list(stopwatch.timed)
    monkeypatch.setattr(stopwatch, "stop_after", None)
    done = run("calibrate")
    assert done.exit_code == 0 and not set(first) & set(stopwatch.timed)
    again = run("calibrate")
    assert again.exit_code == 0 and stopwatch.timed == []


def test_ctrl_c_too_early_for_a_hardware_file_is_said(stopwatch, tmp_path, monkeypatch):
    monkeypatch.setattr(stopwatch, "stop_after", 3)
    stopped = run("calibrate", "-o", str(tmp_path / "hardware.toml"))
    assert stopped.exit_code == 2
    assert "too little was measured" in stopped.stderr
    assert not (tmp_path / "hardware.toml").exists()
    (kept,) = (tmp_path / "automap").iterdir()
    assert len(KernelProfile.load(kept).times()) == 3


@pytest.mark.slow
def test_a_cache_that_cannot_be_used_is_measured_again_with_a_warning(stopwatch, tmp_path):
    run("calibrate")
    (kept,) = (tmp_path / "automap").iterdir()
    kept.write_text("{")
    done = run("calibrate")
    assert done.exit_code == 0
    assert "no valid JSON" in done.stderr and "measuring everything again" in done.stderr
    assert KernelProfile.load(kept).device == "cpu-8"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["calibrate", "--device-count", "99"], "--device-count 99: allowed: 1 to 8"),
        (["calibrate", "-o", "absent/hardware.toml"], "absent; make it first"),
        (["calibrate", "--target", "absent:f"], "cannot import absent"),
        (["calibrate", "--profile", "bad.json"], "bad.json': format: is not automap-profile"),
        (
            ["plan", "tests.steps:mlp", "--topology", "cpu:8", "--profile", "none.json"],
            "No such file",
        ),
        (
            ["plan", "tests.steps:mlp", "--topology", "cpu:8", "--profile", "bad.json"],
            "is not automap",
        ),
        (
            ["plan", "tests.steps:mlp", "--topology", "8xh100", "--profile", "cpu.json"],
            "run `automap calibr",
        ),
    ],
)
def test_bad_input_gets_one_message(stopwatch, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.json").write_text("{}")
    KernelProfile(device="cpu-8", device_kind="cpu", jax_version="0").save(tmp_path / "cpu.json")
    done = run(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
