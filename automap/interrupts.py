"""Ctrl-C: a search ends with its best plan, anything else at once; a second one ends everything.

    raised   outside of a search KeyboardInterrupt is raised where the signal finds the main thread        -> in: `interruptible`
    noted    in a search, and while its plan is written down, the first one is only noted: the search sees that its deadline
             is over                                                                                       -> in: `noted`

Raised within a callback of the garbage collector (JAX has one) or a `__del__`, an exception reaches nobody: Python prints it and
goes on. `sys.unraisablehook` hears of it, and the exception is raised again a moment later.

Handlers are those of the process; they are put back, and set only in the main thread, as only it gets signals.
"""

import _thread
from collections.abc import Iterator
from contextlib import contextmanager
import signal
import sys
import threading
from types import FrameType
from typing import Any, Final


_AGAIN_SECONDS: Final = 0.02


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does: by way of everything that cleans up."""


class Interrupts:
    """Counts what the user asked for; one that is not installed is never asked."""

    def __init__(self) -> None:
        """Nothing is asked yet."""
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
        before, self._is_noting = self._is_noting, True
        try:
            yield
        finally:
            self._is_noting = before

    def on_interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handler of SIGINT."""
        if number in self._lost:
            self._lost.discard(number)
        else:
            self._count += 1
        if not (self._is_noting and self._count == 1):
            raise KeyboardInterrupt

    def on_termination(self, number: int, frame: FrameType | None) -> None:
        """Handler of SIGTERM."""
        raise Terminated

    def raise_again(self, number: int) -> None:
        """The exception of a signal was lost: have the signal's handler called once more, out of where it was lost."""
        self._lost.add(number)
        timer = threading.Timer(_AGAIN_SECONDS, _thread.interrupt_main, [number])
        timer.daemon = True
        timer.start()


@contextmanager
def interruptible() -> Iterator[None]:
    """A whole command, which Ctrl-C and SIGTERM end; what ignores Ctrl-C, as in the background of a script, goes on to."""
    with _installed(Interrupts(), signal.SIGINT, signal.SIGTERM):
        yield


@contextmanager
def noted() -> Iterator[Interrupts]:
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
    owner = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
    return owner if isinstance(owner, Interrupts) else None


@contextmanager
def _installed(interrupts: Interrupts, *numbers: signal.Signals) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {
        signal.SIGINT: interrupts.on_interrupt, signal.SIGTERM: interrupts.on_termination,
    }  # fmt: skip
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
