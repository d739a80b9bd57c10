"""Standard output is the command's alone: what others print goes to stderr, so that a script reads
nothing but the result.

descriptor 1   is stderr while a command runs, for code in C and for processes that a target starts
`sys.stdout`   is the real standard output, for what the command itself says; for a target it is
               stderr                                             -> in: `automap.program.contained`
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
import os
import sys


_STDOUT, _STDERR = 1, 2


@contextmanager
def own_stdout() -> Iterator[None]:
    """Keep standard output for `sys.stdout`; nothing happens where that is no file, or closed, as
    in a test.
    """
    before = sys.stdout
    if not _is_standard_output():
        yield
        return
    before.flush()
    descriptor = os.dup(_STDOUT)
    _send_to_stderr()
    sys.stdout = os.fdopen(
        descriptor,
        "w",
        encoding=before.encoding,
        errors="backslashreplace",
        buffering=1 if before.isatty() else -1,
    )
    try:
        yield
    finally:
        own, sys.stdout = sys.stdout, before
        os.dup2(descriptor, _STDOUT)
        # What could not be written was said when it was flushed.
        with suppress(OSError, ValueError):
            own.close()


def leave_stdout() -> None:
    """What is printed from now on, as modules of a target do when the interpreter ends, goes to
    stderr too.
    """
    with suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
    sys.stdout = sys.stderr
    with suppress(OSError):
        _send_to_stderr()


def _is_standard_output() -> bool:
    try:
        return sys.stdout.fileno() == _STDOUT
    except (OSError, ValueError, AttributeError):
        return False


def _send_to_stderr() -> None:
    try:
        os.dup2(_STDERR, _STDOUT)
    except OSError:  # there is none
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, _STDOUT)
        os.close(nothing)
