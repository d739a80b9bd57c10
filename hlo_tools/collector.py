"""Python's cyclic garbage collector, paused while large structures are built.

Tens of thousands of small objects that all stay alive make the collector scan the heap again and
again and find nothing.
"""

import atexit
from collections.abc import Iterator
from contextlib import contextmanager
import gc


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the collector, also as a decorator; nothing happens if it is off already."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def skip_final_collection() -> None:
    """Have the interpreter end without looking for cycles in what ends with it."""
    atexit.register(gc.freeze)
