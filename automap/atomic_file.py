"""Files that are whole or not there, in folders that others may write to as well.

    write    beside its place, in a file that has no name where the system knows such: a writer that
             is killed leaves nothing
    name     `.<name>.<16 hex digits>.automap-part`, for the moment before it is moved to its place
    clean    what a killed writer has left under such a name is removed by the next one that writes
             there, an hour later

A link at its place is followed where the user gave the place, and replaced in a cache, where anyone
may have put it.
"""

import contextlib
import os
from pathlib import Path
import re
import secrets
import stat
import time
from typing import BinaryIO, Final, Literal

from automap.errors import InputError, PlanError


Links = Literal["follow", "replace"]
"""What is done where a file's place is taken by a symbolic link."""

# What the system, a name with a null byte, and a loop of links raise.
_CANNOT: Final = (OSError, ValueError, RuntimeError)
_PART: Final = re.compile(r"\..+\.[0-9a-f]{16}\.automap-part")
_LEFT_OVER_SECONDS: Final = 3600.0
# Names may have 255 bytes, a character up to four.
_NAME_CHARACTERS: Final = 50
# Of a new file, less what the process's umask takes.
_NEW_FILE_MODE: Final = 0o666


def write_atomically(path: str | Path, content: str | bytes, *, links: Links = "follow") -> None:
    """Put `content` (text as UTF-8) at `path`, whole or not at all; raises `PlanError` when it
    cannot be written.

    A file that is replaced hands on its permissions, unless `links` says "replace".
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        target = _place(path, links)
        _remove_left_over(target.parent)
        part = _part_beside(target)
        try:
            _write_new(part, data, _permissions(target) if links == "follow" else None)
            os.replace(part, target)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise
    except _CANNOT as error:
        raise PlanError(
            f"{str(path)!r}: cannot be written: {reason(error)}; nothing was changed there; choose "
            "a folder that exists and has room"
        ) from error


def check_can_be_written(option: str, path: str | Path) -> None:
    """Raise `InputError` now rather than `PlanError` after long work, where `write_atomically`
    would fail.
    """
    folder = Path(path).absolute().parent
    try:
        if not folder.is_dir():
            raise InputError(
                f"{option} {path}: there is no folder {Path(path).parent}; make it first"
            )
        part = _part_beside(_place(path, "follow"))
        _write_new(part, b"", None)
        part.unlink()
    except PlanError as error:
        raise InputError(f"{option} {error}") from error
    except _CANNOT as error:
        raise InputError(
            f"{option} {path}: cannot be written: {reason(error)}; choose a folder that you may "
            "write to"
        ) from error


def reason(error: Exception) -> str:
    """What the system says, without its number and the name of the file."""
    return getattr(error, "strerror", None) or str(error)


def _place(path: str | Path, links: Links) -> Path:
    """The file that is replaced. Raises `PlanError` for what is no regular file."""
    if links == "replace":
        return Path(path).absolute()
    target = Path(path).resolve()
    if target.is_symlink():  # Python 3.13 hands a loop of links on as it is.
        raise PlanError(f"{str(path)!r}: is a loop of links; allowed: the name of a file")
    if target.exists() and not target.is_file():
        raise PlanError(f"{str(path)!r}: is no regular file; allowed: the name of a file")
    return target


def _part_beside(target: Path) -> Path:
    return target.with_name(
        f".{target.name[:_NAME_CHARACTERS]}.{secrets.token_hex(8)}.automap-part"
    )


def _permissions(target: Path) -> int | None:
    try:
        return stat.S_IMODE(target.stat().st_mode) & 0o777
    except FileNotFoundError:
        return None


def _write_new(part: Path, data: bytes, mode: int | None) -> None:
    """A new file of this name, on the disk; what has the name already, a link too, is an error."""
    # Not every system, kind of file system or sandbox can; what else is wrong is said by the other
    # way.
    with contextlib.suppress(OSError, AttributeError):
        flags = os.O_WRONLY | os.O_TMPFILE
        with open(os.open(part.parent, flags, _NEW_FILE_MODE), "wb") as file:
            _fill(file, data, mode)
            _name(file.fileno(), part)
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with open(os.open(part, flags, _NEW_FILE_MODE), "wb") as file:
        _fill(file, data, mode)


def _fill(file: BinaryIO, data: bytes, mode: int | None) -> None:
    file.write(data)
    if mode is not None:
        os.fchmod(file.fileno(), mode)
    file.flush()
    os.fsync(file.fileno())


def _name(descriptor: int, part: Path) -> None:
    """Give a file without a name one."""
    # With a folder's descriptor Python calls linkat, which can follow the link that stands for a
    # descriptor.
    folder = os.open(part.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.link(f"/proc/self/fd/{descriptor}", part.name, dst_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)


def _remove_left_over(folder: Path) -> None:
    oldest = time.time() - _LEFT_OVER_SECONDS
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not _PART.fullmatch(entry.name):
                continue
            with contextlib.suppress(OSError):
                if entry.stat(follow_symlinks=False).st_mtime < oldest:
                    os.unlink(entry.path)
