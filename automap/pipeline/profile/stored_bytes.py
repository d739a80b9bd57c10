"""What a device stores of each parameter: itself, its gradient's sum, and its part of the
optimizer; and what is computed once a step.

    held(p)  = bytes of p / parts(p) + sum of gradients / parts(p)       in every stage that reads p
    owned(p) = sum over its optimizer leaves l of bytes_l / parts(l)
               + bytes of p (leaves of no parameter) / (all bytes of parameters)
                                                                in the first stage that reads p
                                                                       -> in: `StoredBytes.uses`

Gradients are summed up as their parameter is stored, in float32. Tensors are those of uses: a
parameter or a slice of one.

Each microbatch adds its gradient g to the sum s. The kernel of an elementwise op, and that of a
product where the backend fuses so, reads s and writes it in the place of g; what else makes g is
followed by a kernel that reads both                                          -> in: `adding`
    bytes more than without sums = s + (s - g) where they are fused, 2 s + g in a kernel apart

An optimizer leaf is of the parameter whose gradient it is updated with: from its new version the
update is followed backwards through tensors of the leaf's own shape, to gradients. What has another
shape (a count, factored moments) is of no parameter                    -> in: `optimizer_leaves`
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from automap.pipeline.profile.traffic import Uses, joined
from automap.program.problem import Problem
from hlo_tools.analyses.fuser import Fuser
from hlo_tools.analyses.phases import Phase
from hlo_tools.analyses.roles import Role
from hlo_tools.opcodes import CONTRACTIONS, OWN_KERNEL, REDUCTIONS, VIEWS


_GRADIENT_ELEMENT_BYTES = 4  # microbatches are added up in float32


@dataclass(frozen=True)
class StoredBytes:
    """`parameters` are the uses of parameters, `fixed` those of what is computed once a step;
    `root` [tensors]: positions in `Graph.inputs`, of values `inputs`; `leaf_bytes` and `sum_bytes`
    [inputs], 0 for what is not updated.

    `adding_bytes` [inputs] is what adding a microbatch's gradient to its sum moves, and
    `adding_kernels` in how many kernels of their own; `optimizer` are the optimizer's leaves by
    their parameter, `unowned` those of none.
    """

    parameters: Uses
    fixed: Uses
    root: np.ndarray
    inputs: np.ndarray
    leaf_bytes: np.ndarray
    sum_bytes: np.ndarray
    adding_bytes: np.ndarray
    adding_kernels: np.ndarray
    optimizer: dict[int, tuple[int, ...]]
    unowned: tuple[int, ...]
    total_bytes: float

    def uses(self, parts: np.ndarray) -> Uses:
        """All that a stage stores; `parts` [values] is in how many parts each value is split."""
        used, fixed = self.parameters, self.fixed
        parts_of_leaf = parts[self.inputs]
        local = self.leaf_bytes / parts_of_leaf
        held = local + self.sum_bytes / parts_of_leaf
        owned = np.zeros(len(local))
        owners = [parameter for parameter, leaves in self.optimizer.items() for _ in leaves]
        leaves = [leaf for each in self.optimizer.values() for leaf in each]
        # `add.at` and not `+=`: a parameter with two moments is in `owners` twice.
        np.add.at(owned, owners, np.where(self.sum_bytes[owners] > 0, local[leaves], 0.0))
        rest = local[list(self.unowned)].sum() / self.total_bytes if self.total_bytes else 0.0
        whole = np.maximum(self.leaf_bytes, 1.0)
        root = self.root[used.tensor]
        first = used.first_uses()
        owned_bytes = first.n_bytes * (owned / whole + rest)[self.root[first.tensor]]
        values = np.array(fixed.names, np.int64)[fixed.tensor]
        return joined(
            [
                replace(used, n_bytes=used.n_bytes * (held / whole)[root]),
                replace(first, n_bytes=owned_bytes),
                replace(fixed, n_bytes=fixed.n_bytes / parts[values]),
            ]
        )


def stored_bytes(problem: Problem, parameters: Uses, fixed: Uses, fuser: Fuser) -> StoredBytes:
    """What is stored of the parameters in uses `parameters`, where a backend fuses so."""
    graph, updated = problem.graph, set(problem.state_map.values())
    values = [graph.values[v] for v in graph.inputs]
    trains = Phase.BACKWARD in problem.phases
    optimizer, unowned = optimizer_leaves(problem)
    sum_bytes = np.array(
        [
            float(np.prod(value.dims)) * _GRADIENT_ELEMENT_BYTES * (trains and i in updated)
            for i, value in enumerate(values)
        ]
    )
    adding_bytes, adding_kernels = adding(problem, sum_bytes, fuser)
    return StoredBytes(
        parameters=parameters,
        fixed=fixed,
        inputs=np.array(graph.inputs, np.int64),
        root=np.array(
            [parameter_position(parameters, t) for t in range(len(parameters.names))], np.int64
        ),
        leaf_bytes=np.array([value.n_bytes for value in values], float),
        sum_bytes=sum_bytes,
        adding_bytes=adding_bytes,
        adding_kernels=adding_kernels,
        optimizer=dict(optimizer),
        unowned=unowned,
        total_bytes=parameters.total_bytes,
    )


def adding(problem: Problem, sum_bytes: np.ndarray, fuser: Fuser) -> tuple[np.ndarray, np.ndarray]:
    """(bytes, kernels apart) of adding one microbatch's gradient to its sum, each [inputs]; bytes
    are those that the gradient's own kernel does not move.
    """
    graph = problem.graph
    n_bytes, apart = np.zeros(len(sum_bytes)), np.zeros(len(sum_bytes))
    fused = CONTRACTIONS if fuser.products == "fused" else frozenset()
    for gradient, position in _parameter_by_gradient(problem).items():
        made = graph.values[gradient]
        while made.producer >= 0 and graph.ops[made.producer].opcode in VIEWS:
            made = graph.values[graph.ops[made.producer].inputs[0]]
        opcode = graph.ops[made.producer].opcode if made.producer >= 0 else ""
        is_apart = opcode in (OWN_KERNEL | REDUCTIONS) - fused
        total, own = sum_bytes[position], graph.values[gradient].n_bytes
        if total:
            n_bytes[position] += 2 * total + own if is_apart else 2 * total - own
            apart[position] += is_apart
    return n_bytes, apart


def gradient_uses(problem: Problem, parameters: Uses) -> Uses:
    """The uses of `parameters`, with the bytes of their gradients: 0 for a frozen one."""
    updated = set(problem.state_map.values())
    root = (parameter_position(parameters, t) for t in range(len(parameters.names)))
    is_updated = np.array([position in updated for position in root], bool)
    return replace(parameters, n_bytes=parameters.n_bytes * is_updated[parameters.tensor])


def parameter_position(uses: Uses, tensor: int) -> int:
    """The parameter's position in `Graph.inputs`; a slice is named (parameter, trip)."""
    name = uses.names[tensor]
    return name[0] if isinstance(name, tuple) else name  # type: ignore[return-value]


def optimizer_leaves(problem: Problem) -> tuple[Mapping[int, tuple[int, ...]], tuple[int, ...]]:
    """(optimizer leaves by their parameter, those of none); all are positions in `Graph.inputs`."""
    graph = problem.graph
    # Adam makes a new parameter of moments, which have the gradient's shape: all three reach it.
    parameter_by_gradient = _parameter_by_gradient(problem)
    leaves = [
        (position, _gradients(problem, graph.outputs[output]))
        for output, position in problem.state_map.items()
        if problem.roles[position] is Role.OPTIMIZER
    ]
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


def _parameter_by_gradient(problem: Problem) -> dict[int, int]:
    """By value that is a gradient: the position of its parameter in `Graph.inputs`."""
    return {
        gradient: position
        for output, position in problem.state_map.items()
        if problem.roles[position] is Role.PARAMETER
        for gradient in _gradients(problem, problem.graph.outputs[output])
    }


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
