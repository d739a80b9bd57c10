"""The seconds of one kernel of a compiled program.

    kernel, TPU     the cycles that the compiler gives it, by the clock; of what it gives none, or
                    says that it cannot tell, as long as it moves bytes    -> in: `_moved_bytes`
    kernel, GPU     the compiler's estimate that is believed for its kind, or a measurement
                    (`automap.verify.gpu_kernels`)

The TPU's compiler says nothing of look-ups and scatters, of kernels of Mosaic, and of ops by
themselves that bring an array to other places, as pads between numbers and reshapes that move it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from automap.backends import backend_for
from automap.errors import CompilerError
from automap.topology.model import Topology
from automap.verify.gpu_calls import shape_bytes
from automap.verify.gpu_kernels import gpu_kernel_seconds
from hlo_tools.compiled.estimates import read_cycles, read_estimates
from hlo_tools.module import CHIP_SPACE, Instruction, Module, Shape
from hlo_tools.opcodes import (
    CONCATENATE,
    COPY,
    DYNAMIC_UPDATE_SLICE,
    GATHER,
    PAD,
    RESHAPE,
    REVERSE,
    SCATTER,
    SELECT_AND_SCATTER,
    SLICE,
)


_MOSAIC: Final = "tpu_custom_call"
_LOOK_UPS: Final = frozenset({GATHER, SCATTER})
_ESTIMATED: Final = frozenset(("fusion", "custom-call"))
_SILENT_ALONE: Final = frozenset(
    {CONCATENATE, COPY, DYNAMIC_UPDATE_SLICE, PAD, RESHAPE, REVERSE, SELECT_AND_SCATTER, SLICE}
)
CLOCK_HZ: Final[Mapping[str, float]] = {
    "v4": 275e12 / (8 * 2 * 128**2),
    "v5e": 197e12 / (4 * 2 * 128**2),
    "v5p": 459e12 / (8 * 2 * 128**2),
}
"""Clocks by which a TPU compiler's cycles are seconds: the peak FLOP/s of a chip over those of a
cycle, of four (v5e) or eight (v4, v5p) matrix units of 128 x 128.
"""


def has_seconds(topology: Topology) -> bool:
    """Whether the estimates of a topology's compiler are known to be seconds."""
    return topology.platform == "cuda" or topology.device.name in CLOCK_HZ


def kernel_prices(
    data: bytes, module: Module, topology: Topology
) -> Callable[[Instruction], float]:
    """A function for the seconds of one run of an instruction of a compiled program.

    Raises `CompilerError` for a device whose compiler's estimates are not known to be seconds, or
    that it estimates nothing for.
    """
    if topology.platform == "cuda":
        estimates = read_estimates(data)
        # Of copies alone there is nothing to estimate.
        instructions = (i for c in module.computations.values() for i in c.instructions)
        has_kernels = any(i.opcode in _ESTIMATED for i in instructions)
        if has_kernels and not any(estimate.seconds for estimate in estimates.values()):
            raise CompilerError(
                f"no seconds of a compiled step for {topology.device.name}: the compiler has "
                "estimated none of its kernels"
            )
        return gpu_kernel_seconds(estimates, module, topology.device, backend_for("cuda"))
    if not has_seconds(topology):
        raise CompilerError(
            f"no seconds of a compiled step for {topology.device.name}: its clock is not known; "
            f"allowed: GPUs and {', '.join(CLOCK_HZ)}"
        )
    cycles, clock_hz = read_cycles(data), CLOCK_HZ[topology.device.name]
    moved = {
        instruction.name: _moved_bytes(instruction, operands, module)
        for instruction, operands in with_operands(module)
        if cycles.get(instruction.name, 0) is None or _is_silent(instruction, cycles, module)
    }

    def seconds(instruction: Instruction) -> float:
        # Of what the compiler cannot say it takes as long at least as what it reads and writes.
        if instruction.name in moved:
            return moved[instruction.name] / topology.device.hbm_bytes_per_s
        return (cycles.get(instruction.name) or 0) / clock_hz

    return seconds


def _is_silent(instruction: Instruction, cycles: Mapping[str, int | None], module: Module) -> bool:
    """Whether a kernel is one that the compiler says nothing of: look-ups, scatters, Mosaic, and
    ops by themselves that bring an array to other places.
    """
    if instruction.name in cycles or instruction.attributes.custom_call_target == _MOSAIC:
        return instruction.name not in cycles
    if instruction.opcode in _SILENT_ALONE:
        return True
    is_fusion = instruction.opcode == "fusion"
    return is_fusion and not _LOOK_UPS.isdisjoint(opcodes(instruction, module))


def _moved_bytes(instruction: Instruction, operands: Sequence[Shape], module: Module) -> int:
    """What a kernel reads and writes at least: of a table the rows that it looks up or adds to."""
    if instruction.opcode in _SILENT_ALONE:
        return _rearranged_bytes(instruction, operands)
    made, given = shape_bytes(instruction.shape), [*map(shape_bytes, operands)]
    inside = frozenset(opcodes(instruction, module))
    if SCATTER in inside:
        # The result is written in the place of the first operand, row by row of what is added.
        rows = sum(given[1:])
        return rows + 2 * min(made, rows)
    most = made if GATHER in inside else sum(given)
    return made + sum(min(each, most) for each in given)


def _rearranged_bytes(instruction: Instruction, operands: Sequence[Shape]) -> int:
    """What an op by itself reads, of an array the part that it cuts out or changes, and writes
    outside of the chip: the compiler lets kernels write there beside what they read.
    """
    made, given = shape_bytes(instruction.shape), [*map(shape_bytes, operands)]
    if instruction.opcode == DYNAMIC_UPDATE_SLICE:
        made = given[1]
        given = [made]
    elif instruction.opcode == SLICE:
        given = [made]
    return sum(given) + (0 if instruction.shape.memory_space == CHIP_SPACE else made)


def opcodes(instruction: Instruction, module: Module) -> Iterator[str]:
    """The opcode of an instruction, and those of what is fused into it."""
    yield instruction.opcode
    # Of a reduction or a scatter the computation says what it combines by, which is no op.
    for called in instruction.called if instruction.opcode in ("fusion", "call") else ():
        for inner in module.computations[called].instructions:
            yield from opcodes(inner, module)


def with_operands(module: Module) -> Iterator[tuple[Instruction, Sequence[Shape]]]:
    """Each instruction with the shapes of its operands."""
    for computation in module.computations.values():
        shapes = {i.id: i.shape for i in computation.instructions}
        for instruction in computation.instructions:
            yield instruction, [shapes[number] for number in instruction.operands]
