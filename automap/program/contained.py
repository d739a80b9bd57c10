"""Running code that a command line names, without letting it change the process that plans.

While it runs, what it prints goes to stderr. Afterwards the process is what it was: working folder,
environment, handlers of signals, recursion limit, permissions of new files, filters of warnings,
standard streams. All of these are put back at the end, not at once: a step may need while it is
traced what its module has set when it was imported.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
import os
import signal
import sys
import threading
import warnings


@contextmanager
def contained() -> Iterator[None]:
    """Run code of the user's in here: loading a target, tracing its step."""
    with ExitStack() as stack:
        stack.enter_context(_streams_put_back())
        stack.enter_context(_folder_put_back())
        stack.enter_context(_environment_put_back())
        stack.enter_context(_signals_put_back())
        stack.enter_context(_limits_put_back())
        stack.enter_context(warnings.catch_warnings())
        stack.enter_context(redirect_stdout(sys.stderr))
        yield


@contextmanager
def _streams_put_back() -> Iterator[None]:
    before = sys.stdin, sys.stdout, sys.stderr
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = before


@contextmanager
def _folder_put_back() -> Iterator[None]:
    try:
        before = os.getcwd()
    except FileNotFoundError:  # it was removed
        before = None
    try:
        yield
    finally:
        if before is not None:
            with suppress(OSError):
                os.chdir(before)


@contextmanager
def _environment_put_back() -> Iterator[None]:
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def _signals_put_back() -> Iterator[None]:
    # Only the main thread may set handlers.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            # None: a handler that was not set by Python, which cannot be set again either.
            if handler is not None and signal.getsignal(number) != handler:
                signal.signal(number, handler)


@contextmanager
def _limits_put_back() -> Iterator[None]:
    recursion = sys.getrecursionlimit()
    permissions = os.umask(0o077)
    os.umask(permissions)
    try:
        yield
    finally:
        sys.setrecursionlimit(recursion)
        os.umask(permissions)
