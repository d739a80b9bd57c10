"""A step as nodes with arrays between them: what operators are made of, and what a plan can run.

node    an equation of the step, with all that is inside of it (a loop, a branch, a `shard_map`);
        of a program without equations an instruction, or all of such a region
array   what one node makes and others read, or an input of the step

Nodes stand in an order in which they can run. Each has the operations of the HLO graph that it is
lowered to, by which kernels, phases and roles belong to nodes       -> in: `step_dataflow`
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from jax.extend import core
import numpy as np

from automap.jaxpr.flatten import FlatJaxpr
from automap.jaxpr.sites import parse_site
from automap.program.problem import Problem
from automap.program.trace import Workload


NOBODY = -1
"""The maker of an array that is an input of the step; the node of an operation that has none."""


@dataclass(frozen=True)
class Dataflow:
    """The nodes of a step.

    `names` are sites, or names of instructions. `reads`, `writes` are numbers of arrays by node,
    `maker` [arrays] the node that makes one, `n_bytes` [arrays] its size. `inputs` are the arrays
    of the step's inputs, `outputs` those of its results, None for a constant. `ops` are those of
    the graph by node, `node_of_op` [ops] the other way round. `value` [arrays] is the graph's value
    that an array is lowered to, `NOBODY` where that is not clear.
    """

    problem: Problem
    names: tuple[str, ...]
    reads: tuple[tuple[int, ...], ...]
    writes: tuple[tuple[int, ...], ...]
    maker: Sequence[int]
    n_bytes: Sequence[int]
    inputs: tuple[int, ...]
    outputs: tuple[int | None, ...]
    ops: tuple[tuple[int, ...], ...]
    node_of_op: Sequence[int]
    value: Sequence[int]

    @cached_property
    def classes(self) -> tuple[tuple[int, ...], ...]:
        """The linkage class of each dimension of each array, at the first that has it; `NOBODY` for
        none.
        """
        problem = self.problem
        result = []
        for value in self.value:
            classes = () if value == NOBODY else problem.compute_classes(value)
            result.append(
                tuple(
                    c if c < problem.n_compute and c not in classes[:d] else NOBODY
                    for d, c in enumerate(classes)
                )
            )
        return tuple(result)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """The nodes that read each array, in order."""
        readers: list[list[int]] = [[] for _ in self.maker]
        for node, arrays in enumerate(self.reads):
            for array in dict.fromkeys(arrays):
                readers[array].append(node)
        return tuple(map(tuple, readers))

    @cached_property
    def varies(self) -> tuple[bool, ...]:
        """Whether each node depends on an input; what does not is made wherever it is read."""
        is_input = [maker == NOBODY for maker in self.maker]
        varies: list[bool] = []
        for node, arrays in enumerate(self.reads):
            varies.append(any(is_input[array] for array in arrays))
            for array in self.writes[node]:
                is_input[array] = varies[node]
        return tuple(varies)


def step_dataflow(workload: Workload) -> Dataflow:
    """The nodes of a workload: its equations, or the instructions of a program without any."""
    if workload.reemitter is None:
        return _by_instructions(workload.problem)
    return _by_equations(workload.problem, workload.reemitter.flat)


def _by_equations(problem: Problem, flat: FlatJaxpr) -> Dataflow:
    number: dict[object, int] = {}
    maker: list[int] = []
    n_bytes: list[int] = []

    def made(variable: object, node: int, size: int) -> int:
        number[variable] = len(maker)
        maker.append(node)
        n_bytes.append(size)
        return number[variable]

    inputs = tuple(
        made(var, NOBODY, problem.graph.values[value].n_bytes)
        for var, value in zip(flat.invars, problem.graph.inputs, strict=True)
    )
    reads, writes = [], []
    for node, equation in enumerate(flat.equations):
        # Constants of the trace are part of every program that reads them.
        variables = [v for v in equation.eqn.invars if not isinstance(v, core.Literal)]
        reads.append(tuple(number[v] for v in variables if v in number))
        writes.append(tuple(made(v, node, _aval_bytes(v.aval)) for v in equation.eqn.outvars))
    place = {equation.path: node for node, equation in enumerate(flat.equations)}
    node_of_op = []
    for op in problem.graph.ops:
        site = parse_site(op.op_name)
        node_of_op.append(NOBODY if site is None else place.get(site.partition(".")[0], NOBODY))
    ops = _ops_by_node(node_of_op, len(place))
    value = list(problem.graph.inputs)
    for node, equation in enumerate(flat.equations):
        value += _values(problem, ops[node], [v.aval for v in equation.eqn.outvars])
    return Dataflow(
        problem=problem,
        names=tuple(place),
        reads=tuple(reads),
        writes=tuple(writes),
        maker=maker,
        n_bytes=n_bytes,
        inputs=inputs,
        outputs=tuple(None if isinstance(v, core.Literal) else number.get(v) for v in flat.outvars),
        ops=ops,
        node_of_op=node_of_op,
        value=value,
    )


def _values(problem: Problem, ops: Sequence[int], avals: Sequence[object]) -> list[int]:
    """The value that each result of a node is: of its shape, and read elsewhere where one is."""
    graph, inside = problem.graph, set(ops)
    made = [v for op in ops for v in graph.ops[op].outputs]
    leaves = [v for v in made if v in graph.outputs or not inside.issuperset(graph.users[v])]
    result = list[int]()
    for aval in avals:
        shape = tuple(getattr(aval, "shape", ()))
        options = (v for v in (*leaves, *made[::-1]) if tuple(graph.values[v].dims) == shape)
        result.append(next((v for v in options if v not in result), NOBODY))
    return result


def _aval_bytes(aval: object) -> int:
    """Zero for a token, and what else has no elements; a random key counts as its words would."""
    shape, dtype = getattr(aval, "shape", ()), getattr(aval, "dtype", None)
    return int(np.prod(shape, dtype=np.int64)) * getattr(dtype, "itemsize", 0)


def _by_instructions(problem: Problem) -> Dataflow:
    graph = problem.graph
    node_of_op, names = [], list[str]()
    node_of_region: dict[int, int] = {}
    for index, op in enumerate(graph.ops):
        region = graph.outermost_region.get(index, index)
        if region not in node_of_region:
            node_of_region[region] = len(names)
            names.append(op.instruction.name)
        node_of_op.append(node_of_region[region])
    maker = [NOBODY if v.producer < 0 else node_of_op[v.producer] for v in graph.values]
    reads: list[dict[int, None]] = [{} for _ in names]
    writes: list[list[int]] = [[] for _ in names]
    for index, op in enumerate(graph.ops):
        node = node_of_op[index]
        reads[node].update((v, None) for v in op.inputs if maker[v] != node)
        writes[node] += op.outputs
    return Dataflow(
        problem=problem,
        # One call may be inlined twice: instructions' names are of their computation only.
        names=_distinct(names),
        reads=tuple(map(tuple, reads)),
        writes=tuple(map(tuple, writes)),
        maker=maker,
        n_bytes=[value.n_bytes for value in graph.values],
        inputs=graph.inputs,
        outputs=graph.outputs,
        ops=_ops_by_node(node_of_op, len(names)),
        node_of_op=node_of_op,
        value=range(len(graph.values)),
    )


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else f"{name}/{seen[name]}")
    return tuple(result)


def _ops_by_node(node_of_op: Sequence[int], count: int) -> tuple[tuple[int, ...], ...]:
    ops: list[list[int]] = [[] for _ in range(count)]
    for op, node in enumerate(node_of_op):
        if node != NOBODY:
            ops[node].append(op)
    return tuple(map(tuple, ops))
