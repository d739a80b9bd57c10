"""The auto-sharder's process, played by a script: answers, what is kept, errors; and the real
worker without its JAX.
"""

from dataclasses import replace
import json
import os
import subprocess
import sys

from click.testing import CliRunner
import pytest

from automap.errors import CompilerError, InputError, PlanError
from automap.plan.codec import decode
from hlo_tools.compiled.replay import ReplayedStep
from scripts.auto_newer import with_newer
from scripts.auto_peer import (
    PACKAGES,
    WORKER,
    AutoAnswer,
    AutoPeer,
    AutoRequest,
    pass_seconds,
)
from scripts.auto_report import Row, report
from scripts.compare_auto import main


REQUEST = AutoRequest(slice="v5e:2x4", mesh=(2, 4), options={"flag": "1"})
LOG = (
    "I1121 23:59:59.500000 7 auto_sharding.cc:3961] Starting the auto sharding pass\n"
    "noise\nI1122 00:00:02.750000 7 auto_sharding.cc:3931] Auto Sharding took 3 seconds\n"
)
FAKE = f"""#!{sys.executable}
import json, pathlib, sys, time
if sys.argv[1] == "-c":
    print(json.dumps(VERSIONS))
    raise SystemExit
folder = pathlib.Path(sys.argv[2])
with open(pathlib.Path(__file__).with_name("asked"), "a") as asked:
    asked.write(folder.joinpath("request.json").read_text())
BODY
print({LOG!r})
folder.joinpath("program.pb.gz").write_bytes(folder.joinpath("program.bin").read_bytes()[::-1])
folder.joinpath("answer.json").write_text(json.dumps(ANSWER))
"""
ANSWER = {
    "outcome": "done",
    "message": "",
    "inputs": ["{replicated}"],
    "outputs": [],
    "peak_bytes": 5,
    "seconds": 1.5,
    "process_seconds": 1.0,
}


@pytest.fixture
def peer(tmp_path):
    def make(body="", versions=PACKAGES, timeout_seconds=60.0):
        python = tmp_path / "python"
        text = FAKE.replace("VERSIONS", repr(versions)).replace("BODY", body)
        python.write_text(text.replace("ANSWER", repr(ANSWER)))
        python.chmod(0o755)
        return AutoPeer(python=python, folder=tmp_path / "kept", timeout_seconds=timeout_seconds)

    return make


def _asked(peer):
    log = peer.python.with_name("asked")
    return log.read_text().count('"slice"') if log.exists() else 0


def test_a_process_finds_its_own_packages_and_compiler(peer, monkeypatch):
    """JAX names the compiler of this environment in TPU_LIBRARY_PATH where the extra `tpu` is
    installed.
    """
    monkeypatch.setenv("TPU_LIBRARY_PATH", "/elsewhere/libtpu.so")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    body = (
        "import os; names = ('TPU_LIBRARY_PATH', 'PYTHONPATH'); "
        "assert not {os.environ.get(name) for name in names} - {None, ''}"
    )
    assert peer(body).ask(b"abc", "sha", REQUEST).answer.outcome == "done"


def test_a_program_is_asked_about_once(peer):
    reply = peer().ask(b"abc", "sha", REQUEST)
    assert reply.answer == decode(AutoAnswer, ANSWER, "")
    assert reply.program == b"cba"
    assert reply.pass_seconds == 3.25
    assert json.loads((peer().python.with_name("asked")).read_text()) == {
        "slice": "v5e:2x4",
        "mesh": [2, 4],
        "options": {"flag": "1"},
    }
    assert peer().ask(b"abc", "sha", REQUEST) == reply
    assert _asked(peer()) == 1
    peer().ask(b"abc", "sha", AutoRequest(slice="v5e:2x4", mesh=None))
    peer().ask(b"abc", "another", REQUEST)
    assert _asked(peer()) == 3


def test_one_that_is_not_ready_in_time_is_asked_again_only_with_more_time(peer):
    slow = "time.sleep(60)"
    reply = peer(slow, timeout_seconds=0.5).ask(b"abc", "sha", REQUEST)
    assert reply.answer.outcome == "timeout"
    assert reply.program is None
    assert peer(timeout_seconds=0.4).ask(b"abc", "sha", REQUEST) == reply
    assert peer(timeout_seconds=60.0).ask(b"abc", "sha", REQUEST).answer.outcome == "done"


def test_a_process_that_dies_is_an_answer_that_is_not_kept(peer):
    reply = peer("raise SystemExit('out of luck')").ask(b"abc", "sha", REQUEST)
    assert reply.answer.outcome == "died"
    assert "out of luck" in reply.answer.message
    assert peer().ask(b"abc", "sha", REQUEST).answer.outcome == "done"


def test_a_kept_answer_that_is_spoilt_is_a_miss(peer):
    peer().ask(b"abc", "sha", REQUEST)
    for kept in peer().folder.glob("*.json"):
        kept.write_text("[]")
    assert peer().ask(b"abc", "sha", REQUEST).program == b"cba"
    assert _asked(peer()) == 2


def test_another_environment_is_refused_with_the_way_to_make_it(peer, tmp_path):
    peer().check()
    for wrong in (
        peer(versions={**PACKAGES, "jax": "0.10.2"}),
        AutoPeer(python=tmp_path / "absent", folder=tmp_path),
    ):
        with pytest.raises(InputError, match=r"pip install jax==0\.6\.2"):
            wrong.check()


def test_the_command_says_what_is_missing(tmp_path):
    run = CliRunner().invoke(main, ["--auto-python", str(tmp_path / "absent")])
    assert run.exit_code != 0
    assert "pip install jax==0.6.2" in run.output
    for option, value in (("--models", "mlpp"), ("--meshes", "3x3"), ("--budget", "none")):
        run = CliRunner().invoke(main, ["--auto-python", sys.executable, option, value])
        assert run.exit_code != 0
        assert value in run.output
        assert "Traceback" not in run.output
    assert "pip install" in CliRunner().invoke(main, ["--help"]).output.replace("\n", " ")


@pytest.mark.parametrize("log", ["", LOG.splitlines()[0], LOG.splitlines()[2]])
def test_a_log_without_both_ends_says_no_seconds(log):
    assert pass_seconds(log) is None


def test_the_worker_answers_whatever_happens(tmp_path):
    (tmp_path / "request.json").write_text('{"slice": "none", "mesh": null, "options": {}}')
    (tmp_path / "program.bin").write_bytes(b"no program")
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, WORKER, tmp_path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as process:
        # It ends by itself when this pipe is closed.
        assert process.wait(60) == 0
    answer = decode(AutoAnswer, json.loads((tmp_path / "answer.json").read_text()), "")
    assert answer.outcome == "failed"
    assert answer.message


def _row(origin, milliseconds, planning_seconds=None, model="m"):
    step = milliseconds and ReplayedStep(
        seconds=milliseconds / 1e3,
        kernel_seconds=milliseconds / 2e3,
        transfer_seconds=milliseconds / 2e3,
    )
    return Row(
        model=model,
        origin=origin,
        where="8",
        step=step or None,
        note="",
        peak_bytes=None,
        planning_seconds=planning_seconds,
        compile_seconds=1.0,
    )


def test_the_report_compares_with_the_best_that_was_compiled():
    text = report(
        [
            _row("AUTO", 8.0, 3.0),
            _row("AUTO", 4.0, 2.0),
            _row("zero-3", 5.0),
            _row("ours", 2.0, 0.1),
            _row("AUTO", None, None, "n"),
            _row("megatron", 1.0, None, "n"),
            _row("ours", 2.0, 0.1, "n"),
            _row("AUTO", 1.0, 1.0, "o"),
            _row("ours", None, 0.1, "o"),
        ]
    )
    assert "geometric mean 1.00, worst 2.00, of 2 models, for 1 of which AUTO had a plan" in text
    assert "| m | 4.00 (8) | 5.00 (zero-3 8) | 2.00 (8) | 0.50 | 5.0 | 2.0 | 0.1 |" in text
    assert "| n | none | 1.00 (megatron 8) | 2.00 (8) | 2.00 | not done | 1.0 | 0.1 |" in text
    assert "| o | 1.00 (8) | none | none |  | 1.0 | 1.0 | 0.1 |" in text


def test_the_report_of_two_compilers_has_a_table_of_each():
    rows = [
        replace(_row("AUTO", 8.0), newer_seconds=0.006),
        _row("AUTO", 9.0),
        _row("zero-3", 5.0),
        replace(_row("megatron", 5.5), newer_seconds=0.003),
        replace(_row("ours", 4.0), newer_seconds=0.0024),
        _row("ours", 1.0, 0.1, "n"),
    ]
    text = report(rows)
    assert (
        "Ours over the best of all by today's compiler: geometric mean 0.80, worst 0.80, of 1 "
        "models" in text
    )
    assert "| m | 6.00 (8) | 3.00 (megatron 8) | 2.40 (8) | 0.80 |" in text
    assert "| n | none | none | none |  |" in text
    assert "today's" not in report([_row("ours", 4.0), _row("zero-3", 5.0)])


def _planned(*names):
    """Plans that are their names, and what today's compiler says of them in milliseconds."""
    asked = []

    def make_plan(name):
        return lambda: asked.append(name) or name

    return asked, [make_plan(name) for name in names]


def test_todays_compiler_is_asked_about_the_fastest_and_presets_near_it():
    rows = [
        _row("AUTO", 8.0),
        _row("AUTO", 7.9),
        _row("ours", 4.0),
        _row("data-parallel", 6.0),
        _row("zero-3", 5.0),
        _row("megatron", 6.5),
    ]
    asked, plans = _planned(*range(len(rows)))
    newer = with_newer(rows, dict(zip(rows, plans, strict=True)), lambda plan: plan * 1e-3)
    assert asked == [1, 2, 3, 4]
    assert [row.newer_seconds for row in newer] == [None, 0.001, 0.002, 0.003, 0.004, None]
    assert [replace(row, newer_seconds=None) for row in newer] == rows


def _refused(error):
    def refuse(plan):
        raise error

    return refuse


@pytest.mark.parametrize(
    ("plan", "measure", "note"),
    [
        (None, lambda plan: 1.0, "newer: not to be carried over"),
        ("plan", lambda plan: None, "newer: does not fit"),
        ("plan", _refused(CompilerError("no such op\nand more")), "newer: no such op"),
        ("plan", _refused(PlanError("another mesh")), "newer: another mesh"),
    ],
)
def test_what_todays_compiler_refuses_is_noted(plan, measure, note):
    row = _row("ours", 4.0)
    assert with_newer([row], {row: lambda: plan}, measure) == [replace(row, note=note)]
