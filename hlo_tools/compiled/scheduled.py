"""The time of a compiled TPU program by its compiler's own estimates.

The TPU compiler writes on each fusion, on each op that runs by itself, and on each copy that others
wait for (into another order of dimensions, mostly) how many cycles it takes it to be:

    {"window_config": {"estimated_cycles": "45363", ...}, ...}

With c_i the cycles of instruction i, t_i how often it runs in a step (loops times trips,
`hlo_tools.graph.flattening`) and f the clock,

    compute seconds = sum over i of t_i c_i / f               -> in: `CompilerSchedule.cycles`

Collectives and asynchronous copies carry none; ops of other kinds without are counted in
`unestimated`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
import json
from typing import Any

from hlo_tools.graph import flatten
from hlo_tools.opcodes import NO_TIME
from hlo_tools.read.messages import text
from hlo_tools.read.proto import decode_module, module_message


@dataclass(frozen=True, slots=True)
class ScheduledOp:
    """An instruction that runs `count` times a step; `cycles` of one run, None if the compiler
    gives none.
    """

    name: str
    opcode: str
    op_name: str
    count: int
    cycles: int | None


@dataclass(frozen=True, slots=True)
class CompilerSchedule:
    """All instructions of a compiled program that run, fusions whole; `assumptions` as in
    `Graph`.
    """

    ops: tuple[ScheduledOp, ...]
    assumptions: tuple[str, ...]

    @property
    def cycles(self) -> int:
        """Cycles of one step on one device, collectives apart."""
        return sum(op.count * (op.cycles or 0) for op in self.ops)

    @property
    def unestimated(self) -> tuple[ScheduledOp, ...]:
        """Ops that take time but have no estimate."""
        return tuple(op for op in self.ops if op.cycles is None and op.opcode not in NO_TIME)


def read_schedule(data: bytes) -> CompilerSchedule:
    """The schedule of a serialized HloModuleProto as the TPU compiler leaves it.

    Raises `HloError` for a malformed proto.
    """
    graph = flatten(decode_module(data), fusions="kept")
    # Names of instructions are unique in a module, those inside of fusions included.
    cycles = read_cycles(data)
    ops = tuple(
        ScheduledOp(
            name=op.instruction.name,
            opcode=op.opcode,
            op_name=op.op_name,
            count=op.trip_count,
            cycles=cycles.get(op.instruction.name),
        )
        for op in graph.ops
    )
    return CompilerSchedule(ops, graph.assumptions)


def read_cycles(data: bytes) -> Mapping[str, int]:
    """The cycles of one run of each instruction that has an estimate, by its name.

    Raises `HloError` for a malformed proto.
    """
    return dict(_estimates(data))


def _estimates(data: bytes) -> Iterator[tuple[str, int]]:
    for computation in module_message(data).computations:
        for instruction in computation.instructions:
            if b"estimated_cycles" in instruction.backend_config:
                cycles = _cycles(instruction.backend_config)
                if cycles is not None:
                    yield text(instruction.name), cycles


def _cycles(backend_config: bytes) -> int | None:
    try:
        config: Any = json.loads(backend_config)
        cycles = int(config["window_config"]["estimated_cycles"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return cycles if cycles >= 0 else None
