"""Bytes of one device over the schedule, and their peak.

    live(p) = sum over buffers b alive at p of bytes_b * local(shape_b)
            + sum over gathered copies c alive at p of gathered(edge_c)

local (bytes on a device for each byte of a stored shape, `automap.cost.stored_shapes`) and gathered
(bytes of an edge's gathered tensor, 0 if it gathers nothing) are a plan's; all else is the
program's.  So live is the running sum of two sparse
matrices, made once, times two vectors: only positions where something changes are kept
                                                             -> in: `MemoryTimeline.peak_bytes`
Over the step, of the positions of each of `_POINTS` equal parts the one with the most bytes is kept
                                                             -> in: `MemoryTimeline.curve`
A copy that later operations find gathered already lives until the last of them: its end moves
                                                             -> in: `_extend_copies`
Where a device has memory on its chip too, what a compiler keeps there is asked for less
                                             -> in: `automap.cost.on_chip`, `Memory.on_chip_bytes`
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
import math
import re
from typing import Final

import numpy as np
from scipy import sparse

from automap.backends.arrays import Scratch
from automap.cost.edges import Copies
from automap.cost.on_chip import ChipRoom
from automap.jaxpr.names import readable
from automap.plan.memory_curve import HeldRecord, MemoryCurveRecord
from automap.program.problem import Problem
from hlo_tools.analyses.liveness import Buffers
from hlo_tools.analyses.phases import Phase
from hlo_tools.graph import Graph


# `BufferTable.kind` of the step's inputs: their roles, in this order.
INPUT_KINDS = ("parameter", "optimizer state", "other state", "batch", "rng key", "constant")
# Of all other buffers, by the phase that makes them. Kinds of inputs are below these two.
TEMPORARY_KIND, ACTIVATION_KIND = len(INPUT_KINDS), len(INPUT_KINDS) + 1
_POINTS: Final = 160
_MOST_HELD: Final = 12
_NUMBERS: Final = re.compile(r"\d+")


@dataclass(frozen=True)
class BufferTable:
    """Intervals in schedule positions, both ends included: of buffers, [buffers], and of copies
    that exist only where an edge gathers, `copy_*` [copies].

    `value` is the value that says how large a buffer is, -1 for scratch; `shape` is the stored
    shape that says how many bytes a device has of it; `n_bytes` are those of the whole value.
    `is_lasting` is whether it is an input's or a result's, which have their places for the step.
    `copy_repeats` is `Copies.repeats`. `hosted_bytes` [buffers] are those of whole values that are
    in the host's memory but for the update, 0 of others.
    """

    value: np.ndarray
    shape: np.ndarray
    n_bytes: np.ndarray
    birth: np.ndarray
    death: np.ndarray
    kind: np.ndarray
    is_lasting: np.ndarray
    n_positions: int
    copy_edge: np.ndarray
    copy_birth: np.ndarray
    copy_death: np.ndarray
    copy_repeats: np.ndarray
    hosted_bytes: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Where the bytes of one device are at the peak; `input_bytes` has one entry per
    `INPUT_KINDS`. `on_chip_bytes` is by how much less there is in the device's own memory at most.
    """

    peak_bytes: float
    input_bytes: tuple[float, ...]
    activation_bytes: float
    on_chip_bytes: float

    @property
    def temporary_bytes(self) -> float:
        """Bytes that are neither inputs nor made by the forward phase."""
        return max(self.peak_bytes - sum(self.input_bytes) - self.activation_bytes, 0.0)

    def role_bytes(self, kind: str) -> float:
        """Resident bytes of inputs of one role."""
        return self.input_bytes[INPUT_KINDS.index(kind)]


@dataclass(frozen=True)
class MemoryTimeline:
    """A program's buffers over its schedule; `n_shapes` stored shapes and `n_edges` operand edges
    index a plan's vectors. `chip` is the room on the chip, None where there is none.
    """

    buffers: BufferTable
    n_shapes: int
    n_edges: int
    chip: ChipRoom | None = None

    @cached_property
    def positions(self) -> np.ndarray:
        """Positions of the schedule at which something changes."""
        b = self.buffers
        return np.unique(
            np.concatenate([b.birth, b.death + 1, b.copy_birth, b.copy_death + 1, [0]])
        )

    def _changes(
        self, birth: np.ndarray, death: np.ndarray, column: np.ndarray, size: np.ndarray, n: int
    ) -> sparse.csr_matrix:
        """A matrix [positions, n] that adds `size` at the column's birth and takes it off behind
        its death, so that its running sum along the positions is what is alive.
        """
        at = np.searchsorted(self.positions, np.concatenate([birth, death + 1]))
        # Equal (position, column) entries add up: several buffers are of one shape.
        entries = (np.concatenate([size, -size]), (at, np.concatenate([column, column])))
        return sparse.csr_matrix(entries, shape=(len(self.positions), n))

    @cached_property
    def _buffer_changes(self) -> sparse.csr_matrix:
        b = self.buffers
        return self._changes(b.birth, b.death, b.shape, b.n_bytes, self.n_shapes)

    @cached_property
    def _copy_changes(self) -> sparse.csr_matrix:
        b = self.buffers
        # Ones: how many bytes an edge gathers is the plan's, so it is in the vector.
        ones = np.ones(len(b.copy_edge))
        return self._changes(b.copy_birth, b.copy_death, b.copy_edge, ones, self.n_edges)

    def peak_bytes(self, local: np.ndarray, gathered: np.ndarray, is_repeat: np.ndarray) -> float:
        """The peak, given `local` [shapes], gathered bytes [edges] and which repeats hold."""
        return float(self._live(local, gathered, is_repeat).max())

    def input_bytes(self, local: np.ndarray) -> float:
        """Bytes of the step's inputs, given `local` [shapes]."""
        shapes, n_bytes = self._inputs
        return float(n_bytes @ local[shapes])

    @cached_property
    def _inputs(self) -> tuple[np.ndarray, np.ndarray]:
        is_input = self.buffers.kind < TEMPORARY_KIND
        return self.buffers.shape[is_input], self.buffers.n_bytes[is_input]

    def memory(self, local: np.ndarray, gathered: np.ndarray, is_repeat: np.ndarray) -> Memory:
        """The peak and what it consists of."""
        b = self.buffers
        live = self._live(local, gathered, is_repeat)
        slot = int(live.argmax())
        at = self.positions[slot]
        held = b.n_bytes * local[b.shape]
        inputs = np.bincount(b.kind, weights=held, minlength=TEMPORARY_KIND + 2)
        # Inputs are counted whether they are alive or not: they are resident for the whole step.
        alive = (b.birth <= at) & (at <= b.death) & (b.kind > TEMPORARY_KIND)
        return Memory(
            peak_bytes=float(live[slot]),
            input_bytes=tuple(inputs[:TEMPORARY_KIND].tolist()),
            activation_bytes=float(held[alive].sum()),
            on_chip_bytes=self._on_chip_bytes(live, held, gathered, is_repeat),
        )

    def _on_chip_bytes(
        self, live: np.ndarray, held: np.ndarray, gathered: np.ndarray, is_repeat: np.ndarray
    ) -> float:
        """By how much the most of `live` [positions] is above the most that is in the device's own
        memory; `held` are the bytes of each buffer.
        """
        if self.chip is None:
            return 0.0
        b = self.buffers
        ends = np.concatenate([b.birth, b.death + 1])
        may_stay = self.chip.may_stay(held) * ~b.is_lasting
        change = np.bincount(
            np.searchsorted(self.positions, ends),
            weights=np.concatenate([may_stay, -may_stay]),
            minlength=len(self.positions),
        ).astype(float)
        copied = self.chip.may_stay(gathered)
        change += self._copy_changes @ copied
        self._extend_copies(change, copied, is_repeat)
        kept = self.chip.kept_bytes(live, np.cumsum(change))
        return float(live.max() - (live - kept).max())

    def curve(
        self, local: np.ndarray, gathered: np.ndarray, is_repeat: np.ndarray, graph: Graph
    ) -> MemoryCurveRecord:
        """What a device holds over the step, and the largest of what it holds at the peak."""
        b = self.buffers
        live = self._live(local, gathered, is_repeat)
        held = b.n_bytes * local[b.shape]
        stored = self.input_bytes(local)
        # Running sums of what begins and ends at each position, as of `live`.
        change = np.zeros(len(self.positions))
        for ends, sign in ((b.birth, 1.0), (b.death + 1, -1.0)):
            weights = sign * held * (b.kind == ACTIVATION_KIND)
            np.add.at(change, np.searchsorted(self.positions, ends), weights)
        activations = np.cumsum(change)
        part = self.positions * _POINTS // max(int(self.positions[-1]) + 1, 1)
        # Of each part the place with the most bytes, so that the curve has the peak itself.
        order = np.lexsort((-live, part))
        kept = order[np.concatenate([[True], np.diff(part[order]) > 0])]
        temporaries = np.maximum(live - stored - activations, 0.0)
        return MemoryCurveRecord(
            stored=round(stored),
            at=tuple((part[kept] / _POINTS).tolist()),
            activations=tuple(np.rint(np.maximum(activations[kept], 0.0)).astype(int).tolist()),
            temporaries=tuple(np.rint(temporaries[kept]).astype(int).tolist()),
            held=self._held(held, gathered, int(live.argmax()), graph),
        )

    def _held(
        self, held: np.ndarray, gathered: np.ndarray, slot: int, graph: Graph
    ) -> tuple[HeldRecord, ...]:
        """The largest of what is alive at an index of `live` and is no input, like results
        together.
        """
        b, at = self.buffers, self.positions[slot]
        alive = (b.birth <= at) & (at <= b.death) & (b.kind >= TEMPORARY_KIND)
        totals: dict[str, tuple[int, float]] = {}
        for index in np.flatnonzero(alive).tolist():
            name = _result_name(graph, int(b.value[index]))
            count, size = totals.get(name, (0, 0.0))
            totals[name] = count + 1, size + float(held[index])
        copies = (b.copy_birth <= at) & (at <= b.copy_death) & (gathered[b.copy_edge] > 0)
        if copies.any():
            size = float(gathered[b.copy_edge[copies]].sum())
            totals["tensors gathered for their use"] = int(copies.sum()), size
        rows = sorted(totals.items(), key=lambda row: (-row[1][1], row[0]))[:_MOST_HELD]
        return tuple(
            HeldRecord(name=name, count=count, bytes=round(size)) for name, (count, size) in rows
        )

    @cached_property
    def _n_repeats(self) -> int:
        return int(self.buffers.copy_repeats[:, 2].max(initial=-1)) + 1

    @cached_property
    def _repeat_changes(self) -> sparse.csr_matrix:
        """Copies kept for later ops: one for each row of `Edges.repeats`, from one later op's to
        the next one's end.
        """
        b = self.buffers
        later, earlier, row = b.copy_repeats.T
        end = b.copy_death[later]
        # By the earlier copy, then by when its later uses end: each adds the interval from the end
        # of the one before it, so that overlapping uses count once.
        order = np.lexsort((end, earlier))
        later, earlier, row, end = later[order], earlier[order], row[order], end[order]
        own_end = b.copy_death[earlier]
        is_next = np.concatenate([[False], earlier[1:] == earlier[:-1]])[: len(earlier)]
        before = np.where(is_next, np.concatenate([[0], end[:-1]])[: len(end)], own_end)
        start = np.maximum(before, own_end)
        # A use within the copy's own life keeps nothing longer.
        lasts = end > start
        return self._changes(
            start[lasts] + 1, end[lasts], row[lasts], np.ones(int(lasts.sum())), self._n_repeats
        )

    def at(self, slot: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What is alive at an index of `live`.

        Whole bytes of buffers [shapes], number of copies [edges], number of copies that only a
        later op keeps [rows of `Edges.repeats`]: of several later ops the first that is not done.
        """
        shapes, copies, kept = (
            np.asarray(changes[: slot + 1].sum(axis=0)).ravel()
            for changes in (self._buffer_changes, self._copy_changes, self._repeat_changes)
        )
        return shapes, copies, kept

    def live(self, local: np.ndarray, gathered: np.ndarray, kept: np.ndarray) -> np.ndarray:
        """At most the bytes at the positions where something changes.

        `kept` [rows of `Edges.repeats`] is the bytes of the copies that the rows' later edges find
        gathered.
        """
        change = self._buffer_changes @ local + self._copy_changes @ gathered
        return np.cumsum(change + self._repeat_changes @ kept[: self._n_repeats])

    def _live(self, local: np.ndarray, gathered: np.ndarray, is_repeat: np.ndarray) -> np.ndarray:
        change = self._buffer_changes @ local + self._copy_changes @ gathered
        if is_repeat.any():
            self._extend_copies(change, gathered, is_repeat)
        return np.cumsum(change)

    @cached_property
    def _ends(self) -> np.ndarray:
        """Where each copy is no longer alive, as indices of `positions`."""
        return np.searchsorted(self.positions, self.buffers.copy_death + 1)

    def _extend_copies(
        self, change: np.ndarray, gathered: np.ndarray, is_repeat: np.ndarray
    ) -> None:
        """Move the ends of copies that serve later operations too, in `change` [positions]."""
        b, old = self.buffers, self._ends
        later, earlier, _ = b.copy_repeats[is_repeat[b.copy_repeats[:, 2]]].T
        # The end of a copy is the latest of its uses', of which there may be several: `.at`, as
        # plain indexing would keep only one of them.
        new = old.copy()
        np.maximum.at(new, earlier, old[later])
        moved = np.flatnonzero(new > old)
        # At `old` the change has -n_bytes already: cancel that, and take them off at `new`.
        n_bytes = gathered[b.copy_edge[moved]]
        np.add.at(change, old[moved], n_bytes)
        np.subtract.at(change, new[moved], n_bytes)


def _result_name(graph: Graph, value: int) -> str:
    """What people call a value: the operation that makes it, with `*` for the numbers of layers."""
    if value < 0:
        return "scratch of an operation"
    producer = graph.values[value].producer
    if producer < 0:
        return "an input's buffer"
    op = graph.ops[producer]
    # The first part of a name is the jitted step's own.
    name = readable(op.op_name).partition("/")[2] or op.opcode
    return f"{_NUMBERS.sub('*', name)} {graph.values[value].dtype}{list(graph.values[value].dims)}"


def buffer_table(
    problem: Problem,
    live: Buffers,
    shape: np.ndarray,
    copies: Copies,
    n_bytes: Sequence[int],
    scratch: Sequence[Scratch] = (),
) -> BufferTable:
    """The intervals of `live` buffers, of `scratch` and of gathered `copies`.

    `shape` are those of the buffers and of the scratch; `n_bytes` those of each value where it is
    in memory.
    """
    graph = problem.graph
    position = live.position_of_op
    scratch_bytes = [s.item_bytes * math.prod(graph.values[s.like].dims) for s in scratch]
    begins = [position[s.op] for s in scratch]
    ends = [max(position[s.op], position[s.until]) for s in scratch]
    return BufferTable(
        value=np.concatenate([live.value, np.full(len(scratch), -1)]),
        shape=shape,
        n_bytes=np.array([*(n_bytes[v] for v in live.value), *scratch_bytes], float),
        birth=np.concatenate([live.birth, np.array(begins, np.int64)]),
        death=np.concatenate([live.death, np.array(ends, np.int64)]),
        kind=np.array([*_kinds(problem, live), *[TEMPORARY_KIND] * len(scratch)], np.int64),
        # Only inputs and results are there when the step is done.
        is_lasting=np.append(live.death == live.n_positions - 1, np.zeros(len(scratch), bool)),
        n_positions=live.n_positions,
        copy_edge=copies.edge,
        # Program order is not the schedule's: the op that comes first there may run last.
        copy_birth=np.minimum(position[copies.first], position[copies.last]),
        copy_death=np.maximum(position[copies.first], position[copies.last]),
        copy_repeats=copies.repeats,
        hosted_bytes=np.zeros(len(live.value) + len(scratch)),
    )


def _kinds(problem: Problem, live: Buffers) -> list[int]:
    """The kind of each buffer."""
    graph = problem.graph
    role_by_value = {
        v: INPUT_KINDS.index(role.value)
        for v, role in zip(graph.inputs, problem.roles, strict=True)
    }
    kinds = []
    for value, is_input in zip(live.value.tolist(), live.is_input.tolist()):
        producer = graph.values[value].producer
        # The value that stands for an input's buffer may be another one than the input, as where a
        # result is written over it: then the buffer counts as what makes that value.
        if is_input and value in role_by_value:
            kinds.append(role_by_value[value])
        elif producer >= 0 and problem.phases[producer] == Phase.FORWARD:
            kinds.append(ACTIVATION_KIND)
        else:
            kinds.append(TEMPORARY_KIND)
    return kinds
