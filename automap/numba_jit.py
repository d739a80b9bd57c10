"""Compilation with numba, kept on disk where that is possible.

numba keeps machine code beside the source file, else in the user's cache folder; where neither can
be written (a read-only installation without a home) it raises, and the function is then compiled in
each process                                                                     -> in: `compiled`

On a disk that is full it raises at the first call, so nothing is kept there either
                                                                                  -> in: `_has_room`

It looks at the file of the called function only, so code kept before another file of the function's
folder, or of one that this is in, changed would be run stale: such code is removed
                                                                              -> in: `_forget_stale`
"""

from collections.abc import Callable, Iterator
import contextlib
from pathlib import Path
import shutil
import sys
from typing import Any, Final, TypeVar

import numba
from numba.core import event


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
    _forget_stale(folder, Path(function.__code__.co_filename).parent)
    return dispatcher


def is_compiled(function: Callable[..., object]) -> bool:
    """Whether a `compiled` function need not be compiled: it is in memory, or on disk for arguments
    of some types.
    """
    dispatcher: Any = function
    if dispatcher.signatures:
        return True
    folder, source = dispatcher.stats.cache_path, dispatcher.py_func
    name = f"{source.__module__.rpartition('.')[2]}.{source.__qualname__}"
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    kept = f"{name}-{source.__code__.co_firstlineno}.{python}*.nbi"
    return folder is not None and any(Path(folder).glob(kept))


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


def _has_room(folder: Path) -> bool:
    try:
        return shutil.disk_usage(folder).free >= _ROOM_BYTES
    except OSError:
        return False


def _forget_stale(folder: Path, sources: Path) -> None:
    with contextlib.suppress(OSError):
        package = Path(__file__).parent
        folders = [sources, *(each for each in sources.parents if package in each.parents)]
        newest = max(path.stat().st_mtime for each in folders for path in each.glob("*.py"))
        for index in folder.glob("*.nbi"):
            if index.stat().st_mtime < newest:
                index.unlink(missing_ok=True)
