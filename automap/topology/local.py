"""The topology "local": what `jax.devices()` shows on this machine, looked up in the catalogue.

Devices are recognized by their kind. A slice of TPUs is the box around the chips' coordinates, GPUs
are hosts (processes) of equal size, CPU devices get the nominal `cpu:N`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
import logging
from typing import Any

from automap.errors import TopologyError
from automap.topology.cpu import cpu_devices
from automap.topology.gpu import gpu_hosts
from automap.topology.gpu_devices import GPU_KINDS
from automap.topology.model import Topology
from automap.topology.tpu import GENERATIONS, TPU_KINDS, grid_topology


def local_topology() -> Topology:
    """What JAX sees; raises `TopologyError` when JAX cannot start or the device is unknown."""
    # Machines by their name are looked up without JAX.
    import jax

    try:
        with _reasons_in_a_line():
            devices = jax.devices()
    except RuntimeError as error:
        raise TopologyError(
            f'topology "local": JAX shows no devices ({error}); allowed: a machine where '
            "jax.devices() works, or a topology by name, as v5e:4x4"
        ) from error
    return topology_from_devices(devices)


@contextmanager
def _reasons_in_a_line() -> Iterator[None]:
    """Why JAX leaves out a device while it starts, as one line each; JAX logs tracebacks."""
    collected = _RecordList(logging.WARNING)
    # A handler of its own: without one, Python prints warnings with their tracebacks on stderr.
    logger = logging.getLogger("jax")
    logger.addHandler(collected)
    try:
        yield
    finally:
        logger.removeHandler(collected)
        for record in collected.records:
            error = record.exc_info[1] if record.exc_info else None
            why = f": {error}" if error else ""
            logging.getLogger("automap").warning("JAX: %s%s", record.getMessage(), why)


class _RecordList(logging.Handler):
    """Collects records, instead of their text on stderr, where nobody asked for JAX's log."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def topology_from_devices(devices: Sequence[Any]) -> Topology:
    """The topology of these `jax.Device` objects, all of one kind."""
    kinds = sorted({device.device_kind for device in devices})
    if len(kinds) != 1:
        raise TopologyError(f"devices: got kinds {kinds}; allowed: devices of one kind")
    kind = kinds[0]
    if devices[0].platform == "cpu":
        return cpu_devices(len(devices))
    if kind in TPU_KINDS:
        return _tpu_box(devices, TPU_KINDS[kind])
    for part, gpu in GPU_KINDS:
        if part in kind:
            return _gpu_processes(devices, gpu)
    known = ", ".join([*TPU_KINDS, *(part for part, _ in GPU_KINDS)])
    raise TopologyError(
        f"devices: got kind {kind!r}; allowed kinds: {known}; for another one write a TOML file "
        "with `automap calibrate`"
    )


def _tpu_box(devices: Sequence[Any], name: str) -> Topology:
    generation = GENERATIONS[name]
    chips = {tuple(device.coords) for device in devices}
    # The smallest box around the chips; a slice that has lost a chip does not fill it.
    spans = [max(places) - min(places) + 1 for places in zip(*chips, strict=True)]
    dims = tuple(spans[: generation.dimensions])
    label = f"{name}:{'x'.join(map(str, dims))}"
    topology = grid_topology(generation, dims, name=label)
    if topology.device_count != len(devices):
        raise TopologyError(
            f"devices: got {len(devices)} of {name} that do not fill a box ({label} has "
            f"{topology.device_count}); allowed: a whole slice"
        )
    return topology


def _gpu_processes(devices: Sequence[Any], gpu: str) -> Topology:
    # With a process on each host, as clusters are started, the GPUs of a process are a host's.
    counts = Counter(device.process_index for device in devices)
    if len(set(counts.values())) != 1:
        raise TopologyError(
            f"devices: got {dict(counts)} GPUs by process; allowed: the same number in each"
        )
    return gpu_hosts(len(counts), len(devices) // len(counts), gpu)
