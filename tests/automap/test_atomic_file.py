"""Files are whole or not there, in folders that others write to, killed writers included."""

import os
from pathlib import Path
import stat
import subprocess
import sys
import time

import pytest

from automap.atomic_file import check_can_be_written, write_atomically
from automap.errors import PlanError


HOUR = 3600


@pytest.fixture(params=["without a name", "with a name"])
def _either_way(request, monkeypatch):
    """Both ways to write: where the system has files without names, and where it has not."""
    if request.param == "with a name":
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)


both_ways = pytest.mark.usefixtures("_either_way")


@both_ways
def test_new_files_have_the_permissions_that_the_process_gives(tmp_path):
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "new", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


@both_ways
def test_a_replaced_file_hands_on_its_permissions_but_not_in_a_cache(tmp_path):
    path = tmp_path / "private"
    path.write_text("old")
    path.chmod(0o600)
    write_atomically(path, "new")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o600)
    write_atomically(path, b"newer", links="replace")
    assert stat.S_IMODE(path.stat().st_mode) != 0o600


@both_ways
def test_a_link_is_followed_or_replaced_as_asked(tmp_path):
    victim, link = tmp_path / "victim", tmp_path / "link"
    victim.write_text("precious")
    link.symlink_to(victim)
    write_atomically(link, "mine", links="replace")
    assert (victim.read_text(), link.read_text(), link.is_symlink()) == ("precious", "mine", False)
    link.unlink()
    link.symlink_to(victim)
    write_atomically(link, "mine")
    assert (victim.read_text(), link.is_symlink()) == ("mine", True)


@both_ways
def test_what_a_killed_writer_left_is_removed_by_the_next_one(tmp_path):
    names = {
        ".plan.json.0123456789abcdef.automap-part": HOUR + 1,
        ".plan.json.fedcba9876543210.automap-part": 1,
        ".plan.json.0123456789abcdef.part": HOUR + 1,
        "notes.automap-part": HOUR + 1,
    }
    for name, age_seconds in names.items():
        (tmp_path / name).write_text("half")
        os.utime(tmp_path / name, (time.time() - age_seconds,) * 2)
    write_atomically(tmp_path / "other.json", "whole")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {*list(names)[1:], "other.json"}, "only old parts of this package's writers"


def test_a_link_with_a_part_s_name_does_not_have_its_victim_removed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / ".plan.json.0123456789abcdef.automap-part").symlink_to(victim)
    write_atomically(tmp_path / "plan.json", "whole")
    assert victim.read_text() == "precious"


def test_a_file_that_cannot_be_given_a_name_is_written_with_one(tmp_path, monkeypatch):
    def refused(*_, **__):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    write_atomically(tmp_path / "plan.json", "whole")
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


_WRITES = """
import sys
from automap.atomic_file import write_atomically
print("ready", flush=True)
number = 0
while True:
    number += 1
    write_atomically(sys.argv[1], f"{number:08d}" * 4096)
"""


def test_a_writer_that_is_killed_leaves_a_whole_file_and_nothing_else(tmp_path):
    path = tmp_path / "plan.json"
    for kill in range(3):
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
        with subprocess.Popen(
            [sys.executable, "-c", _WRITES, str(path)], stdout=subprocess.PIPE, env=environment
        ) as writer:
            assert writer.stdout.readline() == b"ready\n"
            time.sleep(0.02 * kill)
            writer.kill()
        text = path.read_text() if path.exists() else ""
        assert text == text[:8] * (len(text) // 8)
        assert len(text) in (0, 8 * 4096)
    for left in tmp_path.iterdir():
        assert left == path or left.name.endswith(".automap-part")


@both_ways
def test_a_folder_that_takes_no_file_is_said_at_once(tmp_path):
    folder = tmp_path / "folder"
    folder.write_text("no folder")
    with pytest.raises(PlanError, match="cannot be written: Not a directory"):
        write_atomically(folder / "plan.json", "text")
    check_can_be_written("-o", tmp_path / "plan.json")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
