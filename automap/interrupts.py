"""Ctrl-C: a search ends with its best plan, anything else at once; a second one ends everything.

    at once  while the command is imported, and when it is done: the process ends there and then
                                                                                 -> in: `EndsAtOnce`
    raised   outside of a search KeyboardInterrupt is raised where the signal finds the main thread
                                                                              -> in: `interruptible`
    noted    in a search, and while its plan is written down, the first one is only noted: the
             search sees that its deadline is over -> in: `note_interrupts`

Raised within a callback of the garbage collector (JAX has one) or a `__del__`, an exception reaches
nobody: Python prints it and goes on. `sys.unraisablehook` hears of it, and the exception is raised
again a moment later.

Handlers are those of the process; they are put back, and set only in the main thread, as only it
gets signals.
"""

import _thread
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any, Final


# Until the callback that swallowed the exception has returned.
_AGAIN_SECONDS: Final = 0.02
_STDERR: Final = 2
_LAST_WORDS: Final = {
    signal.SIGINT: b"automap: interrupted\n",
    signal.SIGTERM: b"automap: ended by SIGTERM\n",
}
_SIGNALLED_STATUS: Final = 128


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does: by way of everything that cleans up."""


class EndsAtOnce:
    """The handler of a process that is nothing but the command: says why, and ends it with the
    signal's status.

    For the time of imports. An exception would pass through half-initialised modules, some of which
    swallow it or crash.
    """

    def __init__(self) -> None:
        """A child of a fork says nothing: its parent has got the signal too."""
        self._process = os.getpid()

    def install(self) -> None:
        """Handle SIGINT and SIGTERM, in this order, unless they are ignored."""
        for number in _LAST_WORDS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                signal.signal(number, self)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if os.getpid() == self._process:
            with suppress(OSError):
                # By its number: Python's stream may be half initialised, or be locked by what the
                # signal interrupted.
                os.write(_STDERR, _LAST_WORDS[signal.Signals(number)])
        # At once, without handlers of the interpreter's end, which are of modules half imported.
        os._exit(_SIGNALLED_STATUS + number)


class Interrupts:
    """Counts what the user asked for; one that is not installed is never asked."""

    def __init__(self, at_once: EndsAtOnce | None = None) -> None:
        """Nothing is asked yet; `at_once` handles what comes while modules are imported."""
        self._at_once = at_once
        self._is_importing = False
        self._count = 0
        self._is_noting = False
        self._lost: set[int] = set()

    @property
    def is_asked(self) -> bool:
        """Whether the user wants what runs to end."""
        return self._count > 0

    @contextmanager
    def noting(self) -> Iterator[None]:
        """The first Ctrl-C is noted, nothing more."""
        # Nested: what was the case before is restored, as a search may be within one.
        before, self._is_noting = self._is_noting, True
        try:
            yield
        finally:
            self._is_noting = before

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Ctrl-C is raised, within what notes it: for a part that has to be left at once."""
        before, self._is_noting = self._is_noting, False
        try:
            yield
        finally:
            self._is_noting = before

    @contextmanager
    def importing(self) -> Iterator[None]:
        """A signal ends the process at once, if that is nothing but the command."""
        self._is_importing = True
        try:
            yield
        finally:
            self._is_importing = False

    def on_interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handler of SIGINT."""
        self._end_an_import(number, frame)
        # Called for an exception that was lost: the user has not pressed Ctrl-C once more.
        if number in self._lost:
            self._lost.discard(number)
        else:
            self._count += 1
        # The first one in a search is only counted; whoever presses twice wants out.
        if not (self._is_noting and self._count == 1):
            raise KeyboardInterrupt

    def on_termination(self, number: int, frame: FrameType | None) -> None:
        """Handler of SIGTERM."""
        self._end_an_import(number, frame)
        raise Terminated

    def _end_an_import(self, number: int, frame: FrameType | None) -> None:
        if self._is_importing and self._at_once is not None:
            self._at_once(number, frame)

    def raise_again(self, number: int) -> None:
        """The exception of a signal was lost: have the signal's handler called once more, out of
        where it was lost.
        """
        self._lost.add(number)
        # `interrupt_main` runs the handler in the main thread, as a signal would.
        timer = threading.Timer(_AGAIN_SECONDS, _thread.interrupt_main, [number])
        timer.daemon = True
        timer.start()


@contextmanager
def interruptible() -> Iterator[None]:
    """A whole command, which Ctrl-C and SIGTERM end; what ignores Ctrl-C, as in the background of a
    script, goes on to.
    """
    outer = signal.getsignal(signal.SIGINT)
    new = Interrupts(outer if isinstance(outer, EndsAtOnce) else None)
    with _installed(new, signal.SIGINT, signal.SIGTERM):
        yield


@contextmanager
def importing() -> Iterator[None]:
    """Modules of the command or of its target are imported, in the main thread of an
    `interruptible` one.
    """
    active = _active()
    with nullcontext() if active is None else active.importing():
        yield


@contextmanager
def note_interrupts() -> Iterator[Interrupts]:
    """A search, also of a library's user: the first Ctrl-C is noted, the second is raised."""
    active = _active()
    if active is not None:
        with active.noting():
            yield active
        return
    new = Interrupts()
    with _installed(new, signal.SIGINT), new.noting():
        yield new


def _active() -> Interrupts | None:
    # The process's handler is the only state: a method of the `Interrupts` in charge, so that no
    # module needs a global.
    owner = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
    return owner if isinstance(owner, Interrupts) else None


@contextmanager
def _installed(interrupts: Interrupts, *numbers: signal.Signals) -> Iterator[None]:
    # Python sets handlers in the main thread only; another one is not interrupted anyway.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {
        signal.SIGINT: interrupts.on_interrupt,
        signal.SIGTERM: interrupts.on_termination,
    }
    before = {number: signal.getsignal(number) for number in numbers}
    # None: a handler that was not set by Python, which could not be put back.
    taken = [n for n, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    hook = sys.unraisablehook
    sys.unraisablehook = _hearing(interrupts, hook)
    for number in taken:
        signal.signal(number, handlers[number])
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, before[number])
        sys.unraisablehook = hook


def _hearing(interrupts: Interrupts, otherwise: Any) -> Any:
    def hear(lost: Any) -> None:
        if isinstance(lost.exc_value, Terminated):
            interrupts.raise_again(signal.SIGTERM)
        elif isinstance(lost.exc_value, KeyboardInterrupt):
            interrupts.raise_again(signal.SIGINT)
        else:
            otherwise(lost)

    return hear
