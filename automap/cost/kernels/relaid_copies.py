"""Copies that a compiler makes besides: of arrays to another order of dimensions
(`automap.backends.Backend.relaid`), of inputs that a step changes and its caller keeps, and of what
tiles make to its place in an array that is there (`hlo_tools.analyses.passes`)
                                                                        -> in: `with_copies`
Whether an operand lies as its product reads it may depend on a dimension that stands between two
others. One that a device has a single element of has no place in an order: where a plan leaves one
of these, nothing is copied                                            -> in: `RelaidCopies.is_made`
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from automap.backends import Backend
from automap.backends.arrays import Relaid
from automap.cost.kernels.matrix_tiles import rows_of_copies
from automap.cost.shardings import Shardings
from automap.program.problem import Problem
from hlo_tools.analyses.accesses import Access, Kernel
from hlo_tools.analyses.passes import stacked_tiles
from hlo_tools.graph import Graph
from hlo_tools.opcodes import DYNAMIC_UPDATE_SLICE, SCATTER


DecidingDims: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""Sizes of a value's dimensions, and those of them of which none may have a single element."""


def with_copies(
    problem: Problem, kernels: Sequence[Kernel], backend: Backend, n_bytes: Sequence[int]
) -> list[Kernel]:
    """The kernels with those that copy a value whole; `n_bytes` are those of each value."""
    graph, copies = problem.graph, list[Kernel]()
    # They are copied where they are made: put off to the end of the trip, where they are needed,
    # all of them would be there at once.
    stacked = stacked_tiles(graph, backend.fuser, kernels)
    parts = (Relaid(op=graph.values[v].producer, value=v) for v in stacked)
    for copy in (*backend.relaid(graph), *_kept_inputs(problem), *parts):
        moved = Access(copy.value, round(n_bytes[copy.value] * copy.times))
        copies.append(Kernel(copy.op, (moved,), (moved,), copied=copy.long_dims))
    # In program order, as `kernels` are; equal places keep theirs.
    return sorted([*kernels, *copies], key=lambda kernel: kernel.op)


def _kept_inputs(problem: Problem) -> Iterator[Relaid]:
    """Inputs of which an op changes a part in place, and which the caller keeps."""
    graph, donated = problem.graph, set(problem.donated.values())
    kept = {value for number, value in enumerate(graph.inputs) if number not in donated}
    for index, op in enumerate(graph.ops):
        if op.opcode in (SCATTER, DYNAMIC_UPDATE_SLICE):
            changed = op.inputs[: len(op.outputs)]
            yield from (Relaid(op=index, value=v) for v in changed if v in kept)


@dataclass(frozen=True, slots=True)
class RelaidCopies:
    """Such kernels, [those]: `kernels` are their numbers, ascending; `sizes` [those, dims] of the
    value, and whether a dimension `decides`.
    """

    kernels: np.ndarray
    sizes: np.ndarray
    decides: np.ndarray

    @classmethod
    def build(cls, copies: Sequence[DecidingDims | None]) -> "RelaidCopies":
        """Of all kernels, in their order."""
        chosen = [(k, *copy) for k, copy in enumerate(copies) if copy is not None]
        width = max((len(dims) for _, dims, _ in chosen), default=0)
        sizes = np.ones((len(chosen), width), np.int64)
        decides = np.zeros((len(chosen), width), bool)
        for at, (_, dims, long) in enumerate(chosen):
            sizes[at, : len(dims)] = dims
            decides[at, list(long)] = True
        return cls(np.array([k for k, *_ in chosen], np.int64), sizes, decides)

    def select(self, which: np.ndarray, n_kernels: int) -> "RelaidCopies":
        """Those of copied kernels; `which` [copies] says of which of `n_kernels` each is."""
        copied, row = rows_of_copies(self.kernels, which, n_kernels)
        return RelaidCopies(copied, self.sizes[row], self.decides[row])

    def is_made(self, value_row: np.ndarray, sharding: Shardings) -> np.ndarray:
        """Whether a device copies, [those]; `value_row` is of the value that each one reads."""
        local = self.sizes.astype(float)
        dims = np.arange(local.shape[1])
        for axis, size in enumerate(sharding.sizes):
            split = sharding.dim_of_axis[value_row, axis]
            local /= np.where(split[:, None] == dims, size, 1)
        is_gone: np.ndarray = np.any(self.decides & (local <= 1), axis=1)
        return ~is_gone


def deciding_dims(graph: Graph, kernel: Kernel) -> DecidingDims | None:
    """Those of a kernel; None of one that is no such copy."""
    if kernel.copied is None:
        return None
    return graph.values[kernel.reads[0].value].dims, tuple(sorted(kernel.copied))
