"""What jobs that were killed have left is removed by a later one, and nothing else."""

import os
from pathlib import Path
import subprocess
import sys
import tempfile
import time

import pytest

from automap.verify.job_folder import job_folder


ROOT = Path(__file__).resolve().parents[3]
DAY = 24 * 3600


def test_only_old_folders_of_jobs_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious").write_text("")
    for name in ("automap-verify-old", "automap-verify-new", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "planned.bin").write_text("")
    (tmp_path / "automap-verify-link").symlink_to(victim)
    for name in ("automap-verify-old", "other", "victim"):
        os.utime(tmp_path / name, (time.time() - DAY - 1,) * 2)
    with job_folder() as folder:
        assert folder.parent == tmp_path and folder.name.startswith("automap-verify-")
        left = {path.name for path in tmp_path.iterdir()} - {folder.name}
        assert left == {"automap-verify-new", "automap-verify-link", "other", "victim"}
    assert not folder.exists()
    assert (victim / "precious").exists()


_KILLED = """
import os, signal, sys
from automap.verify.job_folder import job_folder
with job_folder() as folder:
    (folder / "answer.json").write_text("")
    if sys.argv[1] == "group":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.killpg(0, signal.SIGINT)
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("before", ["nothing", "group"])
def test_the_folder_of_one_that_is_killed_is_removed_without_a_compiler(before, tmp_path):
    """Also in the moment in which the compiler's process has ended already; Ctrl-C in a terminal
    does not end the guard.
    """
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, before],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        start_new_session=True,
        cwd=ROOT,
        env={
            **os.environ,
            "TMPDIR": str(tmp_path),
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
        },
    )
    assert done.returncode == -9
    folder = Path(done.stdout.strip())
    assert folder.parent == tmp_path
    for _ in range(600):
        if not folder.exists():
            break
        time.sleep(0.1)
    assert list(tmp_path.iterdir()) == []
