"""Factorizations of matrices, which are told as they take longer than is predicted.

The compiler makes panels of 128 columns of them, a call for each and products between them
(compiled for v5e, libtpu 0.0.51: calls named `Cholesky`, `InvertDiagBlocksLowerTriangular`), and
writes no cycles on the calls, whose columns wait for each other. So nothing says what they take,
and they are priced as what they move.
"""

from collections.abc import Iterator
from typing import Final

from hlo_tools.analyses.factorizations import op_factorization
from hlo_tools.graph import Graph


_SENTENCE: Final = (
    "factorizations of matrices and solves are priced as what they read and write, as the TPU "
    "compiler says nothing of its panels of columns, which wait for each other; they may take many "
    "times as long"
)


def unpriced_panels(graph: Graph) -> Iterator[tuple[int, str]]:
    """The factorizations of a program, with what to say of them."""
    for index, op in enumerate(graph.ops):
        if op_factorization(graph, op) is not None:
            yield index, _SENTENCE
