"""Operations that factor matrices or solve with their factors, by whom they are called and how.

Column after column depends on the ones before it, so such an operation is no product of its size:
what it takes follows from its columns as much as from its FLOPs. Of matrices of m x n numbers, with
k = min(m, n):

    cholesky           n^3 / 3, of a positive definite matrix
    triangular solve   n^2 r, for r right sides
    lu                 k^2 (max(m, n) - k / 3), with pivots
    qr                 twice that, by reflections
    q                  as many again: the orthogonal matrix of k reflections
    eigenvectors       9 n^3: to a tridiagonal matrix, its eigenvectors, and back
    singular vectors   21 m n k                        (LAPACK Users' Guide; Golub and Van Loan)

Complex numbers are counted as four.                -> in: `factorization`, `op_factorization`
"""

from collections.abc import Sequence
from dataclasses import dataclass
import re
from typing import Final, Literal

from hlo_tools.graph import PART_TYPES, Graph, Op
from hlo_tools.opcodes import CUSTOM_CALL


FactorizationKind = Literal[
    "cholesky",
    "triangular solve",
    "lu",
    "qr",
    "q",
    "eigenvectors",
    "singular vectors",
    "singular vectors by jacobi",
]

_MATRIX_DIMS: Final = 2
_KIND_OF_OPCODE: Final[dict[str, FactorizationKind]] = {
    "cholesky": "cholesky",
    "triangular-solve": "triangular solve",
}
_LIBRARY: Final = r"(?:lapack|cusolver|hipsolver|cublas|hipblas|magma)_[a-z]*"
# Pattern of a custom call's target -> what it does; the first that matches the whole name counts.
# The later names are those of the TPU compiler and of XLA's own calls of a matrix library.
_KIND_OF_TARGET: Final[tuple[tuple[str, FactorizationKind], ...]] = (
    (rf"{_LIBRARY}potrf\w*|Cholesky", "cholesky"),
    (rf"{_LIBRARY}trsm\w*|__cublas\$triangularSolve", "triangular solve"),
    (rf"{_LIBRARY}getrf\w*|LuDecomposition", "lu"),
    (rf"{_LIBRARY}geqrf\w*|Qr", "qr"),
    (rf"{_LIBRARY}(?:or|un)gqr\w*|ProductOfElementaryHouseholderReflectors", "q"),
    (rf"{_LIBRARY}(?:syev|heev)\w*|Eigh", "eigenvectors"),
    (rf"{_LIBRARY}gesvdj\w*", "singular vectors by jacobi"),
    (rf"{_LIBRARY}(?:gesvd|gesdd)\w*", "singular vectors"),
)


@dataclass(frozen=True, slots=True)
class Factorization:
    """What is done to each of the matrices of an operation; `n_batch` dimensions of its first
    operand number them.
    """

    kind: FactorizationKind
    n_batch: int
    rows: int
    columns: int
    flops: float

    @property
    def dependent_columns(self) -> int:
        """Columns that wait for the ones before them."""
        return min(self.rows, self.columns)


def factorization(
    opcode: str, target: str, dtype: str, operands: Sequence[Sequence[int]]
) -> Factorization | None:
    """That of an operation with operands of these sizes, the target that of a custom call; None of
    an operation that is none.
    """
    kind = _kind(opcode, target)
    if kind is None or not operands or len(operands[0]) < _MATRIX_DIMS:
        return None
    *batch, rows, columns = operands[0]
    flops = _flops(kind, rows, columns, _right_sides(operands, rows))
    parts = 4 if dtype in PART_TYPES else 1
    return Factorization(kind, len(batch), rows, columns, parts * flops)


def op_factorization(graph: Graph, op: Op) -> Factorization | None:
    """That of an operation of a graph; None of one that is none."""
    operands = [graph.values[v] for v in op.inputs]
    target = op.instruction.attributes.custom_call_target
    dtype = operands[0].dtype if operands else ""
    return factorization(op.opcode, target, dtype, [value.dims for value in operands])


def _kind(opcode: str, target: str) -> FactorizationKind | None:
    if opcode != CUSTOM_CALL:
        return _KIND_OF_OPCODE.get(opcode)
    return next((k for name, k in _KIND_OF_TARGET if re.fullmatch(name, target)), None)


def _right_sides(operands: Sequence[Sequence[int]], rows: int) -> int:
    """Of a solve: the dimension of the other matrix that is not solved along."""
    if len(operands) < _MATRIX_DIMS or len(operands[1]) < _MATRIX_DIMS:
        return 1
    above, beside = operands[1][-2:]
    return beside if above == rows else above


def _flops(kind: FactorizationKind, rows: int, columns: int, right_sides: int) -> float:
    short, long = min(rows, columns), max(rows, columns)
    reduced = 2.0 * short**2 * (long - short / 3)
    by_kind: dict[FactorizationKind, float] = {
        "cholesky": columns**3 / 3,
        "triangular solve": 1.0 * rows**2 * right_sides,
        "lu": reduced / 2,
        "qr": reduced,
        "q": reduced,
        "eigenvectors": 9.0 * columns**3,
        "singular vectors": 21.0 * rows * columns * short,
        "singular vectors by jacobi": 21.0 * rows * columns * short,
    }
    return by_kind[kind]
