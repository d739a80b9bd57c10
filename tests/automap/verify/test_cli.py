"""`automap verify` and `automap plan --verify` as a user runs them."""

from contextlib import suppress
import json
import os
from pathlib import Path
import re
import signal
import subprocess
import sys
import time

from click.testing import CliRunner
import pytest

from automap.cli import main
from automap.verify import compilers


ROOT = Path(__file__).resolve().parents[3]
SAMPLE = ROOT / "tests/automap/plan/plan_sample.json"
TARGET = ("--target", "tests.steps:mlp", "--arg", "batch=8")
MLP = ("tests.steps:mlp", "--arg", "batch=8", "--topology", "cpu:4", "--budget", "2")


def _run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    done = _run("plan", *MLP, "-o", path)
    assert done.exit_code == 0, done.output
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("witnesses")


def test_a_plan_is_planned_verified_and_explained(tmp_path, folder):
    path = tmp_path / "plan.json"
    done = _run("plan", *MLP, "--verify", "--verify-top", "2", "--cache-dir", folder, "-o", path)
    assert done.exit_code == 0, done.output
    assert re.search(r"compiled a plan of predicted .*: fits", done.stderr)
    assert "verified by the CPU compiler" in done.stdout
    assert json.loads(path.read_text())["verified"]["fits"] is True
    assert len(list(folder.glob("*.json"))) == 1

    # The same plan again: its witness is there.
    answer = _run("verify", path, *TARGET, "--no-numerics", "--cache-dir", folder, "--json")
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.stdout)["witness"]["compiler"] == "cpu"
    assert len(list(folder.glob("*.json"))) == 1


def test_a_placement_on_a_graph_is_refused_where_one_program_is_meant(tmp_path):
    path = tmp_path / "placed.json"
    machine = ("--topology", "haswell-2xk80", "--space", "placement", "--strategy", "single")
    assert _run("plan", *TARGET[1:], *machine, "-o", path).exit_code == 0
    for command in (("verify", path, *TARGET), ("export", path, "--to", "maxtext")):
        done = _run(*command)
        assert done.exit_code == 2
        assert "the plan is a placement of" in done.stderr


def test_plans_that_exceed_the_given_memory_are_not_confirmed(folder):
    # The smallest prediction for this model is 7.6 KiB; what XLA needs is more.
    done = _run(
        "plan",
        *MLP,
        "--verify",
        "--verify-top",
        "1",
        "--memory-limit",
        "1.2e-5",
        "--cache-dir",
        folder,
    )
    assert done.exit_code == 1, done.output
    assert "the CPU compiler confirms none of the 1 best plans, the smallest with" in done.stderr


def test_a_real_process_verifies_and_says_nothing_on_stderr(plan_file):
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from automap.cli import main; main()",
            "verify",
            plan_file,
            *TARGET,
            "--no-cache",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stderr
    assert "fits, says the CPU compiler" in done.stdout
    assert "outputs agree with the single-device step" in done.stdout
    # Compilers say nothing there; the command may say that it is still at work.
    assert all(line.startswith("automap: ") for line in done.stderr.splitlines()), done.stderr


def test_an_interrupt_ends_the_command_and_the_compiler(plan_file, tmp_path):
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from automap.cli import main; main()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, "verify", plan_file, *TARGET, "--no-cache"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "TMPDIR": str(tmp_path),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
    ) as process:
        for _ in range(1200):
            if list(tmp_path.glob("automap-verify-*/log.txt")):
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said == "automap: interrupted before there was a result\n"
    assert list(tmp_path.iterdir()) == []
    # A compiler whose start was interrupted ends itself when its pipe closes, once it has imported.
    for _ in range(1200):
        if not _commands_with(str(tmp_path)):
            break
        time.sleep(0.05)
    assert _commands_with(str(tmp_path)) == []


def _commands_with(text):
    """The command lines of running processes that hold `text`."""
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            command = path.read_bytes()
            if text.encode() in command:
                commands.append(command)
    return commands


def _saved(tmp_path, **workload):
    data = json.loads(SAMPLE.read_text())
    data["workload"] |= workload
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    return path


@pytest.mark.parametrize(
    ("workload", "options", "message"),
    [
        ({}, [], "there is no step to compile; plan module:function"),
        (
            {"jaxpr_sha256": "0" * 64, "target": "<step>"},
            ["--compiler", "cpu"],
            "automap.verify(plan, step, args)",
        ),
        (
            {"jaxpr_sha256": "0" * 64, "target": "tests.steps:mlp", "arguments": [["batch", "8"]]},
            ["--compiler", "cpu"],
            "again with --target tests.steps:mlp --arg batch=8 behind it",
        ),
        (
            {"jaxpr_sha256": "0" * 64},
            ["--compiler", "cpu", "--target", "tests.steps:mlp"],
            "are not those of the plan",
        ),
        (
            {"jaxpr_sha256": "0" * 64},
            ["--compiler", "cpu", "--target", "absent:step"],
            "cannot import absent",
        ),
        ({"jaxpr_sha256": "0" * 64}, ["--compiler", "gpu"], "jax-automap[gpu-compiler]"),
        ({"jaxpr_sha256": "0" * 64}, ["--timeout", "-1"], "timeout -1.0: must be a positive"),
        (
            {"jaxpr_sha256": "0" * 64},
            ["--compiler", "nvcc"],
            "'nvcc' is not one of 'cpu', 'gpu', 'tpu'",
        ),
        (
            {"jaxpr_sha256": "0" * 64},
            ["--compiler", "cpu", *TARGET[:2], "--arg", "x"],
            "expected name=value",
        ),
    ],
)
def test_bad_input_gets_one_message_and_its_status(
    tmp_path, monkeypatch, workload, options, message
):
    missing = {"jax_cuda12_plugin", "libtpu"}
    monkeypatch.setattr(compilers, "find_spec", lambda name: None if name in missing else name)
    done = _run("verify", _saved(tmp_path, **workload), *options)
    assert done.exit_code == (4 if "gpu-compiler" in message else 2), done.output
    assert message in done.stderr
    assert "Traceback" not in done.output


def test_a_program_without_a_step_cannot_be_planned_and_verified(tmp_path):
    path = tmp_path / "step.hlo"
    path.write_text("HloModule m\nENTRY e { ROOT x = f32[8] parameter(0) }\n")
    done = _run("plan", path, "--topology", "cpu:4", "--verify")
    assert done.exit_code == 2
    assert "is a program without a step; plan module:function" in done.stderr


@pytest.mark.parametrize("option", [("--verify-top", "0"), ("--timeout", "0")])
def test_numbers_out_of_range_are_refused(option):
    done = _run("plan", *MLP, "--verify", *option)
    assert done.exit_code == 2
    assert option[0].strip("-").replace("-", " ") in done.stderr
