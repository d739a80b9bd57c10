"""Several processes, each with devices of its own: all run the same Python, and of a program those
that hold devices of it.

of its own   an array of the host, or one that was not put on a device on purpose: every process has
             its copy
global       any other array: one for all processes, which see the same shape and sharding; a
             process holds the shards on its own devices, which may be none
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import hashlib
from typing import Any

import jax
from jax import numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np

from automap.errors import MeshMismatchError, PlanError
from automap.plan.record import PlanRecord
from automap.runtime.lost_processes import run_with_others


_AXIS = "process"


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
        is_waited_for = len(numbers) > 1 and devices[0].platform == "cpu"
        return _in_turn(run, numbers) if is_waited_for else run

    # Shapes alone say what the results would be.
    def elsewhere(*args: Any) -> Any:
        return jax.tree.map(lambda aval: absent(aval, aval.sharding), jax.eval_shape(run, *args))

    return elsewhere


def _in_turn(run: Any, numbers: Sequence[int]) -> Callable[..., Any]:
    """`run` alone: devices that are threads of a processor take up what is ready, not what was
    asked for first.

    Two programs of several processes would wait for each other where both hold threads.
    Accelerators keep the order.
    """
    return lambda *args, **named: run_with_others(run, numbers, args, named)


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
    here = [d for d in whole.mesh.devices.flat if d.process_index == jax.process_index()]  # pyright: ignore[reportOptionalMemberAccess]
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
    specs = [leaf.spec for leaf in (*plan.inputs, *plan.outputs)]
    facts = {
        "the devices": str([device.id for device in devices]),
        "the plan": str((plan.mesh.axes, specs, plan.constraints)),
        "the planned step": str(plan.workload.jaxpr_sha256),
    }
    check_agreement(devices, facts)


def _alike(rows: np.ndarray) -> str:
    """Which processes have equal rows, as "[0, 1] and [2]"."""
    groups: dict[bytes, list[int]] = {}
    for number, row in enumerate(rows):
        groups.setdefault(row.tobytes(), []).append(number)
    return " and ".join(map(str, groups.values()))
