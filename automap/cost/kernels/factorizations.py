"""Factorizations of matrices and solves with their factors, by the library of a GPU.

Each column waits for those before it, so a matrix of n columns takes n times the seconds of a
column, l, besides its FLOPs F, of which a core does r a second. B matrices are on a device of S
cores, and a call of the library has them in one of three ways:

    in turn      all cores work on one matrix after the other       B (n l + F / (S r))
    shared       all cores work on all of them                      max(1, B / S) n l + B F / (S r)
    a core each  each core factors a matrix by itself               max(1, B / S) (n l + F / r)
                                                                          -> in: `least_seconds`

Which call it is follows from how many matrices there are on a device, as jaxlib chooses
(jaxlib/gpu/solver_kernels_ffi.cc, floor division):

    cholesky            a call for many from two on
    lu, qr              a call for many from two on, where n / B is at most 128 (lu: square ones)
    eigenvectors        a call for small ones up to 32 columns
    singular vectors    by Jacobi: a call for small ones from two on, up to 32 rows and columns
                                                                          -> in: `_second_from`

So a plan that splits matrices over devices changes what each of them takes, too. l and r of every
call are data of the backend (docs/reports/factorizations.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np

from automap.backends import FactorizationNumbers
from automap.cost.kernels.matrix_tiles import FactorSizes, rows_of_copies
from automap.cost.shardings import Shardings
from automap.topology.gpu_devices import core_count
from automap.topology.model import Device
from hlo_tools.analyses.factorizations import Factorization, FactorizationKind, op_factorization
from hlo_tools.graph import Graph, Op
from hlo_tools.rules import Rule


# What jaxlib asks of matrices that go to a call for many, or for small ones.
_COLUMNS_PER_MATRIX: Final = 128
_SMALL: Final = 32
_SECOND_CALL: Final[dict[FactorizationKind, str]] = {
    "cholesky": "cholesky of many",
    "lu": "lu of many",
    "qr": "qr of many",
    "eigenvectors": "eigenvectors of small",
    "singular vectors by jacobi": "singular vectors of small",
}


@dataclass(frozen=True, slots=True)
class LocalFactorizations:
    """Factorizations on a device, [those]: the matrices there, what is done to each, and from how
    many matrices on the second call of a kind has them.
    """

    matrices: np.ndarray
    columns: np.ndarray
    flops: np.ndarray
    calls: tuple[tuple[str, str], ...]
    second_from: np.ndarray


def least_seconds(
    local: LocalFactorizations, numbers: FactorizationNumbers, cores: int
) -> np.ndarray:
    """What factorizations take at least, however much they move, [those], on that many cores."""
    matrices = np.maximum(local.matrices, 1.0)
    rounds = np.maximum(matrices / cores, 1.0)
    seconds, by_name = np.empty((2, len(matrices))), numbers.calls()
    for place in range(2):
        calls = [by_name[names[place]] for names in local.calls]
        along = local.columns * np.array([c.column_seconds for c in calls])
        work = local.flops / np.array([c.core_flops_per_s for c in calls])
        share = np.array([c.share for c in calls])
        seconds[place] = np.select(
            [share == "in turn", share == "shared"],
            [matrices * (along + work / cores), rounds * along + matrices * work / cores],
            rounds * (along + work),
        )
    return np.where(matrices >= local.second_from, seconds[1], seconds[0])


def single_seconds(
    what: Factorization, matrices: float, numbers: FactorizationNumbers, device: Device
) -> float:
    """What a factorization of so many matrices on a device takes at least."""
    local = LocalFactorizations(
        np.array([matrices]),
        np.array([what.dependent_columns]),
        np.array([what.flops]),
        (_calls(what.kind),),
        np.array([_second_from(what)]),
    )
    return float(least_seconds(local, numbers, core_count(device))[0])


@dataclass(frozen=True, slots=True)
class BatchedFactorization:
    """That of a kernel; `sizes` are those of its factors over which the matrices lie, 1 for the
    others.
    """

    what: Factorization
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Factorizations:
    """Such kernels, [those]: `kernels` are their numbers, ascending; `sizes` [those, factors + 1]
    end with a column of no factor.
    """

    kernels: np.ndarray
    sizes: np.ndarray
    columns: np.ndarray
    flops: np.ndarray
    calls: tuple[tuple[str, str], ...]
    second_from: np.ndarray

    @classmethod
    def build(cls, all_kernels: Sequence[BatchedFactorization | None]) -> "Factorizations":
        """Of all kernels, in their order."""
        chosen = [(k, each) for k, each in enumerate(all_kernels) if each is not None]
        width = max((len(each.sizes) for _, each in chosen), default=0)
        sizes = np.ones((len(chosen), width + 1), np.int64)
        for row, (_, each) in enumerate(chosen):
            sizes[row, : len(each.sizes)] = each.sizes
        whats = [each.what for _, each in chosen]
        return cls(
            np.array([k for k, _ in chosen], np.int64),
            sizes,
            np.array([w.dependent_columns for w in whats], float),
            np.array([w.flops for w in whats], float),
            tuple(_calls(w.kind) for w in whats),
            np.array([_second_from(w) for w in whats], float),
        )

    def select(self, which: np.ndarray, n_kernels: int) -> "Factorizations":
        """Those of copied kernels; `which` [copies] says of which of `n_kernels` each is."""
        copied, row = rows_of_copies(self.kernels, which, n_kernels)
        return Factorizations(
            copied,
            self.sizes[row],
            self.columns[row],
            self.flops[row],
            tuple(self.calls[r] for r in row),
            self.second_from[row],
        )

    def seconds(
        self, op_row: np.ndarray, sharding: Shardings, numbers: FactorizationNumbers, device: Device
    ) -> np.ndarray:
        """The least of each of `kernels`; `op_row` is of all kernels."""
        matrices = FactorSizes(self.kernels, op_row[self.kernels], self.sizes).local(sharding)
        local = LocalFactorizations(
            matrices, self.columns, self.flops, self.calls, self.second_from
        )
        return least_seconds(local, numbers, core_count(device))


def batched_factorization(graph: Graph, op: Op, rule: Rule) -> BatchedFactorization | None:
    """That of an operation; None of one that is none."""
    what = op_factorization(graph, op)
    if what is None or not rule.operands:
        return None
    batch = {f for dim in rule.operands[0][: what.n_batch] for f in dim}
    sizes = tuple(x.size if f in batch else 1 for f, x in enumerate(rule.factors))
    return BatchedFactorization(what, sizes)


def _calls(kind: FactorizationKind) -> tuple[str, str]:
    return kind, _SECOND_CALL.get(kind, kind)


def _second_from(what: Factorization) -> float:
    """The least number of matrices that the second call of a kind has; infinity where none does."""
    if what.kind == "cholesky":
        return 2.0
    longest = max(what.rows, what.columns)
    is_small = longest <= _SMALL
    if what.kind == "eigenvectors":
        return 1.0 if is_small else inf
    if what.kind == "singular vectors by jacobi":
        return 2.0 if is_small else inf
    if what.kind == "qr" or (what.kind == "lu" and what.rows == what.columns):
        return max(2.0, longest // (_COLUMNS_PER_MATRIX + 1) + 1)
    return inf
