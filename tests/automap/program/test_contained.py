"""Code that a command line names changes nothing of the process that plans."""

import os
import signal
import sys
import warnings

from automap.program.contained import contained
from tests.broken_targets import meddles


def _state():
    permissions = os.umask(0o022)
    os.umask(permissions)
    return (
        os.getcwd(),
        dict(os.environ),
        permissions,
        sys.getrecursionlimit(),
        list(warnings.filters),
        sys.stdout,
        sys.stderr,
        signal.getsignal(signal.SIGINT),
    )


def test_the_process_is_what_it_was(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("atexit.register", lambda *_: None)
    before = _state()
    with contained():
        step, _ = meddles(str(tmp_path))
        assert _state() != before
        step(1)
    assert _state() == before
    said = capfd.readouterr()
    assert "printed by Python" in said.err
    assert "printed" not in said.out


def test_a_folder_that_was_removed_stays_removed(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with contained():
        os.chdir(tmp_path)
    assert os.getcwd() == str(tmp_path)
