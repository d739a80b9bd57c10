"""Which parameter each leaf of the optimizer belongs to: the one whose gradient it is updated with.

From a leaf's new version the update is followed backwards through tensors of the leaf's own shape,
to gradients; a leaf belongs to the parameter that is updated with the same one. What has another
shape (a count, factored moments) belongs to none.
"""

from collections.abc import Mapping

from automap.program.problem import Problem
from hlo_tools.analyses.phases import Phase
from hlo_tools.analyses.roles import Role


def optimizer_leaves(problem: Problem) -> tuple[Mapping[int, tuple[int, ...]], tuple[int, ...]]:
    """(optimizer leaves by their parameter, those of none); all are positions in `Graph.inputs`."""
    graph = problem.graph
    of_gradient: dict[int, int] = {}
    leaves: list[tuple[int, frozenset[int]]] = []
    for output, position in problem.state_map.items():
        role = problem.roles[position]
        if role is Role.PARAMETER:
            for gradient in _gradients(problem, graph.outputs[output]):
                of_gradient[gradient] = position
        elif role is Role.OPTIMIZER:
            leaves.append((position, _gradients(problem, graph.outputs[output])))
    found: dict[int, tuple[int, ...]] = {}
    rest: list[int] = []
    for position, gradients in leaves:
        owner = next((of_gradient[g] for g in sorted(gradients) if g in of_gradient), None)
        if owner is None:
            rest.append(position)
        else:
            found[owner] = (*found.get(owner, ()), position)
    return found, tuple(rest)


def _gradients(problem: Problem, value: int) -> frozenset[int]:
    graph = problem.graph
    dims = graph.values[value].dims
    seen, todo, found = {value}, [value], set[int]()
    while todo:
        here = todo.pop()
        producer = graph.values[here].producer
        if producer >= 0 and problem.phases[producer] is Phase.BACKWARD:
            found.add(here)
        elif producer >= 0:
            for source in graph.ops[producer].inputs:
                if source not in seen and graph.values[source].dims == dims:
                    seen.add(source)
                    todo.append(source)
    return frozenset(found)
