"""The compiler's process: aborts, hangs, locks, answers that cannot be read, and an end with its
parent.
"""

import json
import os
from pathlib import Path
import signal
import subprocess
import sys
import time

import pytest

from automap.errors import CompilerError
from automap.verify import process
from automap.verify.compilers import CompilerMachine
from automap.verify.messages import PlanShardings, Request
from automap.verify.process import run_job


REQUEST = Request(
    machine=CompilerMachine(compiler="tpu", device_count=1, kind="v5e:1x1"),
    shardings=PlanShardings(axes=(), devices=None, inputs=(), outputs=(), donated=()),
    run=None,
)
ANSWER = {"outcome": "done", "message": "", "seconds": 1.0, "memory": None, "leaves": []}


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """Puts a shell script in the compiler's place; it is called as `-m module folder`."""

    def use(script):
        path = tmp_path / "worker"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setattr(process.sys, "executable", str(path))
        return tmp_path

    return use


def _answering(**changes):
    return f"echo '{json.dumps(ANSWER | changes)}' > $3/answer.json"


def test_an_answer_is_handed_over(worker):
    assert run_job(REQUEST, worker(_answering()), timeout_seconds=60).outcome == "done"


@pytest.mark.parametrize(
    ("script", "match"),
    [
        ("kill -KILL $$", "\\(SIGKILL\\), as a system does .* memory .* --no-numerics"),
        ("echo out of luck; kill -ABRT $$", "ended by signal 6 \\(SIGABRT\\): out of luck"),
        (
            "echo 'I1126 16:24:02.9 7 stub.cc:31] No drivers.'; "
            "echo 'F1126 16:24:03.149172    6399 pass.cc:586] Check failed: f32[8] has'; "
            "echo ' size 8'; echo '*** Check failure stack trace: ***'; echo '  @ 0x7f'; "
            "kill -ABRT $$",
            "\\(SIGABRT\\): pass.cc:586\\] Check failed: f32\\[8\\] has\n size 8$",
        ),
        ("exit 3", "ended with status 3: it said nothing"),
        ("exit 0", "no answer that can be read: No such file"),
        ("echo '{' > $3/answer.json", "no answer that can be read: no valid JSON"),
        (_answering(outcome="maybe"), "outcome: got 'maybe'"),
        (_answering(seconds=None), "seconds: got None; allowed: a finite number"),
    ],
)
def test_what_goes_wrong_there_is_one_error_here(worker, script, match):
    with pytest.raises(CompilerError, match=match):
        run_job(REQUEST, worker(script), timeout_seconds=60)


def test_one_that_hangs_is_ended(worker):
    folder = worker("echo $$ > $3/id; exec sleep 1000")
    with pytest.raises(CompilerError, match="not done after 1 s and was ended"):
        run_job(REQUEST, folder, timeout_seconds=1)
    with pytest.raises(ProcessLookupError):
        os.kill(int((folder / "id").read_text()), 0)


def test_a_busy_compiler_is_waited_for_and_its_holder_named(worker, capsys, monkeypatch):
    monkeypatch.setattr(process, "_holder_id", lambda path: "1")
    folder = worker(
        f"if [ -f $3/again ]; then {_answering()}; else touch $3/again; "
        f"{_answering(outcome='busy')}; fi"
    )
    answer = run_job(REQUEST, folder, timeout_seconds=60, retry_seconds=0.05)
    assert answer.outcome == "done"
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("process 1 (") == 1


def test_one_that_stays_busy_is_given_up(worker, monkeypatch):
    monkeypatch.setattr(process, "_holder_id", lambda path: None)
    folder = worker(_answering(outcome="busy"))
    with pytest.raises(CompilerError, match="stayed busy for 60 s.*another process"):
        run_job(REQUEST, folder, timeout_seconds=60, retry_seconds=61.0)


def test_the_lock_is_where_libtpu_says(worker, monkeypatch):
    asked = []
    monkeypatch.setattr(process, "_holder_id", asked.append)
    # What libtpu 0.0.51 says.
    said = (
        "ABORTED: Internal error when accessing libtpu multi-process lockfile. "
        'Run "$ sudo rm /run/libtpu_lockfile".'
    )
    folder = worker(_answering(outcome="busy", message=said))
    with pytest.raises(CompilerError, match="lock /run/libtpu_lockfile; waiting"):
        run_job(REQUEST, folder, timeout_seconds=60, retry_seconds=61.0)
    assert set(asked) == {Path("/run/libtpu_lockfile")}


def test_a_process_that_holds_the_lock_itself_does_not_wait(worker, monkeypatch):
    monkeypatch.setattr(process, "_holder_id", lambda path: str(os.getpid()))
    with pytest.raises(CompilerError, match="this process uses the TPU itself"):
        run_job(REQUEST, worker(_answering(outcome="busy")), timeout_seconds=60)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who holds a lock")
def test_the_holder_of_a_lock_is_found(tmp_path):
    path = tmp_path / "lock"
    code = (
        f"import fcntl, time; f = open({str(path)!r}, 'w'); fcntl.lockf(f, fcntl.LOCK_EX); "
        "print(1, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        shown = process._holder(path)
        holder.kill()
    assert shown is not None and shown.startswith(f"{holder.pid} (")
    assert process._holder(tmp_path / "absent") is None


def test_fake_devices_of_the_caller_are_not_those_of_the_compiler(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8 --xla_cpu_x=1")
    assert process._environment()["XLA_FLAGS"] == "--xla_cpu_x=1"
    assert process.compiler_flags() == (("XLA_FLAGS", "--xla_cpu_x=1"),)


def test_the_process_ends_with_the_one_that_started_it(tmp_path):
    """Killed outright, the parent can end nobody: the closed pipe does it."""
    folder = tmp_path / "job"
    folder.mkdir()
    code = (
        "from pathlib import Path; from automap.verify.process import _process; import time\n"
        f"with _process(Path({str(folder)!r}), open({str(tmp_path / 'log')!r}, 'wb')) as p:\n"
        "    print(p.pid, flush=True); time.sleep(60)"
    )
    # A request that is never there yet: the worker waits for what it cannot open.
    os.mkfifo(folder / "request.json")
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        cwd=Path(process.__file__).parents[2],
    ) as parent:
        assert parent.stdout is not None
        worker_id = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    for _ in range(600):
        if not _runs(worker_id):
            break
        time.sleep(0.1)
    assert not _runs(worker_id), "the worker outlived its parent"


def _runs(process_id):
    try:
        os.kill(process_id, 0)
        status = Path(f"/proc/{process_id}/stat").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False
    return not status.split(") ")[-1].startswith("Z")
