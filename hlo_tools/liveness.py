"""When each stored value comes into memory and when it leaves: intervals over a schedule.

The schedule is the program's own order, except that an op that reads a gradient runs as soon as it is
there, as XLA's memory-minimizing schedulers do: otherwise all gradients would be alive at once, and in a
program written from its root backwards also all that weight gradients are made of.

    position of op o      p(o) = o,  or max over operands' p if one of them is made after the forward phase
    birth of a buffer     first p of a kernel that writes one of its values
    death                 last p of a kernel that reads one of them

A *buffer* is a set of values in one place: loop carries share theirs by their ties, and a donated input
shares with the output that replaces it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hlo_tools.graph import LOOP_ENTER, LOOP_EXIT, Graph
from hlo_tools.kernels import Kernel
from hlo_tools.phases import Phase


@dataclass(frozen=True)
class Buffers:
    """Arrays over buffers. `value` is the member that says how large and how sharded the buffer is.

    `birth` and `death` are inclusive positions in 0 .. n_positions - 1.
    """

    value: np.ndarray
    birth: np.ndarray
    death: np.ndarray
    is_input: np.ndarray
    n_positions: int
    position_of_op: np.ndarray


def schedule(graph: Graph, phases: Sequence[Phase]) -> np.ndarray:
    """Position of every op, int64 [ops], a permutation of 0 .. n - 1."""
    key = np.arange(len(graph.ops), dtype=np.int64)
    key_of_value = [-1] * len(graph.values)
    is_gradient = [False] * len(graph.values)
    for index, op in enumerate(graph.ops):
        is_moved = phases[index] is Phase.UPDATE or any(is_gradient[v] for v in op.inputs)
        if is_moved and op.opcode not in (LOOP_ENTER, LOOP_EXIT):
            key[index] = max((key_of_value[v] for v in op.inputs), default=0)
        for value in op.outputs:
            key_of_value[value] = int(key[index])
            is_gradient[value] = phases[index] is not Phase.FORWARD
    position = np.empty_like(key)
    position[np.argsort(key, kind="stable")] = np.arange(len(key))
    return position


def buffers(
    graph: Graph,
    kernels: Sequence[Kernel],
    phases: Sequence[Phase],
    donated: Mapping[int, int],
) -> Buffers:
    """Intervals of all buffers; `donated` maps an output index to the input index it may overwrite."""
    position = schedule(graph, phases)
    last = len(graph.ops)
    home = _homes(graph, donated)
    birth: dict[int, int] = {}
    death: dict[int, int] = {}
    member: dict[int, int] = {}

    def touch(value: int, at: int) -> None:
        buffer = home[value]
        birth[buffer] = min(birth.get(buffer, at), at)
        death[buffer] = max(death.get(buffer, at), at)
        member.setdefault(buffer, value)

    for value in graph.inputs:
        touch(value, 0)
        touch(value, last)
    for kernel in kernels:
        at = int(position[kernel.op])
        for value in (*kernel.writes, *kernel.reads):
            touch(value, at)
    for index, op in enumerate(graph.ops):
        if op.opcode in (LOOP_ENTER, LOOP_EXIT):
            # A carry is in memory for the whole loop, whatever its trips read.
            for value in (*op.inputs, *op.outputs):
                if graph.varies[value]:
                    touch(value, int(position[index]))
    for value in graph.outputs:
        touch(value, last)
    order = sorted(birth)
    inputs = {home[v] for v in graph.inputs}
    return Buffers(
        value=np.array([member[b] for b in order], np.int64),
        birth=np.array([birth[b] for b in order], np.int64),
        death=np.array([death[b] for b in order], np.int64),
        is_input=np.array([b in inputs for b in order], bool),
        n_positions=last + 1,
        position_of_op=position,
    )


def _homes(graph: Graph, donated: Mapping[int, int]) -> list[int]:
    parent = list(range(len(graph.values)))

    def find(value: int) -> int:
        while parent[value] != value:
            parent[value] = value = parent[parent[value]]
        return value

    loop_ties = ((a, b) for a, b in graph.ties if graph.varies[a])
    for a, b in loop_ties:
        parent[find(a)] = find(b)
    for output, source in donated.items():
        parent[find(graph.outputs[output])] = find(graph.inputs[source])
    return [find(v) for v in range(len(graph.values))]
