"""Why a command ended is its exit status; what others print does not reach its standard output."""

from contextlib import suppress
import json
import os
from pathlib import Path
import subprocess
import sys

import click
from click.testing import CliRunner
import pytest

from automap import errors
from automap.api.verification import Verification
from automap.cli import main
from automap.cli.group import OTHER_NAMES, Group
from automap.exit_status import MEANING, ExitStatus
from automap.interrupts import Terminated


ROOT = Path(__file__).resolve().parents[3]


def _process(*arguments, cwd=ROOT, **options):
    paths = [str(ROOT), *filter(None, sys.path)]
    return subprocess.run(
        [sys.executable, "-m", "automap", *map(str, arguments)],
        cwd=cwd,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        **{"capture_output": True, "text": True} | options,
    )


def _ends(error):
    """The outcome of a command that raises."""

    @click.command("ends")
    def ends():
        raise error

    return CliRunner().invoke(Group("automap", commands=[ends]), ["ends"])


def _all_errors(kind=errors.AutomapError):
    for each in kind.__subclasses__():
        yield each
        yield from _all_errors(each)


@pytest.mark.parametrize(
    ("typed", "meant"), [("check", "verify"), ("topology", "topologies"), ("veryfy", "verify")]
)
def test_a_command_that_is_not_there_is_answered_with_one_that_is(typed, meant):
    done = CliRunner().invoke(main, [typed, "plan.json"])
    assert done.exit_code == ExitStatus.BAD_INPUT
    assert f"No such command '{typed}'. Did you mean '{meant}'?" in done.stderr


def test_every_other_name_stands_for_a_command():
    assert set(OTHER_NAMES.values()) <= set(main.commands)
    assert not set(OTHER_NAMES) & set(main.commands)


def test_a_target_without_a_function_is_told_the_form():
    done = CliRunner().invoke(main, ["plan", "train", "--topology", "cpu:8"])
    assert done.exit_code == ExitStatus.BAD_INPUT
    assert "No such file or directory; a target is module:function" in done.stderr


@pytest.mark.parametrize("kind", list(_all_errors()), ids=lambda kind: kind.__name__)
def test_only_what_does_not_fit_ends_with_one(kind):
    done = _ends(kind("why"))
    assert done.exit_code == kind.exit_status in set(ExitStatus)
    assert (done.exit_code == ExitStatus.DOES_NOT_FIT) == (kind is errors.InfeasiblePlanError)
    assert done.stderr == "automap: why\n"


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (KeyboardInterrupt(), ExitStatus.INTERRUPTED, "interrupted before there was a result"),
        (Terminated(), ExitStatus.TERMINATED, "ended by SIGTERM"),
        (ZeroDivisionError("by zero"), ExitStatus.INTERNAL_ERROR, "ZeroDivisionError, which is"),
        (RecursionError(), ExitStatus.INTERNAL_ERROR, "Traceback"),
        (MemoryError(), ExitStatus.INTERNAL_ERROR, "please report"),
        (click.FileError("f", "hint"), ExitStatus.BAD_INPUT, "hint"),
        (click.UsageError("how"), ExitStatus.BAD_INPUT, "how"),
        (OSError(28, "No space left on device", "plan.json"), ExitStatus.BAD_INPUT, "'plan.json'"),
        (BrokenPipeError(32, "Broken pipe"), ExitStatus.NOBODY_READS, ""),
    ],
)
def test_whatever_ends_a_command_has_its_status(error, status, said):
    done = _ends(error)
    assert done.exit_code == status
    assert said in done.stderr


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (
            KeyboardInterrupt,
            ExitStatus.INTERRUPTED,
            "automap: interrupted before there was a result",
        ),
        (Terminated, ExitStatus.TERMINATED, "automap: ended by SIGTERM"),
    ],
)
def test_a_signal_while_the_command_line_is_read_has_its_status(error, status, said):
    def read(*_):
        raise error

    @click.command("ends")
    @click.option("--value", callback=read)
    def ends():
        pass

    read_in_a_command = CliRunner().invoke(Group("automap", commands=[ends]), ["ends"])
    option = click.Option(["--value"], callback=read)
    read_in_the_group = CliRunner().invoke(
        Group("automap", params=[option], commands=[ends]), ["ends"]
    )
    for done in (read_in_a_command, read_in_the_group):
        assert done.exit_code == status
        assert done.stderr.strip() == said


def test_the_statuses_are_in_the_help_and_in_the_reference():
    assert set(MEANING) == set(ExitStatus)
    texts = (
        CliRunner().invoke(main, ["--help"]).stdout,
        (ROOT / "docs/reference/command.md").read_text(),
    )
    for status, text in MEANING.items():
        assert all(f"{status:d}" in whole and text in whole for whole in texts), text


@pytest.mark.parametrize(
    ("own", "fits", "agrees", "status"),
    [
        ("cpu", True, True, 0),
        ("cpu", True, None, 0),
        ("cpu", False, True, 1),
        ("cpu", True, False, 3),
        ("cpu", False, False, 1),
        ("tpu", False, True, 0),
        ("tpu", False, False, 3),
    ],
)
def test_verify_tells_numbers_from_memory(own, fits, agrees, status, monkeypatch, tmp_path):
    from automap.cli.run import verify as command

    monkeypatch.setattr(Verification, "explain", lambda self: "")
    monkeypatch.setattr(command, "verify", lambda *_, **__: _verification(own, fits, agrees))
    monkeypatch.setattr(command, "load_step", lambda *_: (None, ()))
    data = json.loads((ROOT / "tests/automap/plan/plan_sample.json").read_text())
    data["workload"]["jaxpr_sha256"] = "0" * 64
    (tmp_path / "plan.json").write_text(json.dumps(data))
    arguments = ["verify", str(tmp_path / "plan.json"), "--compiler", "cpu", "--target", "m:f"]
    assert CliRunner().invoke(main, arguments).exit_code == status


def _verification(own, fits, agrees):
    class Said:
        def __init__(self, **said):
            self.__dict__ |= said

    numerics = None if agrees is None else Said(agrees=agrees)
    return Verification(
        target="",
        plan_compiler=own,
        witness=Said(fits=fits, compiler="cpu"),
        comparison=None,
        numerics=numerics,
    )


def test_what_a_target_prints_and_changes_harms_nothing(tmp_path):
    """Finding D11: `--json` was invalid, and `-o` relative to where the target changed to."""
    elsewhere, here = tmp_path / "elsewhere", tmp_path / "here"
    elsewhere.mkdir()
    here.mkdir()
    done = _process(
        "plan",
        "tests.broken_targets:meddles",
        "--arg",
        f"folder={elsewhere}",
        "--topology",
        "v5e:2x4",
        "--json",
        "-o",
        "plan.json",
        cwd=here,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads((here / "plan.json").read_text())
    assert list(elsewhere.iterdir()) == []
    for said in ("printed by Python", "written to the descriptor", "put by C", "printed while"):
        assert said in done.stderr
    assert "printed at the end" in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no full device")
@pytest.mark.parametrize(
    "command", [["--help"], ["explain", ROOT / "tests/automap/plan/plan_sample.json"]]
)
def test_an_output_that_takes_nothing_is_one_message_or_none(command):
    with open("/dev/full", "w") as full:
        done = _process(*command, stdout=full, stderr=subprocess.PIPE, capture_output=False)
    assert (done.returncode, done.stderr) == (2, "automap: No space left on device\n")
    reader, writer = os.pipe()
    os.close(reader)
    done = _process(*command, stdout=writer, stderr=subprocess.PIPE, capture_output=False)
    with suppress(OSError):
        os.close(writer)
    assert (done.returncode, done.stderr) == (ExitStatus.NOBODY_READS, "")


def test_closed_streams_are_no_error():
    script = f"{sys.executable} -m automap topologies >&- 2>&-"
    paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    done = subprocess.run(
        script, shell=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, check=False
    )
    assert done.returncode == 0
