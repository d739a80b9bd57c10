"""Factorizations of matrices, which are told as they take longer than is predicted.

The compiler makes panels of 128 columns of them, a call for each and products between them
(compiled for v5e, libtpu 0.0.51: calls named `Cholesky`, `InvertDiagBlocksLowerTriangular`), and
writes no cycles on the calls, whose columns wait for each other. So nothing says what they take,
and they are priced as what they move.
"""

from collections.abc import Iterator

from hlo_tools.analyses.factorizations import op_factorization
from hlo_tools.graph import Graph


def unpriced_panels(graph: Graph) -> Iterator[tuple[int, str]]:
    """The factorizations of a program, with what to say of them."""
    for index, op in enumerate(graph.ops):
        what = op_factorization(graph, op)
        if what is not None:
            yield (
                index,
                f"{what.kind} of matrices of {what.rows:,} x {what.columns:,}: priced as what it "
                "reads and writes, as the TPU compiler says nothing of its panels of columns, "
                "which wait for each other; it may take many times as long",
            )
