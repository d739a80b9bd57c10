"""What cells cost when their rows are split in given ways: all of them in one call of the
evaluator.

The evaluator prices tables of rows, edges and kernels.  Here they are copies: for each cell and each way that its rows
may be split one of its rows, edges and kernels (`automap.search.factored.copied`).  So no price is worked out here, and
any that the evaluator learns is followed                                        -> in: `prices`
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from automap.cost.evaluate import Evaluator
from automap.cost.shardings import Shardings
from automap.search.factored.cells import Cell
from automap.search.factored.copied import Copied


@dataclass(frozen=True)
class Ways:
    """Ways to split the rows of a cell: the dimension [ways, value rows, axes], the factor [ways,
    op rows, axes].
    """

    cell: Cell
    dims: np.ndarray
    factors: np.ndarray


@dataclass(frozen=True)
class Prices:
    """Of one cell: seconds of a step of its edge [ways] and of its kernels [kernels, ways], bytes
    its edge copies [ways].

    `kept` [edges before, ways] are the bytes of the copies that its operand edge finds gathered.
    """

    of_edge: np.ndarray
    of_kernels: np.ndarray
    copied: np.ndarray
    kept: np.ndarray


def prices(evaluator: Evaluator, sizes: tuple[int, ...], ways: Sequence[Ways]) -> list[Prices]:
    """Of each cell under each of its ways on a mesh of `sizes`."""
    batch = Copied(evaluator, [w.cell for w in ways], [len(w.dims) for w in ways])
    tables = batch.tables()
    dims = np.concatenate([w.dims.reshape(-1, len(sizes)) for w in ways])
    factors = np.concatenate([w.factors.reshape(-1, len(sizes)) for w in ways])
    priced = replace(evaluator, tables=tables).price(
        Shardings(
            sizes=sizes,
            dim_of_axis=dims,
            factor_of_axis=factors,
            parts_of_value=np.where(dims >= 0, sizes, 1).prod(axis=1),
            parts_of_op=np.where(factors >= 0, sizes, 1).prod(axis=1),
        )
    )
    found, of_kernel = priced.found, priced.of_kernel * tables.kernels.count
    seconds = priced.of_collective * found.count
    of_operand, of_result = (
        np.bincount(found.edge[here], seconds[here], len(edges.count))
        for here, edges in (
            (found.on_operand, tables.operands),
            (~found.on_operand, tables.results),
        )
    )
    # Each copy of an edge that comes before a cell's own stands once as the earlier of that one.
    later, earlier = tables.operands.repeats.T
    is_of_own = found.is_repeat & batch.operands.is_first[later]
    kept = np.zeros(len(tables.operands.count))
    kept[earlier[is_of_own]] = found.copied[earlier[is_of_own]]
    result = []
    for cell, way in enumerate(ways):
        n = len(way.dims)
        operands = batch.operands.of_cell(cell, n)
        made = batch.results.of_cell(cell, n)[:, :1]
        kernels = batch.kernels.of_cell(cell, n)
        of_edge = of_operand[operands[:, :1]].sum(axis=1) + of_result[made].sum(axis=1)
        copied = found.copied[operands[:, :1]].sum(axis=1)
        result.append(Prices(of_edge, of_kernel[kernels].T, copied, kept[operands[:, 1:]].T))
    return result
