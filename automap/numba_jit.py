"""Compilation with numba, kept on disk where that is possible.

numba keeps machine code beside the source file, else in the user's cache folder; where neither can
be written (a read-only installation without a home) it raises, and the function is then compiled in
each process                                                                     -> in: `compiled`

On a disk that is full it raises at the first call, so nothing is kept there either
                                                                                 -> in: `_has_room`

Seconds of compilation are none of a search: its deadlines stand still meanwhile -> in: `_Pauses`

Of the source it looks at the file of the called function only. Machine code also holds what that
function calls, of whatever file, and the constants that it reads. So we write beside it what these
were when the function was loaded, and remove the machine code if they are others now
                                                                             -> in: `_forget_stale`
"""

from collections.abc import Callable, Iterator
import contextlib
from pathlib import Path
import shutil
import sys
import threading
import time
from typing import Any, Final, TypeVar

import numba
from numba.core import event
from numba.extending import is_jitted

from automap.deadline import pause_clocks


# A numpy array; the stubs' type of one element is no number, which the compiled code takes it for.
Array = Any

# Several times what all compiled functions together take.
_ROOM_BYTES: Final = 64 * 2**20

_Function = TypeVar("_Function", bound=Callable[..., object])


def inner(function: _Function) -> _Function:
    """A part of compiled functions that makes no arrays; not to be called from outside.

    Without numba's reference counting, `_nrt`, which counts every array of every tuple it is
    handed, at each call: full simulation of data-parallel NMT takes 2.5 ms without and 18 ms with
    it.
    """
    return _part(function, _nrt=False)


def inner_making_arrays(function: _Function) -> _Function:
    """A part of compiled functions that makes arrays; not to be called from outside."""
    return _part(function, _nrt=True)


def _part(function: _Function, **options: bool) -> _Function:
    njit: Any = numba.njit  # whose stubs leave these options out
    return njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)(function)


def compiled(function: _Function) -> _Function:
    """The function compiled on its first call; without the interpreter's lock."""
    uncached: Any = numba.njit(nogil=True)(function)
    try:
        dispatcher: Any = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # numba: "cannot cache function ...: no locator available"
        return uncached
    folder = Path(dispatcher.stats.cache_path)
    if not _has_room(folder):
        return uncached
    _forget_stale(folder, function)
    return dispatcher


@contextlib.contextmanager
def compilation_heard(on_compile: Callable[[], None]) -> Iterator[None]:
    """Call a function whenever numba begins to compile another one, which takes up to seconds."""

    class Listener(event.Listener):
        def on_start(self, event: event.Event) -> None:
            on_compile()

        def on_end(self, event: event.Event) -> None:
            pass

    with event.install_listener("numba:compile", Listener()):
        yield


class _Pauses(event.Listener, threading.local):
    """Stops a thread's deadlines while numba compiles in it, also what it calls."""

    def __init__(self) -> None:
        """Nothing is being compiled."""
        self._depth = 0
        self._processor_seconds = self._wall_seconds = 0.0

    def on_start(self, event: event.Event) -> None:
        """A compilation begins, or one within it."""
        if self._depth == 0:
            self._processor_seconds, self._wall_seconds = time.thread_time(), time.monotonic()
        self._depth += 1

    def on_end(self, event: event.Event) -> None:
        """The last one that began is over."""
        self._depth -= 1
        if self._depth == 0:
            processor, wall = time.thread_time(), time.monotonic()
            pause_clocks(processor - self._processor_seconds, wall - self._wall_seconds)


event.register("numba:compile", _Pauses())


def _has_room(folder: Path) -> bool:
    try:
        return shutil.disk_usage(folder).free >= _ROOM_BYTES
    except OSError:
        return False


def _cache_name(function: Callable[..., object]) -> str:
    """What the names of a function's files in numba's cache begin with."""
    name = f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}"
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    return f"{name}-{function.__code__.co_firstlineno}.{python}"


def _forget_stale(folder: Path, function: Callable[..., object]) -> None:
    """Remove the function's machine code if it was made from other sources than there are now."""
    # Times of files alone would not do: a process may compile what it loaded before an edit.
    with contextlib.suppress(OSError):
        now = _sources_text(function)
        before = folder / f"{_cache_name(function)}.sources"
        if not before.exists() or before.read_text() != now:
            for index in folder.glob(f"{_cache_name(function)}*.nbi"):
                index.unlink(missing_ok=True)
            before.write_text(now)


def _sources_text(function: Callable[..., object]) -> str:
    """What a compiled function's machine code is made of: files, with their times and sizes, and
    constants, which do not say what file they are from.
    """
    lines = []
    for names in _namespaces(function):
        file = Path(names["__file__"])
        stat = file.stat()
        lines.append(f"{file} {stat.st_mtime_ns} {stat.st_size}")
        lines += [f"{name} = {value!r}" for name, value in names.items() if _is_constant(value)]
    return "\n".join(sorted(lines))


def _namespaces(function: Callable[..., object]) -> Iterator[dict[str, Any]]:
    """The names of the function's module, of the modules of the compiled functions and named tuples
    among these, and so on from there.
    """
    # A walk over modules: compiled functions call those of other files.
    left, seen = [function.__globals__], set[str]()
    while left:
        names = left.pop()
        if names["__name__"] in seen:
            continue
        seen.add(names["__name__"])
        yield names
        for value in names.values():
            if is_jitted(value):
                left.append(value.py_func.__globals__)
            elif isinstance(value, type) and issubclass(value, tuple) and value is not tuple:
                left.append(vars(sys.modules[value.__module__]))


def _is_constant(value: object) -> bool:
    """Whether numba makes a global name's value a part of the machine code."""
    if type(value) is tuple:
        return all(_is_constant(each) for each in value)
    return isinstance(value, (int, float))
