"""Copies of a compiled program from one memory to another, and what they take of the link between.

    host      bytes by the host's link, each direction by itself; where the backend says that copies
              go in line, kernels wait for it                            -> in: `_host_copies`
    chip      what a TPU fetches ahead to its chip, puts back, or copies within its device's memory
              while kernels run: bytes of the device's memory that it reads and writes, by the
              bandwidth of that                                          -> in: `_chip_copies`

Copies of the chip go one after the other, beside kernels until what waits for them. What kernels
move themselves at that time is not taken off, so that a step that does little but move memory may
be replayed too short. Fetching all of a product's operand ahead makes its own cycles few: a vector
of two rows and a matrix of 8,192 x 4,096 numbers in bfloat16 take 14.6 us by the cycles of their
kernel on v5e, and 82 to fetch the matrix.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from automap.backends import backend_for
from automap.topology.model import Topology
from automap.verify.gpu_calls import shape_bytes
from hlo_tools.compiled.replay import Cost, Transfer
from hlo_tools.module import CHIP_SPACE, DEVICE_SPACE, HOST_SPACE, Instruction, Module, Shape
from hlo_tools.opcodes import DYNAMIC_SLICE, DYNAMIC_UPDATE_SLICE


_HOST_COPIES: Final = frozenset(
    {"fusion", "copy", "copy-start", DYNAMIC_SLICE, DYNAMIC_UPDATE_SLICE}
)
_SLICES: Final = frozenset({"slice", DYNAMIC_SLICE})
_CHIP: Final = "memory of the device"


def memory_copies(module: Module, topology: Topology) -> Mapping[str, Cost]:
    """What each copy between memories costs, by the name of its instruction."""
    copies = dict(_chip_copies(module, topology)) if topology.platform == "tpu" else {}
    return {**copies, **_host_copies(module, topology)}


def with_operands(module: Module) -> Iterator[tuple[Instruction, Sequence[Shape]]]:
    """Each instruction with the shapes of its operands."""
    for computation in module.computations.values():
        shapes = {i.id: i.shape for i in computation.instructions}
        for instruction in computation.instructions:
            yield instruction, [shapes[number] for number in instruction.operands]


def _chip_copies(module: Module, topology: Topology) -> Iterator[tuple[str, Cost]]:
    """Copies that have a start and a done, and slices that are started and waited for so."""
    started = {
        called
        for computation in module.computations.values()
        for instruction in computation.instructions
        if instruction.opcode == "async-start"
        for called in instruction.called
    }
    for computation in module.computations.values():
        shapes = {i.id: i.shape for i in computation.instructions}
        for instruction in computation.instructions:
            operands = [shapes[number] for number in instruction.operands]
            copied = _copied(instruction, operands, is_started=computation.id in started)
            spaces = {shape.memory_space for shape in copied}
            if copied and spaces <= {DEVICE_SPACE, CHIP_SPACE}:
                moved = (s for s in copied if s.memory_space == DEVICE_SPACE)
                seconds = sum(map(shape_bytes, moved)) / topology.device.hbm_bytes_per_s
                yield instruction.name, Cost(transfers=(Transfer(seconds, frozenset({_CHIP})),))


def _copied(
    instruction: Instruction, operands: Sequence[Shape], *, is_started: bool
) -> tuple[Shape, ...]:
    """What a copy writes and what it reads, where these are; nothing of what is no such copy."""
    opcode = instruction.opcode
    if opcode == "copy-start":
        # It makes (what it writes, what it reads, its state).
        return instruction.shape.elements[:2]
    if is_started and opcode in _SLICES:
        part = instruction.shape
        return part, replace(part, memory_space=operands[0].memory_space)
    if is_started and opcode == DYNAMIC_UPDATE_SLICE:
        part = operands[1]
        return replace(part, memory_space=instruction.shape.memory_space), part
    return ()


def _host_copies(module: Module, topology: Topology) -> Mapping[str, Cost]:
    """What each instruction copies to or from the host's memory, by its name: of a stack there the
    part that it writes or reads. Nothing where the host has no link.
    """
    costs, host_bytes_per_s = {}, topology.device.host_bytes_per_s
    in_line = backend_for(topology.platform).host_copies == "in line"
    for instruction, operands in with_operands(module) if host_bytes_per_s else ():
        made, *rest = instruction.shape.elements or (instruction.shape,)
        if instruction.opcode not in _HOST_COPIES:
            continue
        # The start of a copy makes (what it writes, what it reads, its state).
        is_start = instruction.opcode == "copy-start"
        given, is_stored = rest[:1] if is_start else operands, made.memory_space == HOST_SPACE
        moved = [s for s in given if (s.memory_space == HOST_SPACE) != is_stored]
        if moved:
            # A kernel may read several leaves; of a stack it reads no more than it makes of it.
            most = max(map(shape_bytes, (made, *rest)))
            n_bytes = sum(min(shape_bytes(each), most) for each in moved)
            n_bytes = max(map(shape_bytes, moved)) if is_stored else n_bytes
            link = "to the host" if is_stored else "from the host"
            ends = (instruction.name,) if in_line else ()
            transfer = Transfer(n_bytes / host_bytes_per_s, frozenset({link}), *ends)
            costs[instruction.name] = Cost(transfers=(transfer,), ends=ends)
    return costs
