"""Several processes, each with devices of its own: all run the same Python, and of a program those
that hold devices of it.

of its own   an array of the host, or one that was not put on a device on purpose: every process has
             its copy
global       any other array: one for all processes, which see the same shape and sharding; a
             process holds the shards on its own devices, which may be none

Processes notice when one of them has gone, while they wait for it  -> in: `_run_with_others`

ended        a process whose interpreter ends, with an exception or without, says so in the
             key-value store of `jax.distributed` before JAX's own end of it begins, which waits
             minutes for the others
killed       its connections are closed, and what it takes part in fails on CPU devices
frozen       JAX's service ends the others after `heartbeat_timeout_seconds` (of
             `jax.distributed.initialize`, 100), and names it

Accelerators are not waited for here, as programs are asked for ahead of them: there only JAX's
service tells.
"""

import atexit
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
import hashlib
import re
import sys
import time
from typing import Any, Final

import jax
from jax import numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np

from automap.errors import InputError, MeshMismatchError, PlanError, ProcessLostError
from automap.jax_compat import KeyValueStore, key_value_store
from automap.plan.record import PlanRecord
from automap.step.call import TracedCall


_AXIS: Final = "process"
_FOLDER: Final = "automap/ended"  # of the keys, each of which ends with a process's number
_FIRST_SLEEP_SECONDS: Final = 1e-4
_LONGEST_SLEEP_SECONDS: Final = 0.02
_LOOK_EVERY_SECONDS: Final = 0.5
_MOST_CHARACTERS: Final = 300
# What gloo and its sockets say of a process that is gone.
_CLOSED: Final = re.compile(
    r"[Gg]loo.*failed|[Cc]onnection (closed|reset|refused)|[Ss]ocket closed"
)


def process_numbers(devices: Iterable[Any]) -> tuple[int, ...]:
    """The processes that hold these devices, in ascending order."""
    return tuple(sorted({device.process_index for device in devices}))


def check_takes_part(devices: Sequence[Any]) -> None:
    """Raise `MeshMismatchError` if this process holds none of the devices of a program."""
    numbers = process_numbers(devices)
    if jax.process_index() not in numbers:
        raise MeshMismatchError(
            f"process {jax.process_index()} holds none of the {len(devices)} devices, which are of "
            f"the processes {list(numbers)}; run the step in those only, or give devices= of all "
            "processes"
        )


def is_own(value: Any) -> bool:
    """Whether every process has its copy of a value."""
    return not isinstance(value, jax.Array) or not value.committed


def absent(aval: Any, sharding: jax.sharding.Sharding) -> jax.Array:
    """The global array of a shape and type whose shards are all on devices of other processes."""
    return jax.make_array_from_single_device_arrays(aval.shape, sharding, [], dtype=aval.dtype)


def where_held(run: Any, devices: Iterable[Any]) -> Callable[..., Any]:
    """A jitted function with `out_shardings` that neither compiles nor runs in a process that holds
    none of its devices.

    There its results are absent arrays.
    """
    devices = list(devices)
    numbers = process_numbers(devices)
    if jax.process_index() in numbers:
        # One process alone waits for nobody; accelerators keep the order in which they are asked.
        is_waited_for = len(numbers) > 1 and devices[0].platform == "cpu"
        return _in_turn(run, numbers) if is_waited_for else run

    known: dict[tuple[Any, ...], Any] = {}

    # Shapes alone say what the results would be, and an array without shards is as good as another.
    def elsewhere(*args: Any) -> Any:
        key = tuple((x.shape, x.dtype) for x in jax.tree.leaves(args))
        if key not in known:
            shapes = jax.eval_shape(run, *args)
            known[key] = jax.tree.map(lambda aval: absent(aval, aval.sharding), shapes)
        return known[key]

    return elsewhere


def _in_turn(run: Any, numbers: Sequence[int]) -> Callable[..., Any]:
    """`run` alone: devices that are threads of a processor take up what is ready, not what was
    asked for first.

    Two programs of several processes would wait for each other where both hold threads.
    Accelerators keep the order.
    """
    return lambda *args, **named: _run_with_others(run, numbers, args, named)


def _run_with_others(
    run: Any, numbers: Sequence[int], args: Sequence[Any], named: Mapping[str, Any]
) -> Any:
    """The results of a program of the processes `numbers`, when they are there.

    Raises `ProcessLostError` that names who has gone.
    """
    _announce_the_end()
    # Operands first: what they wait for may be another process's program.
    try:
        _wait_for((args, named), numbers)
        return _wait_for(run(*args, **named), numbers)
    except jax.errors.JaxRuntimeError as error:
        if not _CLOSED.search(str(error)):
            raise
        raise _lost(numbers, {}) from error


def _wait_for(values: Any, numbers: Sequence[int]) -> Any:
    """`jax.block_until_ready`, which raises `ProcessLostError` if one of the processes has said
    that it ends.
    """
    leaves = [x for x in jax.tree.leaves(values) if isinstance(x, jax.Array)]
    # Only the numbers of a key say whether it is there.
    arrays: list[Any] = [jax.random.key_data(x) if is_key(x) else x for x in leaves]
    # Short sleeps first: most programs of a step end within a few milliseconds.
    sleep_seconds, look = _FIRST_SLEEP_SECONDS, time.monotonic() + _LOOK_EVERY_SECONDS
    while not all(array.is_ready() for array in arrays):
        time.sleep(sleep_seconds)
        sleep_seconds = min(2 * sleep_seconds, _LONGEST_SLEEP_SECONDS)
        if time.monotonic() > look:
            # A round trip to the store each time, so not at every look at the arrays.
            ended = _ended(numbers)
            if ended:
                raise _lost(numbers, ended)
            _raise_what_failed(arrays)
            look = time.monotonic() + _LOOK_EVERY_SECONDS
    return jax.block_until_ready(values)


def is_key(value: Any) -> bool:
    """Whether an array holds keys of random numbers, as `jax.random.key` makes them."""
    return jax.numpy.issubdtype(jax.typeof(value).dtype, jax.dtypes.prng_key)


def _raise_what_failed(arrays: Sequence[Any]) -> None:
    """The error of a device, while other devices of this process wait for it for ever."""
    for array in arrays:
        for shard in array.addressable_shards:
            if shard.data.is_ready():
                shard.data.block_until_ready()


@cache
def _announce_the_end() -> None:
    """Have this process say that it ends, when it does."""
    store = key_value_store()
    if store is not None:
        # What was registered last is called first: before JAX's own end.
        atexit.register(_announce, store, jax.process_index())


def _announce(store: KeyValueStore, number: int) -> None:
    # `last_exc` is new in Python 3.12; before it there is `last_value`.
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
    # An operation that failed says that somebody is gone, the store may say who and why.
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


def one_device_each(devices: Iterable[Any]) -> NamedSharding:
    """For what every process is to have whole: the first of these devices of each process."""
    first: dict[int, Any] = {}
    for device in devices:
        first.setdefault(device.process_index, device)
    grid = np.array([first[number] for number in sorted(first)])
    return NamedSharding(Mesh(grid, (_AXIS,), axis_types=(AxisType.Auto,)), PartitionSpec())


def gathered(devices: Sequence[Any], own: np.ndarray) -> np.ndarray:
    """What each of the processes that hold `devices` has, arrays of one shape and type, stacked in
    their order.

    All of them have to come here.
    """
    whole = one_device_each(devices)
    index = jax.process_index()
    here = [d for d in whole.mesh.devices.flat if d.process_index == index]  # pyright: ignore[reportOptionalMemberAccess]
    # Each process gives its own row; copying them to all is one all-gather.
    apart = NamedSharding(whole.mesh, PartitionSpec(_AXIS))
    mine = jax.make_array_from_single_device_arrays(
        (whole.mesh.size, *own.shape), apart, [jax.device_put(own[None], here[0])]
    )
    gather = where_held(jax.jit(jnp.copy, out_shardings=whole), devices)
    return np.asarray(gather(mine))


def check_agreement(devices: Sequence[Any], facts: Mapping[str, str]) -> None:
    """Compare what the processes that hold `devices` say, by its hash; all of them have to come
    here.

    `facts` is by subject, as "the plan". Raises `PlanError` in all of them if they differ.
    """
    # Hashes have one shape in all processes, so that they can be gathered whatever differs.
    digests = np.array(
        [np.frombuffer(hashlib.sha256(text.encode()).digest(), "uint32") for text in facts.values()]
    )
    hashes = gathered(devices, digests)
    differing = [
        f"{subject} (equal in {_alike(hashes[:, n])})"
        for n, subject in enumerate(facts)
        if (hashes[:, n] != hashes[0, n]).any()
    ]
    if differing:
        raise PlanError(
            f"the processes do not run the same: they differ in {'; '.join(differing)}. Every "
            "process has to run the same program on like arguments, with one plan: save it once "
            "and load it in all, or give all the same cache_dir"
        )


def check_same_program(plan: PlanRecord, devices: Sequence[Any]) -> None:
    """`check_agreement` on a plan of one program, where several processes hold its devices."""
    if len(process_numbers(devices)) == 1:
        return
    # Specs and constraints decide the program that XLA makes; all else of a plan is for people.
    specs = [leaf.spec for leaf in (*plan.inputs, *plan.outputs)]
    facts = {
        "the devices": str([device.id for device in devices]),
        "the plan": str((plan.mesh.axes, specs, plan.constraints)),
        "the planned step": str(plan.workload.jaxpr_sha256),
    }
    check_agreement(devices, facts)


def argument_places(leaves: Sequence[Any]) -> str:
    """The devices and slices of the arguments, as text that is the same in all processes."""
    places = [
        None
        if is_own(x)
        else [(d.id, i) for d, i in x.sharding.devices_indices_map(x.shape).items()]
        for x in leaves
    ]
    return str(places)


def check_state_types(call: TracedCall) -> None:
    """Refuse state of a Python scalar's type, which arrays do not have in processes that hold none
    of them. Raises `InputError`.
    """
    for output in call.state:
        if call.jaxpr.out_avals[output].weak_type:
            raise InputError(
                f"the result {call.result_paths[output]} has the type of a Python number, which "
                "has no place in state on several processes; give it one where it is made, as "
                "jnp.asarray(x, jnp.float32)"
            )


def _alike(rows: np.ndarray) -> str:
    """Which processes have equal rows, as "[0, 1] and [2]"."""
    groups: dict[bytes, list[int]] = {}
    for number, row in enumerate(rows):
        groups.setdefault(row.tobytes(), []).append(number)
    return " and ".join(map(str, groups.values()))
