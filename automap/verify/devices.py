"""The devices of a machine that is not there, as JAX sees them; used in the compiler's own process."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import jax
from jax.experimental import topologies

from automap.choices import CompilerName
from automap.verify.compilers import Machine
from automap.verify.gpu_targets import gpu_target


def compiler_devices(machine: Machine) -> Sequence[Any]:
    """As many devices as the machine has; to be called before JAX has made any in this process."""
    return _DEVICES[machine.compiler](machine)


def _fake(machine: Machine) -> Sequence[Any]:
    jax.config.update("jax_num_cpu_devices", machine.device_count)
    return jax.devices("cpu")[: machine.device_count]


def _gpus(machine: Machine) -> Sequence[Any]:
    return topologies.get_topology_desc(
        platform="cuda",
        topology_name=machine.kind,
        target_config=gpu_target(machine.kind).text,
        topology=machine.grid,
    ).devices


def _slice(machine: Machine) -> Sequence[Any]:
    return topologies.get_topology_desc(platform="tpu", topology_name=machine.kind).devices


_DEVICES: Final[Mapping[CompilerName, Callable[[Machine], Sequence[Any]]]] = {
    "cpu": _fake,
    "gpu": _gpus,
    "tpu": _slice,
}
