"""Additions to tables that meet at few numbers: scatters on GPUs, one atomic addition for each
number of the updates.

The memory of a GPU adds numbers of 4 and 8 bytes by itself, those to one sector of it one after the
other. Of a table of S sectors, of `sector_bytes` each,

    t >= U / S * `sector_seconds`                           U the numbers of the updates

Of floats of 2 bytes XLA compares and swaps a word of two numbers until nobody was faster. Of all
threads that are there, as many as the cores hold at most, one succeeds at a word in each round; the
others come again, and a round is as long as all their attempts:

    t >= U * `swap_seconds` + U / words * max(`swap_round_seconds`, min(U, threads) * a)

a is `swap_lane_seconds`, or `wide_swap_lane_seconds` where a row has as many numbers as a warp has
threads, whose attempts are fewer then                                      -> in: `least_seconds`

Which rows are added to is not known: they are taken to be met evenly. Rows that are met more often
than others take longer, as much as the most frequent one is more frequent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from automap.backends import AdditionNumbers
from automap.cost.kernels.matrix_tiles import FactorSizes, rows_of_copies
from automap.cost.shardings import Shardings
from automap.topology.gpu_devices import core_count
from automap.topology.model import Device
from hlo_tools.graph import DTYPE_BITS, Graph, Op
from hlo_tools.opcodes import SCATTER
from hlo_tools.rules import Rule


_WORD_BYTES: Final = 4
_WARP: Final = 32
# Of V100, A100, H100 and B200 (CUDA C++ Programming Guide, compute capabilities).
_CORE_THREADS: Final = 2048


@dataclass(frozen=True, slots=True)
class LocalAdditions:
    """Scatters on a device, [those]: the numbers of their updates, of their tables and of what one
    index adds, and the bytes of a number.
    """

    updates: np.ndarray
    table: np.ndarray
    row: np.ndarray
    item_bytes: np.ndarray


def least_seconds(
    additions: LocalAdditions, numbers: AdditionNumbers, device: Device
) -> np.ndarray:
    """What scatters take at least, however much they move, [those]."""
    updates, table_bytes = additions.updates, additions.table * additions.item_bytes
    by_sector = updates / np.maximum(table_bytes / numbers.sector_bytes, 1) * numbers.sector_seconds
    is_wide = additions.row >= _WARP
    lane = np.where(is_wide, numbers.wide_swap_lane_seconds, numbers.swap_lane_seconds)
    threads = np.minimum(updates, core_count(device) * _CORE_THREADS)
    rounds = updates / np.maximum(table_bytes / _WORD_BYTES, 1)
    swapped = updates * numbers.swap_seconds + rounds * np.maximum(
        numbers.swap_round_seconds, threads * lane
    )
    return np.where(additions.item_bytes < _WORD_BYTES, swapped, by_sector)


@dataclass(frozen=True, slots=True)
class Addition:
    """A kernel that adds to a table: sizes of its factors over which the updates, the table, the
    row of an index and the indexed rows lie, 1 for the others, and the bytes of a number.
    """

    updates: tuple[int, ...]
    table: tuple[int, ...]
    row: tuple[int, ...]
    indexed: tuple[int, ...]
    item_bytes: int


@dataclass(frozen=True, slots=True)
class Additions:
    """Such kernels, [those]: `kernels` are their numbers, ascending; `sizes` [4, those, factors +
    1] of updates, tables, rows and indexed rows end with a column of no factor.
    """

    kernels: np.ndarray
    sizes: np.ndarray
    item_bytes: np.ndarray

    @classmethod
    def build(cls, additions: Sequence[Addition | None]) -> "Additions":
        """Of all kernels, in their order."""
        chosen = [(k, a) for k, a in enumerate(additions) if a is not None]
        width = max((len(a.table) for _, a in chosen), default=0)
        sizes = np.ones((4, len(chosen), width + 1), np.int64)
        for at, (_, each) in enumerate(chosen):
            for array, own in enumerate((each.updates, each.table, each.row, each.indexed)):
                sizes[array, at, : len(own)] = own
        return cls(
            np.array([k for k, _ in chosen], np.int64),
            sizes,
            np.array([a.item_bytes for _, a in chosen], np.int64),
        )

    def select(self, which: np.ndarray, n_kernels: int) -> "Additions":
        """Those of copied kernels; `which` [copies] says of which of `n_kernels` each is."""
        copied, row = rows_of_copies(self.kernels, which, n_kernels)
        return Additions(copied, self.sizes[:, row], self.item_bytes[row])

    def seconds(
        self, op_row: np.ndarray, sharding: Shardings, numbers: AdditionNumbers, device: Device
    ) -> np.ndarray:
        """The least of each of `kernels`; `op_row` is of all kernels."""
        rows = op_row[self.kernels]
        updates, table, row, indexed = (
            FactorSizes(self.kernels, rows, sizes).local(sharding) for sizes in self.sizes
        )
        # A device that has some of the rows ignores updates of others.
        kept = indexed / self.sizes[-1].prod(axis=1)
        local = LocalAdditions(updates * kept, table, row, self.item_bytes)
        return least_seconds(local, numbers, device)


def is_addition(opcode: str, combiner: str) -> bool:
    """Whether an operation adds to a table."""
    return opcode == SCATTER and combiner == "add"


def addition(graph: Graph, op: Op, rule: Rule) -> Addition | None:
    """That of an operation; None for one that adds to no table."""
    numbers = op.instruction.attributes.scatter
    if not is_addition(op.opcode, op.instruction.attributes.combiner) or numbers is None:
        return None
    # Operands are tables, indices and updates; of several tables all are alike.
    table, updates = rule.results[0], rule.operands[-1]
    updated, tabled, along_row = (
        frozenset(f for dim in dims for f in dim)
        for dims in (updates, table, [updates[d] for d in numbers.update_window_dims])
    )

    def sizes(factors: frozenset[int]) -> tuple[int, ...]:
        return tuple(x.size if f in factors else 1 for f, x in enumerate(rule.factors))

    item_bytes = DTYPE_BITS[graph.values[op.outputs[0]].dtype] // 8
    return Addition(
        updates=sizes(updated),
        table=sizes(tabled),
        row=sizes(along_row),
        indexed=sizes(tabled - updated),
        item_bytes=max(item_bytes, 1),
    )
