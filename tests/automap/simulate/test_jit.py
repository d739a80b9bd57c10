"""Compiled code without a place to keep it."""

import os
from pathlib import Path
import shutil
import subprocess
import sys


ROOT = Path(__file__).resolve().parents[3]
_USE = """
import automap.cost.schedule.overlap
import numpy as np
from automap.simulate.tasks import Tasks, simulate
one = np.zeros(1, np.int32)
tasks = Tasks(
    seconds=np.ones(1), resource=one, first_predecessor=np.array([0, 0]), predecessors=one[:0]
)
print(simulate(tasks).makespan_seconds)
"""


def test_a_read_only_installation_without_a_home_simulates(tmp_path):
    for folder in ("automap", "hlo_tools"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    # A file where numba would make its folder cannot be written to even by root.
    (tmp_path / "automap/simulate/__pycache__").write_text("")
    blocked = tmp_path / "file"
    blocked.write_text("")
    names = ("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR")
    env = {**os.environ, **dict.fromkeys(names, str(blocked)), "PYTHONPATH": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", _USE],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.stdout.strip(), run.returncode) == ("1.0", 0), run.stderr


# Says that the disk is full, and has writing fail as it does there.
_FULL = f"""
import resource, shutil, signal
shutil.disk_usage = lambda folder: shutil._ntuple_diskusage(10**9, 10**9, 0)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
{_USE}
"""


def test_on_a_full_disk_nothing_is_kept_and_everything_runs(tmp_path):
    paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": paths}
    run = subprocess.run(
        [sys.executable, "-B", "-c", _FULL],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.stdout.strip(), run.returncode) == ("1.0", 0), run.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
