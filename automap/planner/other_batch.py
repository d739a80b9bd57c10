"""Whether it is known all that another batch of a program changes.

Classes say what grows with the batch (`automap.space.batches.growing_classes`), as far as the
analysis links it with an input. What lies behind a factorization, or holds the batch beside itself,
is linked with none. So where values that may grow besides are more than little of the bytes, the
step is lowered again with twice as many samples, and has to grow as the classes say.
"""

from collections.abc import Collection
from typing import Final

from automap.errors import AutomapError
from automap.program.problem import Problem
from automap.program.trace import Workload, larger_graph
from automap.search.context import SearchContext
from automap.space.batches import batch_size, growing_classes
from hlo_tools.analyses.roles import Role
from hlo_tools.graph import Graph


_LITTLE: Final = 0.05
"""Of the bytes; what it grows by hardly shows."""
_MOST_OPS: Final = 5000
"""Of a step that is lowered again, which takes a second or two then."""


def is_growth_known(context: SearchContext, workload: Workload, values: Collection[int]) -> bool:
    """Whether of these values exactly what `growing_classes` says is larger with more samples."""
    problem, size = context.space.problem, batch_size(context.space.problem)
    all_values, growing = problem.graph.values, set(growing_classes(problem))
    known = {c for v in problem.graph.inputs for c in problem.compute_classes(v)}
    known = (known | growing) - {problem.n_classes}
    # A batch of one divides all there is.
    unsure = [
        v
        for v in values
        # What is the same in every step is made where it is used.
        if size > 1
        and problem.graph.varies[v]
        and any(
            n % size == 0 and c not in known
            for n, c in zip(all_values[v].dims, problem.compute_classes(v), strict=True)
        )
    ]
    if _is_little(problem, unsure, values):
        return True
    larger = _twice_the_batch(context, workload, size)
    if larger is None:
        return False
    otherwise = [
        v
        for v in values
        if any(
            m != (2 * n if c in growing else n)
            for n, m, c in zip(
                all_values[v].dims, larger.values[v].dims, problem.compute_classes(v), strict=True
            )
        )
    ]
    return _is_little(problem, otherwise, values)


def _is_little(problem: Problem, part: Collection[int], values: Collection[int]) -> bool:
    n_bytes = (sum(problem.graph.values[v].n_bytes for v in each) for each in (part, values))
    return next(n_bytes) <= _LITTLE * next(n_bytes)


def _twice_the_batch(context: SearchContext, workload: Workload, size: int) -> Graph | None:
    """The step's graph with twice as many samples; None where it cannot be told, or does something
    else.
    """
    problem = context.space.problem
    graph, call = problem.graph, workload.call
    if call is None or len(graph.ops) > _MOST_OPS:
        return None
    batch = [
        n
        for n, (v, role) in enumerate(zip(graph.inputs, problem.roles, strict=True))
        if role is Role.BATCH and graph.values[v].dims[:1] == (size,)
    ]
    try:
        larger = larger_graph(workload, batch, context.evaluator.topology.platform)
    except AutomapError:
        return None
    is_same = [op.opcode for op in larger.ops] == [op.opcode for op in graph.ops]
    is_same &= [len(v.dims) for v in larger.values] == [len(v.dims) for v in graph.values]
    return larger if is_same else None
