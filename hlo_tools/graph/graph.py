"""The flat graph: a module's computations inlined to one list of values and one list of ops.

Tuples are taken apart to their leaves, every `call` is inlined at its call site, a `while` body
appears once with its trip count on each op, and identities (copy, opt-barrier, sharding
annotations) are aliases of the value they pass on. Ops stand in a topological order, the order in
which they were traced.

A *tie* (a, b) says that two values are one tensor seen at two times: a loop carry before, inside
and after its loop, or a branch result. Whatever holds for one dimension of `a` holds for that of
`b`.

How data flows through an op: a loop's carry comes from what is handed in at its place, and a
branch's result from the result at its place of each branch; `shard_map` hands on arrays and their
parts by place; what any other op makes comes from all that it reads. A loop's body is followed
once, from what the loop starts with: what its second trip reads of the first is not seen.
                                                                -> in: `sources_by_output`

Values and ops are not frozen only because tens of thousands are built; nothing changes them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
import math
from typing import TypeVar, cast

from hlo_tools.module import Instruction
from hlo_tools.opcodes import (
    BRANCH_ENTER,
    BRANCH_EXIT,
    CUSTOM_CALL,
    LOOP_ENTER,
    LOOP_EXIT,
    MANUAL_ENTER,
    MANUAL_EXIT,
    REDUCTIONS,
    STRUCTURAL,
)


_Result = TypeVar("_Result")

# As stored: a pred takes a byte. Tokens and opaque values hold no array.
DTYPE_BITS: dict[str, int] = {
    "pred": 8, "s1": 1, "u1": 1, "s2": 2, "u2": 2, "s4": 4, "u4": 4, "s8": 8, "u8": 8,
    "s16": 16, "u16": 16, "s32": 32, "u32": 32, "s64": 64, "u64": 64,
    "f4e2m1fn": 4, "f8e3m4": 8, "f8e4m3": 8, "f8e4m3fn": 8, "f8e4m3fnuz": 8, "f8e4m3b11fnuz": 8,
    "f8e5m2": 8, "f8e5m2fnuz": 8, "f8e8m0fnu": 8,
    "f16": 16, "bf16": 16, "f32": 32, "f64": 64, "c64": 64, "c128": 128, "token": 0, "opaque": 0,
}  # fmt: skip

PART_TYPES: dict[str, str] = {"c64": "f32", "c128": "f64"}
"""The type of the real and of the imaginary part of complex numbers."""


@dataclass(slots=True)
class Value:
    """One array of the program; `producer` indexes `Graph.ops`, or is -1 for a step input."""

    dtype: str
    dims: tuple[int, ...]
    producer: int

    @property
    def n_bytes(self) -> int:
        """Size of the whole (unsharded) array in bytes."""
        return math.prod(self.dims) * DTYPE_BITS[self.dtype] // 8


@dataclass(slots=True)
class Op:
    """One instruction at one call site; `trip_count` is how often it runs in a step."""

    opcode: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    instruction: Instruction
    op_name: str
    trip_count: int

    @property
    def is_joint_reduction(self) -> bool:
        """Whether several arrays are reduced at once, as argmax does: partial results cannot be
        added up.
        """
        return self.opcode in REDUCTIONS and len(self.outputs) > 1


class HandOver(Enum):
    """What a loop or branch hands on: the same in every trip, or made by the trip before."""

    KEPT = "kept"
    CHANGED = "changed"


@dataclass(frozen=True)
class Graph:
    """A whole step. `inputs` follow HLO parameter numbers, `outputs` the flattened result tuple.

    `changed_once` are what loops of one trip begin with and change: they are no loops here, but the
    partitioner splits what they carry as one tensor. `held` are values that pass an optimization
    barrier, over which nothing is fused.
    """

    name: str
    values: Sequence[Value]
    ops: Sequence[Op]
    inputs: tuple[int, ...]
    input_names: tuple[str, ...]
    outputs: tuple[int, ...]
    ties: Sequence[tuple[int, int]]
    donated: frozenset[int]
    aliases: tuple[tuple[int, int], ...]
    assumptions: tuple[str, ...] = field(default=())
    changed_once: frozenset[int] = frozenset()
    held: frozenset[int] = frozenset()

    @cached_property
    def users(self) -> Sequence[Sequence[int]]:
        """For each value, the indices of the ops that read it (each once, in order)."""
        users: list[list[int]] = [[] for _ in self.values]
        for index, op in enumerate(self.ops):
            for value in dict.fromkeys(op.inputs):
                users[value].append(index)
        return users

    def remember(self, analysis: Callable[["Graph"], _Result]) -> _Result:
        """What an analysis says of this graph: made once, for an analysis that several ask for."""
        if analysis not in self._remembered:
            self._remembered[analysis] = analysis(self)
        return cast(_Result, self._remembered[analysis])

    @cached_property
    def _remembered(self) -> dict[Callable[["Graph"], object], object]:
        return {}

    @cached_property
    def unread(self) -> frozenset[int]:
        """Values that lead to no output, as what a loop keeps for a backward pass that never comes:
        XLA removes what makes them. Calls of other code, whose effects are not known, and scalars
        that a loop may count with lead somewhere.
        """
        needed = set(self.outputs)
        for op in self.ops:
            if op.opcode == CUSTOM_CALL or not op.outputs:
                needed.update(op.inputs)
            elif op.opcode == LOOP_ENTER:
                needed.update(v for v in op.outputs if not self.values[v].dims)
        waiting = list(needed)
        while waiting:
            for source in self._sources(waiting.pop()):
                if source not in needed:
                    needed.add(source)
                    waiting.append(source)
        return frozenset(range(len(self.values))) - needed.union(self.inputs)

    def _sources(self, value: int) -> Iterator[int]:
        """What a value is made of; what a loop carries also of what a trip hands to the next."""
        producer = self.values[value].producer
        if producer < 0:
            return
        op = self.ops[producer]
        if op.opcode in _BY_PLACE:
            place = op.outputs.index(value)
            yield from op.inputs[place :: len(op.outputs)]
            if op.opcode == LOOP_ENTER:
                yield self.ops[self.exit_by_entry[producer]].inputs[place]
        else:
            yield from op.inputs

    @cached_property
    def varies(self) -> Sequence[bool]:
        """Whether each value depends on a step input; the others (zeros, iota) can be remade
        anywhere.
        """
        varies = [value.producer < 0 for value in self.values]
        for op in self.ops:
            # A loop's carry is the sum of its trips: what enters as zeros leaves as data.
            if op.opcode == LOOP_ENTER or any(varies[value] for value in op.inputs):
                for value in op.outputs:
                    varies[value] = True
        return varies

    @cached_property
    def local_ops(self) -> frozenset[int]:
        """The ops that run on each device's own parts (`shard_map`), with those that enter and
        leave.
        """
        local, is_local = set[int](), False
        for index, op in enumerate(self.ops):
            is_local |= op.opcode == MANUAL_ENTER
            if is_local:
                local.add(index)
            is_local &= op.opcode != MANUAL_EXIT
        return frozenset(local)

    @cached_property
    def is_local(self) -> Sequence[bool]:
        """Whether each value is a device's own part of something, as `shard_map` sees it."""
        return [
            value.producer in self.local_ops and self.ops[value.producer].opcode != MANUAL_EXIT
            for value in self.values
        ]

    @cached_property
    def exit_by_entry(self) -> Mapping[int, int]:
        """For the index of the op that enters a loop, that of the op that ends it."""
        # Loops nest: the one that was entered last ends first.
        entered: list[int] = []
        exits: dict[int, int] = {}
        for index, op in enumerate(self.ops):
            if op.opcode == LOOP_ENTER:
                entered.append(index)
            elif op.opcode == LOOP_EXIT:
                exits[entered.pop()] = index
        return exits

    @cached_property
    def outermost_region(self) -> Mapping[int, int]:
        """For each op in a loop, branch or `shard_map` the op that enters the outermost of them,
        those at its edges too.
        """
        result: dict[int, int] = {}
        open_exits: list[str] = []
        first = 0
        for index, op in enumerate(self.ops):
            if op.opcode in _EXITS:
                first = first if open_exits else index
                open_exits.append(_EXITS[op.opcode])
            if open_exits:
                result[index] = first
            if open_exits and op.opcode == open_exits[-1]:
                # A conditional enters each of its branches, and ends once.
                while open_exits and op.opcode == open_exits[-1]:
                    open_exits.pop()
                    if op.opcode != BRANCH_EXIT:
                        break
        return result

    def hand_over(self, value: int) -> HandOver | None:
        """How a value is handed into or out of a loop or branch; None if an op makes it, or it is
        an input.
        """
        producer = self.values[value].producer
        if producer < 0 or self.ops[producer].opcode not in STRUCTURAL:
            return None
        if producer not in self.exit_by_entry:
            # A branch or a `shard_map` hands on what is there; a loop ends with what its last trip
            # made.
            return HandOver.CHANGED if self.ops[producer].opcode == LOOP_EXIT else HandOver.KEPT
        position = self.ops[producer].outputs.index(value)
        is_same = self.ops[self.exit_by_entry[producer]].inputs[position] == value
        return HandOver.KEPT if is_same else HandOver.CHANGED


_EXITS = {LOOP_ENTER: LOOP_EXIT, BRANCH_ENTER: BRANCH_EXIT, MANUAL_ENTER: MANUAL_EXIT}
_BY_PLACE = frozenset({LOOP_ENTER, LOOP_EXIT, BRANCH_EXIT, MANUAL_ENTER, MANUAL_EXIT})


def sources_by_output(op: Op) -> Iterator[tuple[int, Sequence[int]]]:
    """(output, the inputs it is made of) of one op."""
    if op.opcode in _BY_PLACE:
        for place, output in enumerate(op.outputs):
            # The end of a branch reads the results of all its branches, one after the other.
            yield output, op.inputs[place :: len(op.outputs)]
    else:
        for output in op.outputs:
            yield output, op.inputs
