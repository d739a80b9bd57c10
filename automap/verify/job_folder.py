"""The folder of a job for a compiler's process: removed with the job, whoever is killed.

the job ends          the one that began it removes the folder
that one is killed    a shell does, whose standard input is closed by that
                                                                      -> in: `_guarded`
the shell is too      the next job, a day later: no job takes as long -> in: `_remove_left_over`
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
import os
from pathlib import Path
import shutil
import stat
import subprocess
import tempfile
import time
from typing import Any, Final

from hlo_tools.children import child_process


_PREFIX: Final = "automap-verify-"
_LEFT_OVER_SECONDS: Final = 24 * 3600.0
# Again, as the compiler's process may write a last file meanwhile.
_REMOVE_AT_THE_END_OF_INPUT: Final = """
while read -r _; do :; done
for _ in 1 2 3 4 5; do rm -rf -- "$1" && exit; sleep 1; done
"""


@contextmanager
def job_folder() -> Iterator[Path]:
    """A new folder among the temporary files, for as long as the block runs."""
    _remove_left_over(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as name:
        with _guarded(name):
            try:
                yield Path(name)
            finally:
                shutil.rmtree(name, ignore_errors=True)


def _guarded(folder: str) -> AbstractContextManager[Any]:
    shell = shutil.which("sh")
    if shell is None:
        return nullcontext()
    return child_process(
        [shell, "-c", _REMOVE_AT_THE_END_OF_INPUT, shell, folder],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ,
    )


def _remove_left_over(folder: Path) -> None:
    oldest = time.time() - _LEFT_OVER_SECONDS
    for path in folder.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            status = path.lstat()
            # A link of that name, or another user's folder, is left alone: the place is shared.
            is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
            if is_own and status.st_mtime < oldest:
                shutil.rmtree(path, ignore_errors=True)
