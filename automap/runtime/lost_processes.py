"""Processes that work together notice when one of them has gone, while they wait for it.

    ended    a process whose interpreter ends, with an exception or without, says so in the
             key-value store of `jax.distributed` before JAX's own end of it begins, which waits
             minutes for the others
    killed   its connections are closed, and what it takes part in fails on CPU devices
    frozen   JAX's service ends the others after `heartbeat_timeout_seconds` (of
             `jax.distributed.initialize`, 100), and names it

Accelerators are not waited for here, as programs are asked for ahead of them: there only JAX's
service tells.
"""

import atexit
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
import re
import sys
import time
from typing import Any, Final

import jax

from automap.errors import ProcessLostError
from automap.jax_compat import KeyValueStore, key_value_store


_FOLDER: Final = "automap/ended"
_FIRST_SLEEP_SECONDS: Final = 1e-4
_LONGEST_SLEEP_SECONDS: Final = 0.02
_LOOK_EVERY_SECONDS: Final = 0.5
_MOST_CHARACTERS: Final = 300
# What gloo and its sockets say of a process that is gone.
_CLOSED: Final = re.compile(
    r"[Gg]loo.*failed|[Cc]onnection (closed|reset|refused)|[Ss]ocket closed"
)


def run_with_others(
    run: Any, numbers: Sequence[int], args: Sequence[Any], named: Mapping[str, Any]
) -> Any:
    """The results of a program of the processes `numbers`, when they are there.

    Raises `ProcessLostError` that names who has gone.
    """
    announce_the_end()
    # Operands first: what they wait for may be another process's program.
    try:
        wait_for((args, named), numbers)
        return wait_for(run(*args, **named), numbers)
    except jax.errors.JaxRuntimeError as error:
        if not _CLOSED.search(str(error)):
            raise
        raise _lost(numbers, {}) from error


def wait_for(values: Any, numbers: Sequence[int]) -> Any:
    """`jax.block_until_ready`, which raises `ProcessLostError` if one of the processes has said
    that it ends.
    """
    arrays: list[Any] = [x for x in jax.tree.leaves(values) if isinstance(x, jax.Array)]
    # Short sleeps first: most programs of a step end within a few milliseconds.
    sleep_seconds, look = _FIRST_SLEEP_SECONDS, time.monotonic() + _LOOK_EVERY_SECONDS
    while not all(array.is_ready() for array in arrays):
        time.sleep(sleep_seconds)
        sleep_seconds = min(2 * sleep_seconds, _LONGEST_SLEEP_SECONDS)
        if time.monotonic() > look:
            ended = _ended(numbers)
            if ended:
                raise _lost(numbers, ended)
            _raise_what_failed(arrays)
            look = time.monotonic() + _LOOK_EVERY_SECONDS
    return jax.block_until_ready(values)


def _raise_what_failed(arrays: Sequence[Any]) -> None:
    """The error of a device, while other devices of this process wait for it for ever."""
    for array in arrays:
        for shard in array.addressable_shards:
            if shard.data.is_ready():
                shard.data.block_until_ready()


@cache
def announce_the_end() -> None:
    """Have this process say that it ends, when it does."""
    store = key_value_store()
    if store is not None:
        # What was registered last is called first: before JAX's own end.
        atexit.register(_announce, store, jax.process_index())


def _announce(store: KeyValueStore, number: int) -> None:
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    why = "" if error is None else f"{type(error).__name__}: {error}"
    with suppress(Exception):  # nobody is left to be told
        store.key_value_set(f"{_FOLDER}/{number}", why[:_MOST_CHARACTERS] or "its program is done")


def _ended(numbers: Sequence[int]) -> Mapping[int, str]:
    """Those of the processes that have said that they end, with why."""
    store = key_value_store()
    if store is None:
        return {}
    try:
        rows = store.key_value_dir_get(_FOLDER)
    except jax.errors.JaxRuntimeError:  # there is no word yet, or nobody who keeps it
        return {}
    reasons = {int(key.rpartition("/")[2]): why for key, why in rows}
    return {number: reasons[number] for number in numbers if number in reasons}


def _lost(numbers: Sequence[int], ended: Mapping[int, str]) -> ProcessLostError:
    own = jax.process_index()
    others = [number for number in numbers if number != own]
    ended = ended or _ended(others)
    if ended:
        who = " and ".join(f"process {number} has ended ({why})" for number, why in ended.items())
    elif len(others) == 1:
        who = f"process {others[0]} no longer answers"
    else:
        who = f"one of the processes {others} no longer answers"
    return ProcessLostError(
        f"{who}, and process {own} cannot go on with the step without it; its own log says more; "
        "start all processes again from the last checkpoint"
    )
