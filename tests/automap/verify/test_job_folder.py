"""What jobs that were killed have left is removed by a later one, and nothing else."""

import os
import tempfile
import time

from automap.verify.job_folder import job_folder


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
