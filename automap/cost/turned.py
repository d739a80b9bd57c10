"""Values whose dimensions stand in the other order than those of the tensor they become.

JAX makes the gradient of a kernel [in, out] as a product [out, in], then transposes it. Where both
dimensions are of one class, which of them is split goes by their order (`automap.cost.shardings`),
so that product would be split along the other dimension than the kernel, and exchanged for nothing.
XLA swaps the operands of such a product instead.
"""

from collections.abc import Sequence

import numpy as np

from automap.cost.edges import CONTESTED_OPCODES
from automap.program.problem import Problem


def turned(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """(values, ops): products that are only transposed, such that dimensions of one class change
    places, and those transposes.
    """
    graph = problem.graph
    values, ops = np.zeros(len(graph.values), bool), np.zeros(len(graph.ops), bool)
    for index, op in enumerate(graph.ops):
        if op.opcode != "transpose":
            continue
        (value,) = op.inputs
        producer = graph.values[value].producer
        if (
            producer >= 0
            and graph.ops[producer].opcode in CONTESTED_OPCODES
            and len(graph.users[value]) == 1
            and value not in graph.outputs
        ):
            values[value] = ops[index] = _changes_places(
                problem.compute_classes(value), op.instruction.dimensions, problem.n_compute
            )
    return values, ops


def _changes_places(classes: Sequence[int], order: Sequence[int], n_compute: int) -> bool:
    """Whether some class stands on two dimensions that a transposition puts in the other order."""
    return any(
        classes[later] == classes[sooner] < n_compute and later > sooner
        for place, later in enumerate(order)
        for sooner in order[place + 1 :]
    )
