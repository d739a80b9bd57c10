"""The standard streams of a command: stdout is the result's alone, stderr is without the notices of
compilers.

Standard output. What others print goes to stderr, so that a script reads nothing but the result:

    descriptor 1    is stderr while a command runs, for code in C and for processes that a target
                    starts
    `sys.stdout`    is the real standard output, for what the command itself says; for a target it
                    is stderr                                  -> in: `automap.program.contained`

Standard error. What JAX's libraries log about a machine that lacks a GPU or a TPU is left out:

    descriptor 2    a pipe while a command runs, for code in C and for processes that a target
                    starts; a small process hands on what comes through it, but for the log lines of
                    absl and what belongs to them                     -> in: `is_notice`
    `sys.stderr`    the real standard error, for what Python writes: messages, progress, tracebacks

It is a process and not a thread, so that the last words of a library that aborts are handed on too.
Fatal ones are no notices.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
import os
import re
import signal
import sys
import time
from typing import Final


_STDOUT: Final = 1
_STDERR: Final = 2
_NOTICE: Final = re.compile(
    rb"WARNING: (All log messages before absl::InitializeLog|Logging before InitGoogle)\(\)"
    rb"|[IWE][0-9]{4} [0-9:.]+ +[0-9]+ [^ \]]+:[0-9]+\] "
    rb"|[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:.]+: [IWE] [^ \]]+:[0-9]+\] "
    rb"|Failed to find host bounds for accelerator type: "
    rb"|=== Source Location Trace: ==="
    # A line of such a trace.
    rb"|[\w.-]+/[\w./-]+\.cc:[0-9]+\s*$"
)
_READ_BYTES: Final = 2**16
_LAST_WORDS_SECONDS: Final = 1.0


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
    # A second descriptor of the real output, before the number 1 is given to stderr.
    descriptor = os.dup(_STDOUT)
    _send_to_stderr()
    sys.stdout = os.fdopen(
        descriptor,
        "w",
        encoding=before.encoding,
        errors="backslashreplace",
        # By lines on a terminal, as Python does; in a pipe results are written in one piece.
        buffering=1 if before.isatty() else -1,
    )
    try:
        yield
    finally:
        # Python's object first, then the number: whatever prints in between is not lost.
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
    # The interpreter prints and flushes once more when it ends.
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


@contextmanager
def without_notices() -> Iterator[None]:
    """Keep notices of compilers from standard error; nothing happens where that is no file, as in a
    test.
    """
    before = sys.stderr
    if not (hasattr(os, "fork") and _is_standard_error()):
        yield
        return
    # What was said before has to come out before the child hands on anything.
    before.flush()
    descriptor = os.dup(_STDERR)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        # The child would never see the end of a pipe that it holds open for writing itself.
        os.close(writer)
        _hand_on(reader, descriptor)
    os.close(reader)
    os.dup2(writer, _STDERR)
    os.close(writer)
    sys.stderr = os.fdopen(
        descriptor, "w", encoding=before.encoding, errors="backslashreplace", buffering=1
    )
    try:
        yield
    finally:
        own, sys.stderr = sys.stderr, before
        os.dup2(descriptor, _STDERR)
        _wait_for(child)
        with suppress(OSError, ValueError):
            own.close()


def is_notice(line: bytes) -> bool:
    """Whether a line is what a compiler or its runtime logs, short of a fatal error."""
    return _NOTICE.match(line) is not None


def _is_standard_error() -> bool:
    try:
        return sys.stderr.fileno() == _STDERR
    except (OSError, ValueError, AttributeError):
        return False


def _hand_on(reader: int, to: int) -> None:
    """The child: ends, and the process with it, when nobody has the pipe open for writing any
    more.
    """
    # Ctrl-C goes to all processes of a terminal: this one outlives the command, to hand on what
    # that says of it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Nobody may wait for the end of the command's output because this process has it open.
    for descriptor in {0, 1, _STDERR} - {reader, to}:
        with suppress(OSError):
            os.close(descriptor)
    rest = b""
    try:
        while chunk := os.read(reader, _READ_BYTES):
            # Whole lines only: a notice is known by how its line begins.
            *lines, rest = (rest + chunk).split(b"\n")
            kept = b"".join(line + b"\n" for line in lines if not is_notice(line))
            _write(to, kept)
        _write(to, b"" if is_notice(rest) else rest)
    finally:
        # Without Python's way out, which would run what the parent has registered.
        os._exit(0)


def _write(to: int, data: bytes) -> None:
    while data:
        # A write to a pipe may take a part only.
        data = data[os.write(to, data) :]


def _wait_for(child: int) -> None:
    """Until what was written is handed on; not for a process of a target that lives on and may
    write more.
    """
    deadline = time.monotonic() + _LAST_WORDS_SECONDS
    with suppress(ChildProcessError):
        while os.waitpid(child, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.002)
