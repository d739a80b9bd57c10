"""Processes for work that may abort, hang, or eat all memory; none outlives the one that started
it.

A child has a process group of its own: Ctrl-C in the terminal reaches the parent only, which ends
the child, with what the child started, on its way out                  -> in: `child_process`
A parent that is killed cannot do so. The child then ends by itself: when its standard input is
closed, or, if it is a parser, which does not look there while it works, when its time is up.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
import os
import signal
import subprocess
from typing import IO


@contextmanager
def child_process(
    command: Sequence[str],
    *,
    stdout: int | IO[bytes],
    stderr: int | IO[bytes],
    env: Mapping[str, str],
) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose standard input is a pipe; it is gone when the block is left."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        env=env,
        # A session of its own: Ctrl-C in a terminal reaches the parent alone, which then ends the
        # group.
        start_new_session=True,
    )
    try:
        yield process
    finally:
        end(process)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # what it was to read next is lost with it
                    pipe.close()


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a child and what it started, unless it has ended, and wait until it is gone."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def ending(status: int) -> str:
    """How a process ended: `was ended by signal 6 (SIGABRT)`, `ended with status 1`."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was ended by signal {-status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"was ended by signal {-status}"
