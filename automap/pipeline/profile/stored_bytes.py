"""What a device stores of each parameter: itself, its gradient's sum, and its part of the
optimizer.

    ratio(p) = (bytes of p / parts(p) + sum of gradients / parts(p)
                + sum over its optimizer leaves l of bytes_l / parts(l)) / bytes of p
               + (leaves of no parameter) / (all bytes of parameters)

Gradients are summed up as their parameter is stored, in float32. Tensors are those of uses: a
parameter or a slice of one.

An optimizer leaf is of the parameter whose gradient it is updated with: from its new version the
update is followed backwards through tensors of the leaf's own shape, to gradients. What has another
shape (a count, factored moments) is of no parameter                    -> in: `optimizer_leaves`
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from automap.pipeline.profile.traffic import Uses
from automap.program.problem import Problem
from hlo_tools.analyses.phases import Phase
from hlo_tools.analyses.roles import Role


_GRADIENT_ELEMENT_BYTES = 4  # microbatches are added up in float32


@dataclass(frozen=True)
class StoredBytes:
    """`root` [tensors]: positions in `Graph.inputs`; `leaf_bytes` and `sum_bytes` [inputs], 0 for
    what is not updated.

    `optimizer` are the optimizer's leaves by their parameter, `unowned` those of none.
    """

    root: np.ndarray
    leaf_bytes: np.ndarray
    sum_bytes: np.ndarray
    optimizer: dict[int, tuple[int, ...]]
    unowned: tuple[int, ...]
    total_bytes: float

    def ratio(self, parts: np.ndarray) -> np.ndarray:
        """By tensor, [tensors]; `parts` [inputs] is in how many parts each leaf is stored."""
        local = self.leaf_bytes / parts
        whole = local + self.sum_bytes / parts
        parameters = [parameter for parameter, leaves in self.optimizer.items() for _ in leaves]
        leaves = [leaf for each in self.optimizer.values() for leaf in each]
        # `add.at` and not `+=`: a parameter with two moments is in `parameters` twice.
        np.add.at(whole, parameters, np.where(self.sum_bytes[parameters] > 0, local[leaves], 0.0))
        rest = local[list(self.unowned)].sum() / self.total_bytes if self.total_bytes else 0.0
        return whole[self.root] / np.maximum(self.leaf_bytes[self.root], 1.0) + rest


def stored_bytes(problem: Problem, gradients: Uses) -> StoredBytes:
    """What is stored of the parameters that `gradients` uses."""
    graph, updated = problem.graph, set(problem.state_map.values())
    values = [graph.values[v] for v in graph.inputs]
    trains = Phase.BACKWARD in problem.phases
    optimizer, unowned = optimizer_leaves(problem)
    return StoredBytes(
        root=np.array(
            [parameter_position(gradients, t) for t in range(len(gradients.names))], np.int64
        ),
        leaf_bytes=np.array([value.n_bytes for value in values], float),
        sum_bytes=np.array(
            [
                float(np.prod(value.dims)) * _GRADIENT_ELEMENT_BYTES * (trains and i in updated)
                for i, value in enumerate(values)
            ]
        ),
        optimizer=dict(optimizer),
        unowned=unowned,
        total_bytes=gradients.total_bytes,
    )


def parameter_position(uses: Uses, tensor: int) -> int:
    """The parameter's position in `Graph.inputs`; a slice is named (parameter, trip)."""
    name = uses.names[tensor]
    return name[0] if isinstance(name, tuple) else name  # type: ignore[return-value]


def optimizer_leaves(problem: Problem) -> tuple[Mapping[int, tuple[int, ...]], tuple[int, ...]]:
    """(optimizer leaves by their parameter, those of none); all are positions in `Graph.inputs`."""
    graph = problem.graph
    # Adam makes a new parameter of moments, which have the gradient's shape: all three reach it.
    parameter_by_gradient: dict[int, int] = {}
    leaves: list[tuple[int, frozenset[int]]] = []
    for output, position in problem.state_map.items():
        role = problem.roles[position]
        if role is Role.PARAMETER:
            for gradient in _gradients(problem, graph.outputs[output]):
                parameter_by_gradient[gradient] = position
        elif role is Role.OPTIMIZER:
            leaves.append((position, _gradients(problem, graph.outputs[output])))
    by_parameter: dict[int, tuple[int, ...]] = {}
    rest: list[int] = []
    for position, gradients in leaves:
        known = [g for g in sorted(gradients) if g in parameter_by_gradient]
        parameter = parameter_by_gradient[known[0]] if known else None
        if parameter is None:
            rest.append(position)
        else:
            by_parameter[parameter] = (*by_parameter.get(parameter, ()), position)
    return by_parameter, tuple(rest)


def _gradients(problem: Problem, value: int) -> frozenset[int]:
    """The values of the backward phase that a new version is made of, through its own shape."""
    graph = problem.graph
    dims = graph.values[value].dims
    seen, todo, gradients = {value}, [value], set[int]()
    while todo:
        here = todo.pop()
        producer = graph.values[here].producer
        if producer >= 0 and problem.phases[producer] is Phase.BACKWARD:
            gradients.add(here)
        elif producer >= 0:
            for source in graph.ops[producer].inputs:
                if source not in seen and graph.values[source].dims == dims:
                    seen.add(source)
                    todo.append(source)
    return frozenset(gradients)
