"""The folder of a job for a compiler's process: removed with the job, whoever is killed.

the job ends          the one that began it removes the folder
that one is killed    the compiler's process does (`automap.verify.worker`)
both, or before       the next job, a day later: no job takes as long                      -> in: `_remove_left_over`
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
import os
from pathlib import Path
import shutil
import stat
import tempfile
import time
from typing import Final


_PREFIX: Final = "automap-verify-"
_LEFT_OVER_SECONDS: Final = 24 * 3600.0


@contextmanager
def job_folder() -> Iterator[Path]:
    """A new folder among the temporary files, for as long as the block runs."""
    _remove_left_over(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as name:
        yield Path(name)


def _remove_left_over(folder: Path) -> None:
    oldest = time.time() - _LEFT_OVER_SECONDS
    for path in folder.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            status = path.lstat()
            is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
            if is_own and status.st_mtime < oldest:
                shutil.rmtree(path, ignore_errors=True)
