"""Reading files under limits: regular files only, and so many bytes, before and after
decompression.

A device, a named pipe or a socket would never end, or wait for ever; a folder is no file. None of
them is read                                                                  -> in: `read_file`
A few bytes of gzip may stand for gigabytes                                   -> in: `unzipped`
"""

from collections.abc import Iterator
from contextlib import contextmanager
import gzip
import io
import os
from pathlib import Path
import stat
from typing import BinaryIO, Final
import zlib

from hlo_tools.errors import FileError


MOST_PROGRAM_BYTES: Final = 2**28
"""Of a program: HLO in any form, decompressed. T5-11B, unrolled, takes 3 MB."""

# Text and protos shrink to a 20th or a 40th; zeros, which constants may be, to a 1030th.
_MOST_RATIO: Final = 400
_FREE_BYTES: Final = 2**24
_GZIP_MAGIC: Final = b"\x1f\x8b"
_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def read_file(path: str | Path, most_bytes: int) -> bytes:
    """The content of a regular file of at most `most_bytes`.

    Raises `FileError` for one that cannot be read, is of another kind, or is larger.
    """
    with _opened(path, most_bytes) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:  # as those of /proc, which say that they are empty
        raise FileError(_too_large(most_bytes, "it has more"))
    return content


def check_file(path: str | Path, most_bytes: int) -> None:
    """Raise `FileError` where `read_file` would; for libraries that open the file themselves."""
    with _opened(path, most_bytes):
        pass


@contextmanager
def _opened(path: str | Path, most_bytes: int) -> Iterator[BinaryIO]:
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for somebody to write to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            _check_status(os.fstat(descriptor), most_bytes)
            with open(descriptor, "rb", closefd=False) as file:
                yield file
        finally:
            os.close(descriptor)
    except FileError:
        raise
    except (OSError, ValueError) as error:  # a name with a null byte is a ValueError
        raise FileError(getattr(error, "strerror", None) or str(error)) from error


def _check_status(status: os.stat_result, most_bytes: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        kinds = (name for is_kind, name in _KINDS if is_kind(status.st_mode))
        kind = next(kinds, "of a special kind")
        raise FileError(f"is {kind}; allowed: a regular file; copy what it holds to one")
    if status.st_size > most_bytes:
        raise FileError(_too_large(most_bytes, f"it has {status.st_size}"))


def is_gzip(content: bytes) -> bool:
    """Whether bytes begin as a gzip file does."""
    return content.startswith(_GZIP_MAGIC)


def unzipped(content: bytes, most_bytes: int) -> bytes:
    """What a gzip file holds.

    Raises `FileError` for a damaged one, and one that holds more than `most_bytes`, or more times
    its own size than programs do.
    """
    allowed = min(most_bytes, max(_MOST_RATIO * len(content), _FREE_BYTES))
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            whole = file.read(allowed + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise FileError(f"damaged gzip file: {error}") from error
    if len(whole) > most_bytes:
        raise FileError(_too_large(most_bytes, "it decompresses to more"))
    if len(whole) > allowed:
        raise FileError(
            f"{len(content)} bytes of gzip decompress to over {_MOST_RATIO} times as many; "
            f"allowed: a ratio of {_MOST_RATIO}; decompress the file first"
        )
    return whole


def _too_large(most_bytes: int, got: str) -> str:
    return f"is too large: {got}; allowed: {most_bytes} bytes"
