"""Integer programmes by `scipy.optimize.milp`, without what HiGHS says on standard output.

HiGHS 1.12, of scipy 1.17, prints `HighsMipSolverData::transformNewIntegerFeasibleSolution
tmpSolver.run();` whenever it mends a solution, whatever `disp` is: a `printf` that no option turns
off, in the middle of a plan that goes to a pipe. So while it solves, what the process writes to its
standard output is kept in a file; all but those lines is written on afterwards, in its order, since
other threads of a user's program may have written it.
"""

from collections.abc import Iterator
import contextlib
import ctypes
import os
import tempfile
import threading
from typing import Any, BinaryIO, Final

import scipy  # its `optimize` is loaded at first use, which most runs never come to


_STDOUT: Final = 1
_NOISE: Final = b"HighsMipSolverData::"
# The standard output is one for all threads.
_ONE_AT_A_TIME: Final = threading.Lock()


def milp(objective: Any, **how: Any) -> "scipy.optimize.OptimizeResult":
    """What `scipy.optimize.milp` returns of the same arguments."""
    with _ONE_AT_A_TIME, _without_noise():
        return scipy.optimize.milp(objective, **how)


@contextlib.contextmanager
def _without_noise() -> Iterator[None]:
    try:
        terminal = os.dup(_STDOUT)
    except OSError:  # a process that has closed its standard output
        yield
        return
    with tempfile.TemporaryFile() as kept:
        _flush_c_streams()
        os.dup2(kept.fileno(), _STDOUT)
        try:
            yield
        finally:
            # In a pipe what C has printed waits in a buffer of its own.
            _flush_c_streams()
            os.dup2(terminal, _STDOUT)
            os.close(terminal)
            _write_on(kept)


def _flush_c_streams() -> None:
    ctypes.CDLL(None).fflush(None)


def _write_on(kept: BinaryIO) -> None:
    kept.seek(0)
    lines = [line for line in kept if not line.startswith(_NOISE)]
    if lines:
        with open(_STDOUT, "wb", closefd=False) as out:
            out.writelines(lines)
