"""Which values of a program are in the host's memory, and the operations that bring them there and
back.

A custom call names the memory of its result, the host's or the device's. In the host's memory is

    what such a call puts there
    a stack that such values are written into, with what it begins as
    a part of such a stack, and another shape or order of such a value
    what a loop or branch is handed of these, and what it hands on

each found from the others until nothing is added                        -> in: `host_memory`
What does not depend on an input, as the zeros that stacks begin as, is made for each of its uses,
so that nothing is told from one use of it to another.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hlo_tools.graph import Graph, Op, sources_by_output
from hlo_tools.opcodes import (
    CUSTOM_CALL,
    DYNAMIC_UPDATE_SLICE,
    LOOP_ENTER,
    LOOP_EXIT,
    REORDERS,
    SLICES,
    STRUCTURAL,
)


_TARGET: Final = "annotate_device_placement"
_HANDS_ON: Final = REORDERS | SLICES | STRUCTURAL


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Values in the host's memory, and the numbers of the ops that copy: `stores` to the host,
    `loads` from it, each in program order.
    """

    values: frozenset[int] = frozenset()
    stores: tuple[int, ...] = ()
    loads: tuple[int, ...] = ()


def host_memory(graph: Graph) -> HostMemory:
    """What of a program is in the host's memory."""
    calls = {n: op for n, op in enumerate(graph.ops) if _is_call(op)}
    stores = [n for n, op in calls.items() if op.instruction.attributes.memory.endswith("host")]
    if not stores:
        return HostMemory()
    values = {graph.ops[n].outputs[0] for n in stores}
    before = 0
    while len(values) != before:
        before = len(values)
        for number, op in enumerate(graph.ops):
            if number not in calls:
                _pass_on(op, values)
        for outside, carried in graph.ties:
            if graph.varies[outside] and (outside in values) != (carried in values):
                values |= {outside, carried}
    loads = [n for n, op in calls.items() if n not in stores and op.inputs[0] in values]
    return HostMemory(frozenset(values), tuple(stores), tuple(loads))


def loads_of_loops(graph: Graph, host: HostMemory) -> Mapping[int, int]:
    """For each value that a loop brings in, of what an earlier loop has put into the host's memory,
    the end of that loop, the number of its op: from there on the first trip's may be brought in.
    """
    ends: dict[int, int] = {}
    for number in host.loads:
        value, is_outside = graph.ops[number].inputs[0], False
        while (producer := graph.values[value].producer) >= 0:
            op = graph.ops[producer]
            if op.opcode == LOOP_EXIT or op.opcode not in _HANDS_ON:
                if op.opcode == LOOP_EXIT and is_outside:
                    ends[graph.ops[number].outputs[0]] = producer
                break
            is_outside |= op.opcode == LOOP_ENTER
            value = next(s[0] for output, s in sources_by_output(op) if output == value)
    return ends


def _is_call(op: Op) -> bool:
    attributes = op.instruction.attributes
    return op.opcode == CUSTOM_CALL and attributes.custom_call_target == _TARGET


def _pass_on(op: Op, values: set[int]) -> None:
    """Add what an op makes of such values, and the stack that it writes them into."""
    if op.opcode == DYNAMIC_UPDATE_SLICE:
        if values & {op.inputs[0], op.inputs[1], op.outputs[0]}:
            values |= {op.inputs[0], op.outputs[0]}
    elif op.opcode in _HANDS_ON:
        # A slice has its offsets as further operands.
        n_sources = None if op.opcode in STRUCTURAL else 1
        for output, sources in sources_by_output(op):
            if values & set(sources[:n_sources]):
                values.add(output)
